// tidy: long file: every section of the configuration in one reading, with the check of each key and its tests
//! The configuration: defaults, then the file, then the environment. Every key is documented in `config.default.toml`,
//! which is also where the defaults come from; a key that is not there is refused.

mod http;

use crate::{cluster::Cluster, duration, error::CliError, log::LogFormat, oidc};
use agent::{AgentSettings, SimulatedGpu, SourceSettings, WindowLength};
use app::{SchedulerSettings, SessionSettings, session::Lifetime};
use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Value},
};
pub use http::Http;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};
use store::StoreSettings;
use types::{Bytes, GpuModel};

/// Every key, its meaning and its default.
pub const DEFAULTS: &str = include_str!("config.default.toml");
/// Read where no file is named.
const USUAL_FILE: &str = "/etc/gpuledger/gpuledger.toml";
/// What the environment's variables begin with.
const PREFIX: &str = "GPULEDGER_";
/// The sections, to tell a mistyped variable from one that is none of ours.
const SECTIONS: [&str; 8] = ["database", "http", "cluster", "session", "oidc", "scheduler", "agent", "log"];

/// The whole configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub database: Database,
    pub http: Http,
    pub cluster: Cluster,
    pub session: Session,
    #[serde(default)]
    pub oidc: oidc::Providers,
    pub scheduler: Scheduler,
    pub agent: Agent,
    pub log: Log,
    /// The file it was read from, if any.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    pub url: Option<SecretString>,
    pub owner_url: Option<SecretString>,
    pub data_dir: Option<PathBuf>,
    pub connections: u32,
    #[serde(deserialize_with = "duration::deserialize")]
    pub acquire_timeout: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub statement_timeout: Duration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    #[serde(deserialize_with = "duration::deserialize")]
    pub lifetime: Duration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    #[serde(deserialize_with = "duration::deserialize")]
    pub lease: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub tick: Duration,
    pub batch: usize,
    #[serde(deserialize_with = "duration::deserialize")]
    pub tasks: Duration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    pub server_url: Option<String>,
    pub state_dir: PathBuf,
    pub socket: PathBuf,
    pub credential_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub source: Source,
    pub nvidia_smi: PathBuf,
    #[serde(deserialize_with = "duration::deserialize")]
    pub report_interval: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub sample_interval: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub window: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub rotate_credential: Duration,
    pub simulated: Simulated,
}

/// Where memory is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    NvidiaSmi,
    Simulated,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    pub gpus: u32,
    pub model: GpuModel,
    pub memory: Bytes,
    pub driver_overhead: Bytes,
    pub seed: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub format: LogFormat,
    pub filter: String,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the configuration is wrong: {0}")]
pub struct ConfigError(pub String);

impl Config {
    /// Reads it, with the process's environment.
    ///
    /// # Errors
    /// [`ConfigError`], naming each key that is wrong and the file or variable that it stands in.
    pub fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let usual = Path::new(USUAL_FILE);
        let file = named.or_else(|| usual.is_file().then_some(usual));
        Self::read(
            file,
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    fn read(file: Option<&Path>, environment: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Toml::string(DEFAULTS));
        if let Some(file) = file {
            let text = std::fs::read_to_string(file)
                .map_err(|e| ConfigError(format!("cannot read {}: {e}", file.display())))?;
            figment = figment.merge(Layer { place: file.display().to_string(), provider: Toml::string(&text) });
        }
        for (variable, value) in settings(environment)? {
            figment = figment.merge(variable.with(value));
        }
        let config = Self { file: file.map(Path::to_owned), ..figment.extract().map_err(describe)? };
        config.check()?;
        Ok(config)
    }

