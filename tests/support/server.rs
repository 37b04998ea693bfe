//! The real server: the binary `gpuledger serve`, in a process of its own.

use crate::{Client, Database};
use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long an orderly stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// What the server prints once it can be reached.
const LISTENING: &str = "listening on ";

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A running server. Dropping it kills it; its log is kept when the test fails.
#[derive(Debug)]
pub struct Server {
    process: Child,
    url: String,
    log: PathBuf,
    /// Whom its clients trust, where it speaks TLS.
    ca_file: Option<PathBuf>,
}

/// The variable by which a test tells whom the clients of a server trust.
pub const CA_FILE: &str = "GPULEDGER_CA_FILE";

impl Server {
    /// Starts one on a database, on a free port, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready; the message has the end of its log.
    pub async fn start(database: &Database) -> Self {
        Self::start_with(database, &[]).await
    }

    /// The same with further configuration, as environment variables.
    ///
    /// # Panics
    /// When it does not become ready; the message has the end of its log.
    pub async fn start_with(database: &Database, configuration: &[(&str, &str)]) -> Self {
        Self::start_on(database.url(), configuration).await
    }

    /// The same on any Postgres.
    ///
    /// # Panics
    /// When it does not become ready; the message has the end of its log.
    pub async fn start_on(database_url: &str, configuration: &[(&str, &str)]) -> Self {
        let log = env::temp_dir().join(format!(
            "gpuledger-test-{}-{}.log",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        let process = match spawn(&log, database_url, configuration) {
            Ok(process) => process,
            Err(error) => panic!("{}: {error}", binary().display()),
        };
        let ca_file = configuration.iter().find(|(name, _)| *name == CA_FILE).map(|(_, file)| PathBuf::from(file));
        let mut server = Self { process, url: String::new(), log, ca_file };
        let since = Instant::now();
        server.url = server.wait_for(since, "to listen", address_in).await;
        let client = server.client();
        loop {
            let ready = client.request(reqwest::Method::GET, "/readyz").send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return server;
            }
            server.wait_for(since, "to be ready", |_| Some(String::new())).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Such as `http://127.0.0.1:41234`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of it without a credential.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::trusting(&self.url, self.ca_file.as_deref())
    }

    /// Everything it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it as a crash would, by `SIGKILL`.
    pub fn kill(&mut self) {
        // errors mean that it is gone already
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Asks it to end, by `SIGTERM`, and waits until it has.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn stop(&mut self) -> ExitStatus {
        let asked = Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(asked.is_ok_and(|status| status.success()), "it is gone already: {}", self.tail());
        let since = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) if since.elapsed() < STOP_LIMIT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => panic!("it does not end ({other:?}): {}", self.tail()),
            }
        }
    }

    /// Waits until something is found in the log.
    async fn wait_for(&mut self, since: Instant, what: &str, find: impl Fn(&str) -> Option<String>) -> String {
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                panic!("the server ended ({status}) when it had {what}:\n{}", self.tail());
            }
            if let Some(found) = find(&self.log()) {
                return found;
            }
            assert!(since.elapsed() < START_LIMIT, "the server took too long {what}:\n{}", self.tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the server's log is {}; its end:\n{}", self.log.display(), self.tail());
        } else {
            // a log that stays is a leftover in a folder for temporary files
            let _ = fs::remove_file(&self.log);
        }
    }
}

fn spawn(log: &Path, database_url: &str, configuration: &[(&str, &str)]) -> std::io::Result<Child> {
    let file = File::create(log)?;
    Command::new(binary())
        .arg("serve")
        .env("DATABASE_URL", database_url)
        .env("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0")
        .envs(configuration.iter().copied())
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
}

/// The binary that `cargo xtask test` built: beside the folder of the running test's own.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(given) = env::var_os("GPULEDGER_BIN") {
        return PathBuf::from(given);
    }
    let test = env::current_exe().unwrap_or_default();
    let binary = test.ancestors().nth(2).unwrap_or(&test).join("gpuledger");
    assert!(binary.is_file(), "{} is missing: `cargo xtask test` builds it first", binary.display());
    binary
}

/// From the whole line `listening on http://127.0.0.1:41234` to its address.
fn address_in(log: &str) -> Option<String> {
    let (complete, _) = log.rsplit_once('\n')?;
    complete.lines().find_map(|line| line.split_once(LISTENING)).map(|(_, address)| address.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_taken_from_a_whole_line_only() {
        assert_eq!(address_in("listening on http://127.0.0.1:41"), None);
        let log = "starting\nlistening on http://127.0.0.1:41234\nready\n";
        assert_eq!(address_in(log).as_deref(), Some("http://127.0.0.1:41234"));
    }
}
