//! The processes of one run: servers, an agent, Postgres; each can be killed and started again where it was.

use crate::{plan::Plan, postmaster::Postmaster};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    env, fs,
    fs::File,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};
use support::{Client, binary};
use types::Clock;

const OPERATOR: &str = "operator@example.com";
const PASSWORD: &str = "a password of campaigns";
/// Moves the clock of a binary that was built for tests.
const CLOCK: &str = "GPULEDGER_TEST_CLOCK_MS";
/// Below the ports that the system gives to outgoing connections, which could take one while its server is dead.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A database with the schema, an operator and a key of theirs, to be copied by each run.
#[derive(Debug)]
pub struct Template {
    pub folder: PathBuf,
    pub operator_key: String,
}

impl Template {
    pub async fn make(base: &Path) -> Self {
        let folder = base.join("template");
        let mut postgres = Postmaster::start(&folder, free_port()).await;
        let init = ["admin", "init", "--email", OPERATOR, "--name", "Operator", "--password-stdin"];
        let mut command = command(&init, &[("DATABASE_URL", postgres.url().to_owned())]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(PASSWORD.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "there is no operator");
        let mut server = support::Server::start_on(postgres.url(), &[]).await;
        let login = json!({"email": OPERATOR, "password": PASSWORD});
        let session = server.client().post("/v1/login", &login).await.expect(200);
        let operator = server.client().with(session["token"].as_str().unwrap());
        let key = json!({"name": "campaign", "role": "operator"});
        let operator_key = text(&operator.post("/v1/keys", &key).await.expect(201)["secret"]);
        server.stop().await;
        drop(server);
        postgres.stop().await;
        Self { folder, operator_key }
    }

    fn copy_to(&self, folder: &Path) {
        let copied = Command::new("cp").arg("-a").arg(&self.folder).arg(folder).status().unwrap();
        assert!(copied.success(), "the template cannot be copied to {}", folder.display());
    }
}

/// The processes of a run.
#[derive(Debug)]
pub struct Installation {
    pub folder: PathBuf,
    pub postgres: Postmaster,
    servers: Vec<Process>,
    agent: Option<Process>,
    pub urls: Vec<String>,
    /// Added to the machine's clock by every process of the run.
    moved_ms: Arc<AtomicI64>,
}

/// A process that is started again with the same command.
#[derive(Debug)]
struct Process {
    name: String,
    args: Vec<String>,
    environment: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl Installation {
    /// Postgres and the servers of a run, on a copy of the template.
    pub async fn start(folder: &Path, template: &Template, plan: &Plan, moved_ms: Arc<AtomicI64>) -> Self {
        fs::create_dir_all(folder).unwrap();
        template.copy_to(&folder.join("postgres"));
        let postgres = Postmaster::start(&folder.join("postgres"), free_port()).await;
        let mut urls = Vec::new();
        let mut servers = Vec::new();
        for n in 0..plan.servers {
            let address = format!("127.0.0.1:{}", free_port());
            urls.push(format!("http://{address}"));
            let environment = vec![
                ("DATABASE_URL", postgres.url().to_owned()),
                ("GPULEDGER_HTTP__LISTEN", address),
                ("GPULEDGER_SCHEDULER__LEASE", "1s".to_owned()),
                ("GPULEDGER_SCHEDULER__TICK", "100ms".to_owned()),
                ("GPULEDGER_SCHEDULER__TASKS", "1s".to_owned()),
                ("GPULEDGER_DATABASE__ACQUIRE_TIMEOUT", "2s".to_owned()),
                ("GPULEDGER_DATABASE__CONNECTIONS", "8".to_owned()),
                ("GPULEDGER_LOG__FILTER", "info".to_owned()),
            ];
            servers.push(Process {
                name: format!("server-{n}"),
                args: vec!["serve".to_owned()],
                environment,
                child: None,
            });
        }
        let folder = folder.to_owned();
        let mut installation = Self { folder, postgres, servers, agent: None, urls, moved_ms };
        for n in 0..plan.servers {
            installation.start_server(n);
        }
        installation
    }

    pub fn start_server(&mut self, n: usize) {
        let (folder, moved) = (self.folder.clone(), self.moved_ms.load(Ordering::SeqCst));
        self.servers[n].start(&folder, moved);
    }

    pub fn kill_server(&mut self, n: usize) {
        self.servers[n].kill();
    }

    /// Joins a host with real, simulated cards and starts its agent.
    pub fn join_agent(&mut self, token: &str) {
        let state = self.folder.join("agent");
        let path = |name: &str| state.join(name).to_str().unwrap().to_owned();
        let environment = vec![
            ("GPULEDGER_AGENT__STATE_DIR", path("state")),
            ("GPULEDGER_AGENT__SOCKET", path("agent.sock")),
            ("GPULEDGER_AGENT__SOURCE", "simulated".to_owned()),
            ("GPULEDGER_AGENT__SIMULATED__GPUS", "2".to_owned()),
            ("GPULEDGER_AGENT__REPORT_INTERVAL", "500ms".to_owned()),
            ("GPULEDGER_AGENT__SAMPLE_INTERVAL", "100ms".to_owned()),
        ];
        let server = self.urls[0].as_str();
        let args =
            ["node", "join", "--token", token, "--server", server, "--hostname", "agent", "--machine-id", "agent"];
        let joined = command(&args, &environment).output().unwrap();
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
        self.agent =
            Some(Process { name: "agent".to_owned(), args: vec!["agent".to_owned()], environment, child: None });
        self.start_agent();
    }

    pub fn start_agent(&mut self) {
        let (folder, moved) = (self.folder.clone(), self.moved_ms.load(Ordering::SeqCst));
        if let Some(agent) = &mut self.agent {
            agent.start(&folder, moved);
        }
    }

    pub fn kill_agent(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.kill();
        }
    }