    /// Rules that a type does not hold.
    fn check(&self) -> Result<(), ConfigError> {
        let mut wrong = Vec::new();
        self.http.check(&mut wrong);
        let mut within = |key: &str, value, range, unit: &str| wrong.extend(outside(key, value, &range, unit));
        within("database.connections", self.database.connections.into(), 2..=1000, "");
        within("database.acquire_timeout", millis(self.database.acquire_timeout), 100..=60_000, "ms");
        within("database.statement_timeout", millis(self.database.statement_timeout), 1000..=3_600_000, "ms");
        within("session.lifetime", self.session.lifetime.as_secs(), 900..=43_200, "s");
        within("scheduler.lease", millis(self.scheduler.lease), 1000..=60_000, "ms");
        within("scheduler.tick", millis(self.scheduler.tick), 50..=60_000, "ms");
        within("scheduler.batch", count(self.scheduler.batch), 1..=4096, "");
        within("scheduler.tasks", millis(self.scheduler.tasks), 1000..=600_000, "ms");
        within("agent.report_interval", millis(self.agent.report_interval), 500..=60_000, "ms");
        within("agent.sample_interval", millis(self.agent.sample_interval), 100..=60_000, "ms");
        within("agent.rotate_credential", self.agent.rotate_credential.as_secs(), 3600..=31_536_000, "s");
        within("agent.simulated.gpus", self.agent.simulated.gpus.into(), 1..=64, "");
        let is_postgres = |url: &SecretString| {
            ["postgres://", "postgresql://"].iter().any(|scheme| url.expose_secret().starts_with(scheme))
        };
        for (key, url) in [("url", &self.database.url), ("owner_url", &self.database.owner_url)] {
            if url.as_ref().is_some_and(|url| !is_postgres(url)) {
                wrong.push(format!("database.{key} must begin with postgres://"));
            }
        }
        if self.database.owner_url.is_some() && self.database.url.is_none() {
            wrong.push("database.owner_url needs database.url: a private PostgreSQL has one user".to_owned());
        }
        if !self.agent.window.as_millis().is_multiple_of(60_000) {
            wrong.push("agent.window must be whole minutes".to_owned());
        } else if let Err(error) = self.window() {
            wrong.push(format!("agent.window is {error}"));
        }
        if self.agent.simulated.memory <= self.agent.simulated.driver_overhead {
            wrong.push("agent.simulated.memory must be more than driver_overhead".to_owned());
        }
        wrong.extend(oidc::settings(&self.oidc).err().map(|e| e.0));
        if wrong.is_empty() { Ok(()) } else { Err(ConfigError(wrong.join("; "))) }
    }

    fn window(&self) -> Result<WindowLength, metering::integrate::WindowLengthError> {
        WindowLength::minutes(u32::try_from(self.agent.window.as_secs() / 60).unwrap_or(u32::MAX))
    }

    /// Which Postgres is wanted.
    #[must_use]
    pub fn postgres(&self) -> postgres::Settings {
        let url = self.database.url.as_ref().map(|url| url.expose_secret().to_owned());
        let folder = self.database.data_dir.clone().unwrap_or_else(usual_data_dir);
        postgres::Settings::new(url, postgres::Place::Folder(folder))
    }

    /// How the schema's owner reaches the Postgres that answers at `url`.
    #[must_use]
    pub fn owner_url<'a>(&'a self, url: &'a str) -> &'a str {
        self.database.owner_url.as_ref().map_or(url, |owner| owner.expose_secret())
    }

    /// How to work with the Postgres that answers at `url`.
    #[must_use]
    pub fn store(&self, url: &str) -> StoreSettings {
        StoreSettings {
            url: url.to_owned(),
            connections: self.database.connections,
            acquire: self.database.acquire_timeout,
            statement: self.database.statement_timeout,
        }
    }

    /// How tokens are issued.
    #[must_use]
    pub fn sessions(&self) -> SessionSettings {
        let defaults = SessionSettings::default();
        let seconds = u32::try_from(self.session.lifetime.as_secs()).unwrap_or(u32::MAX);
        // checked when it was read
        let lifetime = Lifetime::from_secs(seconds).unwrap_or(defaults.lifetime);
        SessionSettings { lifetime, ..defaults }
    }

    /// How pools are scheduled.
    #[must_use]
    pub fn schedulers(&self) -> SchedulerSettings {
        let Scheduler { lease, tick, batch, .. } = self.scheduler;
        SchedulerSettings { lease, tick: Some(tick), batch, ..SchedulerSettings::default() }
    }

    /// The file that `gpuledger node join` writes.
    #[must_use]
    pub fn credential_file(&self) -> PathBuf {
        self.agent.credential_file.clone().unwrap_or_else(|| self.agent.state_dir.join("credential.json"))
    }

    /// How the agent of a node runs that joined.
    ///
    /// # Errors
    /// A window that is none, which [`Config::load`] lets nobody have.
    pub fn agent(&self, node: crate::node::Membership) -> Result<AgentSettings, CliError> {
        let source = match self.agent.source {
            Source::NvidiaSmi => SourceSettings::NvidiaSmi { path: self.agent.nvidia_smi.clone() },
            Source::Simulated => {
                let invented = &self.agent.simulated;
                let gpu = SimulatedGpu {
                    model: invented.model.clone(),
                    memory_total: invented.memory,
                    driver_overhead: invented.driver_overhead,
                };
                let (high, low) = node.node_id.uuid().as_u64_pair();
                let seed = invented.seed.unwrap_or(high ^ low);
                SourceSettings::Simulated { seed, gpus: (0..invented.gpus).map(|_| gpu.clone()).collect() }
            }
        };
        Ok(AgentSettings {
            server_url: self.agent.server_url.clone().unwrap_or(node.server_url),
            node_id: node.node_id,
            pool_id: node.pool_id,
            credential: node.credential,
            credential_file: Some(self.credential_file()),
            rotate_every: self.agent.rotate_credential,
            state_dir: self.agent.state_dir.clone(),
            socket: self.agent.socket.clone(),
            ca_file: self.agent.ca_file.clone(),
            report_interval: self.agent.report_interval,
            sample_interval: self.agent.sample_interval,
            window: self.window().map_err(|e| CliError::Usage(e.to_string()))?,
            source,
        })
    }
}

