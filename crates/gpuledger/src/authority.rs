//! `gpuledger tls`: a certificate authority of one's own, and the server certificates that it signs.

use crate::{certificate, error::CliError, output, secret};
use jiff::{ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use std::{
    fs,
    path::{Path, PathBuf},
};
use types::Clock;
use x509_parser::extensions::GeneralName;

/// What is done with certificates.
#[derive(Debug, clap::Subcommand)]
pub enum Tls {
    /// Make a certificate authority and a server certificate that it signs
    ///
    /// Writes four files: ca.pem, which every node and client is given; ca-key.pem, which signs, and which nobody but you
    /// should have; server.pem and server-key.pem, for http.tls_certificate and http.tls_key. Files that are there are
    /// never replaced.
    #[command(after_help = "\
Example: gpuledger tls make --host ledger.example --host 10.0.0.5 --out /etc/gpuledger/tls

Then, on the server, in /etc/gpuledger/gpuledger.toml:
  [http]
  listen = \"0.0.0.0:7070\"
  tls_certificate = \"/etc/gpuledger/tls/server.pem\"
  tls_key = \"/etc/gpuledger/tls/server-key.pem\"

On a node, with a copy of ca.pem:
  gpuledger node join --server https://ledger.example:7070 --ca-file ca.pem --token glj_…")]
    Make(MakeArgs),
    /// Sign a new server certificate with the same authority
    ///
    /// Nodes and clients need nothing new. A running server shows the new certificate within seconds.
    #[command(after_help = "Example: gpuledger tls renew --out /etc/gpuledger/tls")]
    Renew(RenewArgs),
}

/// How a new authority is made.
#[derive(Debug, clap::Args)]
pub struct MakeArgs {
    /// A name or an address by which clients reach the server; repeat it for each
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,
    /// The folder to write to; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Days that the server certificate is good for
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
    /// Days that the authority is good for: when it ends, every node and client needs a new ca.pem
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..=18250))]
    ca_days: u16,
}

/// How a server certificate is renewed.
#[derive(Debug, clap::Args)]
pub struct RenewArgs {
    /// The folder that `gpuledger tls make` wrote
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// A name or an address of the server; repeat it for each [default: those of the present certificate]
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Days that the new certificate is good for
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

/// The files of a folder.
struct Files {
    ca: PathBuf,
    ca_key: PathBuf,
    server: PathBuf,
    server_key: PathBuf,
}

impl Files {
    fn in_folder(folder: &Path) -> Self {
        let file = |name| folder.join(name);
        Self {
            ca: file("ca.pem"),
            ca_key: file("ca-key.pem"),
            server: file("server.pem"),
            server_key: file("server-key.pem"),
        }
    }
}

/// Runs it.
pub(crate) fn run(tls: Tls) -> Result<(), CliError> {
    match tls {
        Tls::Make(args) => make(&args),
        Tls::Renew(args) => renew(&args),
    }
}

fn make(args: &MakeArgs) -> Result<(), CliError> {
    let files = Files::in_folder(&args.out);
    for file in [&files.ca, &files.ca_key, &files.server, &files.server_key] {
        if file.exists() {
            let what = format!(
                "{} is there already: for a new certificate of the same authority use `gpuledger tls renew`",
                file.display()
            );
            return Err(CliError::Usage(what));
        }
    }
    // before anything is written
    let server = server_params(&args.hosts, args.days)?;
    let key = KeyPair::generate().map_err(failed)?;
    let params = ca_params(&key, args.ca_days)?;
    let ca = params.self_signed(&key).map_err(failed)?.pem();
    let issuer = Issuer::new(params, key);
    fs::create_dir_all(&args.out).map_err(CliError::file("make", &args.out))?;
    secret::write(&files.ca_key, &issuer.key().serialize_pem())?;
    write(&files.ca, &ca)?;
    sign(&files, server, &issuer)?;
    output::line(format_args!("{} is for nodes and clients: --ca-file, agent.ca_file", files.ca.display()))?;
    output::line(format_args!("{} signs: keep it from everybody, best elsewhere", files.ca_key.display()))?;
    tell(&files, args.days)
}

fn renew(args: &RenewArgs) -> Result<(), CliError> {
    let files = Files::in_folder(&args.out);
    let read = |path: &Path| fs::read_to_string(path).map_err(CliError::file("read", path));
    let (ca, key) = (read(&files.ca)?, read(&files.ca_key)?);
    let hosts = if args.hosts.is_empty() { hosts_of(&files.server)? } else { args.hosts.clone() };
    let key = KeyPair::from_pem(&key).map_err(|_| useless(&files.ca_key, "private key"))?;
    let ca_der = CertificateDer::from_pem_slice(ca.as_bytes()).map_err(|_| useless(&files.ca, "certificate"))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&ca_der).map_err(|_| useless(&files.ca, "certificate"))?;
    if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
        let (ca, key) = (files.ca.display(), files.ca_key.display());
        return Err(CliError::Failed(format!("{key} is not the key of {ca}")));
    }
    let ends = certificate::end_of(&ca_der, &files.ca)?;
    let last = today()?.checked_add(i64::from(args.days).days()).map_err(|_| useless(&files.ca, "certificate"))?;
    if ends.to_jiff().to_zoned(TimeZone::UTC).date() < last {
        output::note(format_args!("the authority itself ends at {ends}: after that no client trusts the server"));
    }
    let issuer = Issuer::from_ca_cert_der(&ca_der, key).map_err(failed)?;
    sign(&files, server_params(&hosts, args.days)?, &issuer)?;
    tell(&files, args.days)
}

