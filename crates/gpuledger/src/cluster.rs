//! Several servers on one database: where the others reach this one.

use crate::{config::Config, error::CliError};
use app::{App, Peers};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    path::PathBuf,
};

/// How the servers of one database reach each other.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    pub url: Option<String>,
    pub ca_file: Option<PathBuf>,
}

/// The use cases, forwarding to other servers what they lead. `local` is where this server listens.
pub(crate) fn join(config: &Config, app: App, local: SocketAddr, database_url: &str) -> Result<App, CliError> {
    let url = match &config.cluster.url {
        Some(url) => url.clone(),
        None => {
            let scheme = if config.http.tls().is_some() { "https" } else { "http" };
            format!("{scheme}://{}", SocketAddr::new(reached_at(local.ip(), database_url), local.port()))
        }
    };
    let ca = match &config.cluster.ca_file {
        Some(path) => Some(std::fs::read(path).map_err(CliError::file("read", path.display().to_string()))?),
        None => None,
    };
    let peers = Peers::new(&url, ca.as_deref(), app.clock.now())
        .map_err(|e| CliError::Failed(format!("cluster.url or cluster.ca_file: {e}")))?;
    tracing::info!(url, "the other servers of this database reach this one here");
    Ok(app.with_peers(peers))
}

/// The address it listens on; where that stands for every address, the one that this host has towards its database,
/// which the other servers reach too.
fn reached_at(listens_on: IpAddr, database_url: &str) -> IpAddr {
    if !listens_on.is_unspecified() {
        return listens_on;
    }
    towards(database_url).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// This host's own address on the way to the database. Connecting a datagram socket sends nothing.
fn towards(database_url: &str) -> Option<IpAddr> {
    let url = reqwest::Url::parse(database_url).ok()?;
    let address = (url.host_str()?, url.port().unwrap_or(5432)).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stands_for_all_is_replaced_by_one_that_is_reached() {
        let database = "postgres://somebody@127.0.0.1:5432/gpuledger";
        let at = |listens_on: &str, url| reached_at(listens_on.parse().unwrap(), url).to_string();
        assert_eq!(at("10.0.0.5", database), "10.0.0.5");
        assert_eq!(at("0.0.0.0", database), "127.0.0.1");
        assert_eq!(at("::", database), "127.0.0.1");
        assert_eq!(at("0.0.0.0", "postgres:///gpuledger?host=/run/postgresql"), "127.0.0.1");
    }
}