/// What is wrong with a number that must lie in a range.
fn outside(key: &str, value: u64, range: &RangeInclusive<u64>, unit: &str) -> Option<String> {
    let (first, last) = (range.start(), range.end());
    (!range.contains(&value)).then(|| format!("{key} must be {first} to {last}{unit}"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Where a private Postgres keeps its data when nothing is said.
fn usual_data_dir() -> PathBuf {
    let own = env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".local/share")));
    match own {
        Some(own) if !nix::unistd::Uid::effective().is_root() => own.join("gpuledger/postgres"),
        _ => PathBuf::from("/var/lib/gpuledger/postgres"),
    }
}

/// A variable of the environment that sets a key.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Variable {
    /// Those that go before others come later.
    rank: u8,
    name: String,
    /// Path of the key, such as `http.listen`.
    key: String,
}

impl Variable {
    fn with(self, value: String) -> Layer<Serialized<Value>> {
        // reads numbers and truth values out of the text; everything else stays a text
        let value = value.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        Layer { place: format!("the variable {}", self.name), provider: Serialized::default(&self.key, value) }
    }
}

/// The variables that set keys, in the order of merging.
fn settings(environment: impl Iterator<Item = (String, String)>) -> Result<BTreeMap<Variable, String>, ConfigError> {
    let mut settings = BTreeMap::new();
    for (name, value) in environment {
        if name == "DATABASE_URL" && !value.is_empty() {
            settings.insert(Variable { rank: 0, name, key: "database.url".to_owned() }, value);
        } else if let Some(rest) = name.strip_prefix(PREFIX) {
            if rest.contains("__") {
                let key = rest.to_ascii_lowercase().replace("__", ".");
                settings.insert(Variable { rank: 1, name, key }, value);
            } else if let Some(meant) = meant_for(rest) {
                return Err(ConfigError(format!(
                    "the variable {name} sets nothing: with two underscores behind the section it is {PREFIX}{meant}"
                )));
            }
        }
    }
    Ok(settings)
}

/// A variable such as `GPULEDGER_HTTP_LISTEN` sets nothing, and whoever wrote it believes that it does.
fn meant_for(rest: &str) -> Option<String> {
    let (section, key) = rest.split_once('_')?;
    let is_section = SECTIONS.iter().any(|known| section.eq_ignore_ascii_case(known));
    is_section.then(|| format!("{section}__{key}"))
}

/// A provider that says in which file or variable its values stand.
struct Layer<P> {
    place: String,
    provider: P,
}

impl<P: Provider> Provider for Layer<P> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.place.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.provider.data()
    }
}