    /// The agent's own folder.
    pub fn agent_state(&self) -> PathBuf {
        self.folder.join("agent/state")
    }

    /// Everything dies, and is started again when it is another time: `to` in milliseconds, if given. Hosts have
    /// booted since, so that the agent's anchor in the former time means nothing.
    pub async fn lose_power(&mut self, to: Option<i64>) {
        for server in &mut self.servers {
            server.kill();
        }
        self.kill_agent();
        self.postgres.kill().await;
        if let Some(to) = to {
            self.moved_ms.store(to - Clock::System.now().as_millis(), Ordering::SeqCst);
            // an error means that the agent had no time yet
            let _ = fs::remove_file(self.agent_state().join("clock.json"));
        }
    }

    pub async fn start_all(&mut self) {
        self.postgres.start_again().await;
        for n in 0..self.servers.len() {
            self.start_server(n);
        }
        self.start_agent();
    }

    /// Asks the agent to end, and waits until it has: its exit status.
    pub async fn stop_agent(&mut self) -> Option<i32> {
        let child = self.agent.as_mut()?.child.as_mut()?;
        let asked = Command::new("kill").arg(child.id().to_string()).status();
        assert!(asked.unwrap().success(), "the agent is gone already");
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(20) {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// What a process has said over all its lives.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The names of all processes with a log.
    pub fn names(&self) -> Vec<String> {
        self.servers.iter().chain(&self.agent).map(|process| process.name.clone()).collect()
    }

    /// A command of the binary on this database at the world's time: its exit status, and its output or what it
    /// complained of instead.
    pub fn ask(&self, args: &[&str]) -> (Option<i32>, String) {
        let environment = [
            ("DATABASE_URL", self.postgres.url().to_owned()),
            (CLOCK, self.moved_ms.load(Ordering::SeqCst).to_string()),
            ("GPULEDGER_LOG__FILTER", "error".to_owned()),
        ];
        let output = command(args, &environment).output().unwrap();
        let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }

    pub async fn end(&mut self) {
        for server in &mut self.servers {
            server.kill();
        }
        self.kill_agent();
        self.postgres.kill().await;
    }

    pub fn client(&self) -> Client {
        Client::new(&self.urls[0])
    }

    /// Whether every server is ready.
    pub async fn is_ready(&self) -> bool {
        for url in &self.urls {
            let answer = Client::new(url).request(Method::GET, "/readyz").send().await;
            if !answer.is_ok_and(|answer| answer.status().is_success()) {
                return false;
            }
        }
        true
    }
}

impl Process {
    fn start(&mut self, folder: &Path, moved_ms: i64) {
        if self.child.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(folder.join(format!("{}.log", self.name))).unwrap();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let mut command = command(&args, &self.environment);
        command.env(CLOCK, moved_ms.to_string()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // errors mean that it is gone already
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command(args: &[&str], environment: &[(&'static str, String)]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
    command.envs(environment.iter().map(|(name, value)| (*name, value)));
    command
}

/// One that nobody else in this process was given.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let first = u16::try_from(std::process::id() % u32::from(span)).unwrap();
    loop {
        let port = PORTS.start + first.wrapping_add(NEXT.fetch_add(1, Ordering::SeqCst)) % span;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Removes a folder that is no longer needed.
pub fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("{} is left over: {error}", folder.display());
    }
}

/// The text of a field that must be one.
#[track_caller]
pub fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => panic!("{value} is no text"),
    }
}
