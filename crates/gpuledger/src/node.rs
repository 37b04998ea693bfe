//! `gpuledger node join` and `gpuledger agent`.

use crate::{client::USUAL_SERVER, clock, config::Config, error::CliError, output, secret};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, path::PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use types::{Name, NodeId, PoolId};

/// What a node's host does.
#[derive(Debug, clap::Subcommand)]
pub enum Node {
    /// Join this host to a pool, with a token that an operator made
    ///
    /// Writes the node's credential where `gpuledger agent` reads it (agent.credential_file). Joining again, with another
    /// token, gives the same node a new credential.
    Join(JoinArgs),
}

/// How to join.
#[derive(Debug, clap::Args)]
pub struct JoinArgs {
    /// The one-time token: `POST /v1/pools/{pool_id}/join-tokens`
    #[arg(long, env = "GPULEDGER_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// Where the server answers [default: agent.server_url, or http://127.0.0.1:7070]
    #[arg(long, env = "GPULEDGER_SERVER", value_name = "URL")]
    server: Option<String>,
    /// The certificate authority of the server, as PEM, if it is not a public one: nothing else is trusted then. The agent
    /// needs it too, as agent.ca_file [default: agent.ca_file]
    #[arg(long, env = "GPULEDGER_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The host's name for people [default: its own]
    #[arg(long)]
    hostname: Option<Name>,
    /// What names the host for ever [default: the text of /etc/machine-id]
    #[arg(long)]
    machine_id: Option<Name>,
}

/// A node's place in a pool and the proof of it, as kept on its host.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    pub server_url: String,
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub credential: String,
}

impl std::fmt::Debug for Membership {
    /// Without the credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

/// `gpuledger node join`
pub(crate) async fn join(config: &Config, args: JoinArgs) -> Result<(), CliError> {
    let server_url = args.server.or_else(|| config.agent.server_url.clone()).unwrap_or_else(|| USUAL_SERVER.to_owned());
    let ca_file = args.ca_file.or_else(|| config.agent.ca_file.clone());
    let hostname = match args.hostname {
        Some(given) => given,
        None => name_in("/proc/sys/kernel/hostname")?,
    };
    let machine_id = match args.machine_id {
        Some(given) => given,
        None => name_in("/etc/machine-id")?,
    };
    // known before the token is spent
    let file = config.credential_file();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(CliError::file("make", folder))?;
    }
    let joined = agent::join(&server_url, args.token.trim(), hostname, machine_id, ca_file.as_deref()).await?;
    let membership =
        Membership { server_url, node_id: joined.node_id, pool_id: joined.pool_id, credential: joined.credential };
    let text = serde_json::to_string_pretty(&membership).map_err(|e| CliError::Failed(e.to_string()))?;
    secret::write(&file, &text)?;
    output::line(format_args!("joined as node {} of pool {}", membership.node_id, membership.pool_id))?;
    output::note(format_args!("the credential is in {}; start the agent: gpuledger agent", file.display()));
    Ok(())
}

fn name_in(file: &str) -> Result<Name, CliError> {
    let text = fs::read_to_string(file).map_err(CliError::file("read", file))?;
    text.trim().parse().map_err(|e| CliError::Usage(format!("the text of {file} {e}")))
}

/// `gpuledger agent`
pub(crate) async fn run_agent(config: &Config) -> Result<(), CliError> {
    let settings = config.agent(membership(&config.credential_file())?)?;
    let stop = CancellationToken::new();
    let listen = |kind| signal(kind).map_err(|e| CliError::Failed(format!("signals cannot be taken: {e}")));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stops");
        token.cancel();
    });
    tracing::info!(node_id = %settings.node_id, server = settings.server_url, socket = %settings.socket.display(), "the agent runs");
    agent::run(settings, clock::clock()?, stop).await?;
    Ok(())
}

fn membership(file: &Path) -> Result<Membership, CliError> {
    let text = match fs::read(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let what = format!("{} is not there: join first, with `gpuledger node join`", file.display());
            return Err(CliError::Usage(what));
        }
        read => read.map_err(CliError::file("read", file))?,
    };
    serde_json::from_slice(&text)
        .map_err(|e| CliError::Usage(format!("{} is not what `gpuledger node join` wrote: {e}", file.display())))
}