/// Each fault with its key and where it stands.
fn describe(error: figment::Error) -> ConfigError {
    let faults: Vec<String> = error
        .into_iter()
        .map(|fault| {
            let key = fault.path.join(".");
            let said = match &fault.kind {
                Kind::UnknownField(_, known) => {
                    format!("there is no key {key}; beside it there are {}", known.join(", "))
                }
                Kind::UnknownVariant(found, known) => {
                    format!("{key} is {found:?}, and must be one of {}", known.join(", "))
                }
                kind if key.is_empty() => kind.to_string(),
                kind => format!("{key}: {kind}"),
            };
            match &fault.metadata {
                Some(layer) => format!("{said} (in {})", layer.name),
                None => said,
            }
        })
        .collect();
    ConfigError(faults.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file with this text and these variables.
    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("g.toml");
        std::fs::write(&file, text).unwrap();
        Config::read(Some(&file), variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn refused(text: &str, variables: &[(&str, &str)]) -> String {
        read(text, variables).expect_err("accepted").to_string()
    }

    fn url(config: &Config) -> Option<&str> {
        config.database.url.as_ref().map(ExposeSecret::expose_secret)
    }

    #[test]
    fn every_key_is_documented_with_an_example_that_works() {
        let is_key = |line: &&str| {
            line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
                || line.starts_with('[')
        };
        let examples: Vec<&str> =
            DEFAULTS.lines().map(|line| line.strip_prefix("# ").filter(is_key).unwrap_or(line)).collect();
        let config = read(&examples.join("\n"), &[]).unwrap();
        // every key by name, so that a new one cannot be forgotten here; one that has a default cannot be missing from
        // the text, because defaults come from nowhere else
        let Config { database, http, cluster, session: _, oidc, scheduler: _, agent, log: _, file: _ } = config;
        let Database { url, owner_url, data_dir, connections: _, acquire_timeout: _, statement_timeout: _ } = database;
        assert!(url.is_some() && owner_url.is_some() && data_dir.is_some());
        let Agent { server_url, credential_file, ca_file, simulated, .. } = agent;
        assert!(server_url.is_some() && credential_file.is_some() && ca_file.is_some());
        assert!(simulated.seed.is_some() && oidc["corp"].client_secret.is_some());
        assert!(http.tls_certificate.is_some() && http.tls_key.is_some());
        assert!(cluster.url.is_some() && cluster.ca_file.is_some());
        let commented = DEFAULTS.lines().filter(|line| line.strip_prefix("# ").is_some_and(|l| is_key(&l))).count();
        assert_eq!(commented, 21, "a key without a default that is not looked at above");
    }

    #[test]
    fn the_environment_goes_before_the_file_and_the_file_before_the_defaults() {
        let file = "[http]\nlisten = '0.0.0.0:80'\nin_flight = 7\n[database]\nurl = 'postgres://f'";
        assert_eq!(url(&read(file, &[]).unwrap()), Some("postgres://f"));
        let mut variables = vec![
            ("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0"),
            ("DATABASE_URL", "postgres://e"),
            ("GPULEDGER_TOKEN", "no key"),
        ];
        let config = read(file, &variables).unwrap();
        assert_eq!(config.http.listen.to_string(), "127.0.0.1:0");
        assert_eq!(config.http.in_flight, 7);
        assert_eq!(config.http.timeout, Duration::from_secs(90));
        assert_eq!(url(&config), Some("postgres://e"));
        variables.push(("GPULEDGER_DATABASE__URL", "postgres://g"));
        let config = read(file, &variables).unwrap();
        assert_eq!(url(&config), Some("postgres://g"));
        assert!(!format!("{config:?}").contains("postgres://g"), "a URL can hold a password");
        assert_eq!(url(&read("", &[("DATABASE_URL", "")]).unwrap()), None);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file_or_variable() {
        let message = refused("[http]\nlissten = '127.0.0.1:1'", &[("GPULEDGER_HTTP__IN_FLIGHT", "9")]);
        assert!(
            message.contains("http.lissten") && message.contains("g.toml") && message.contains("listen,"),
            "{message}"
        );
        let message = refused("[web]\na = 1", &[]);
        assert!(message.contains("no key web") && message.contains("g.toml"), "{message}");
        let message = refused("[http]\nin_flight = 1", &[("GPULEDGER_HTTP__LISSTEN", "x")]);
        assert!(message.contains("GPULEDGER_HTTP__LISSTEN") && message.contains("http.lissten"), "{message}");
        let message = refused("", &[("GPULEDGER_HTTP_LISTEN", "127.0.0.1:0")]);
        assert!(message.contains("GPULEDGER_HTTP__LISTEN"), "{message}");
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, key) in [
            ("[http]\ntimeout = '5'", "http.timeout"),
            ("[http]\ntimeout = 5", "http.timeout"),
            ("[http]\nbody_limit = '8MBytes'", "http.body_limit"),
            ("[http]\ntls_key = 'key.pem'", "http.tls_certificate"),
            ("[http]\nstreams = 0", "http.streams"),
            ("[http]\nbody_limit = '8MiB'\nbody_memory = '8MiB'", "http.body_memory"),
            ("[session]\nlifetime = '1m'", "session.lifetime"),
            ("[agent]\nsource = 'rocm'", "agent.source"),
            ("[agent]\nwindow = '7m'", "agent.window"),
            ("[agent]\nwindow = '90s'", "agent.window"),
            ("[database]\nconnections = 0", "database.connections"),
            ("[database]\nurl = 'mysql://h'", "database.url"),
            ("[database]\nurl = 'postgres://h'\nowner_url = 'mysql://h'", "database.owner_url"),
            ("[database]\nowner_url = 'postgres://h'", "database.owner_url"),
        ] {
            let message = refused(text, &[]);
            assert!(message.contains(key), "{message}");
        }
        assert!(refused("[http", &[]).contains("g.toml"));
        let missing = Config::read(Some(Path::new("/nowhere/g.toml")), std::iter::empty());
        assert!(missing.is_err_and(|e| e.0.contains("/nowhere/g.toml")));
    }
}