/// Signs a server certificate with a new key and writes both.
fn sign(files: &Files, params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<(), CliError> {
    let key = KeyPair::generate().map_err(failed)?;
    let signed = params.signed_by(&key, issuer).map_err(failed)?;
    secret::write(&files.server_key, &key.serialize_pem())?;
    write(&files.server, &signed.pem())
}

fn tell(files: &Files, days: u16) -> Result<(), CliError> {
    let hosts = hosts_of(&files.server)?.join(", ");
    output::line(format_args!("{} is good for {hosts}, for {days} days", files.server.display()))?;
    output::line(format_args!("{} is its key: the server alone reads it", files.server_key.display()))
}

fn ca_params(key: &KeyPair, days: u16) -> Result<CertificateParams, CliError> {
    let mut params = CertificateParams::default();
    // told apart from others by a name of its own
    let digest = hex::encode(params.key_identifier(key));
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, format!("Gpuledger CA {}", &digest[..8]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    last(&mut params, days)?;
    Ok(params)
}

fn server_params(hosts: &[String], days: u16) -> Result<CertificateParams, CliError> {
    for host in hosts {
        let is_name = host.split('.').all(|label| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'*')
        });
        if host.parse::<std::net::IpAddr>().is_err() && !is_name {
            let what = format!("{host:?} is no name and no address of a host: give it without https:// and port");
            return Err(CliError::Usage(what));
        }
    }
    let mut params = CertificateParams::new(hosts).map_err(failed)?;
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, hosts.first().map_or("gpuledger", String::as_str));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    last(&mut params, days)?;
    Ok(params)
}

/// Good from yesterday on, for clocks that are a little behind.
fn last(params: &mut CertificateParams, days: u16) -> Result<(), CliError> {
    let today = today()?;
    let day = |days: i64| -> Result<_, CliError> {
        let date = today.checked_add(days.days()).map_err(|e| CliError::Usage(e.to_string()))?;
        let part = |number: i8| u8::try_from(number).unwrap_or(1);
        Ok(date_time_ymd(date.year().into(), part(date.month()), part(date.day())))
    };
    params.not_before = day(-1)?;
    params.not_after = day(days.into())?;
    Ok(())
}

fn today() -> Result<Date, CliError> {
    Ok(Clock::System.now().to_jiff().to_zoned(TimeZone::UTC).date())
}

/// The names and addresses of a certificate.
fn hosts_of(file: &Path) -> Result<Vec<String>, CliError> {
    let pem = fs::read(file).map_err(CliError::file("read", file))?;
    let der = CertificateDer::from_pem_slice(&pem).map_err(|_| useless(file, "certificate"))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|_| useless(file, "certificate"))?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    Ok(names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match **bytes {
                [a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
                _ => <[u8; 16]>::try_from(*bytes).ok().map(|octets| std::net::Ipv6Addr::from(octets).to_string()),
            },
            _ => None,
        })
        .collect())
}

/// Replaces a file that everybody may read, so that a crash leaves the old or the new one.
fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let unfinished = path.with_extension("new");
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(CliError::file("write", path))
}

fn failed(error: rcgen::Error) -> CliError {
    CliError::Failed(format!("no certificate can be made: {error}"))
}

fn useless(file: &Path, what: &str) -> CliError {
    CliError::Failed(format!("{} holds no {what} that can be used", file.display()))
}
