//! What server and agent take of a machine on which nothing happens.

use crate::{
    Outcome, Settings,
    deployment::Deployment,
    postgres_server::PostgresServer,
    process::{cpu, resident_mib, together_mib},
    row::Row,
};
use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use support::binary;
use tempfile::TempDir;
use tokio::time::sleep;

const BENCH: &str = "idle";
/// What the agent is measured by: Prometheus' node-exporter 1.5.0, which was not run beside it but on a machine like
/// ours, scraped every 15 s.
const EXPORTER: &str = "node-exporter 1.5.0";
const EXPORTER_MIB: f64 = 19.9;
const EXPORTER_CPU: f64 = 0.06;

/// An agent with eight invented cards. Dropped, it is killed.
struct Agent {
    process: Child,
    _folder: TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // errors mean that it is gone already
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub async fn run(settings: Settings) -> Outcome<Vec<Row>> {
    let postgres = PostgresServer::start(settings.quick).await?;
    let (settle, watch) = settings.size((1, 1), (15, 20));
    let watch = Duration::from_secs(watch);
    let alone = [share(postgres.pid()?, watch).await?];
    let deployment = Deployment::start(postgres.create("idle", None).await?).await?;
    let agent = agent(&deployment).await?;
    sleep(Duration::from_secs(settle)).await;
    let mut found: [Vec<f64>; 6] = Default::default();
    for _ in 0..settings.turns {
        let (server, agent, postgres) = (deployment.pid(), agent.process.id(), postgres.pid()?);
        let shares = tokio::try_join!(share(server, watch), share(agent, watch), share(postgres, watch))?;
        let memory = (resident_mib(server)?, resident_mib(agent)?, together_mib(postgres)?);
        let figures = [memory.0, shares.0, memory.1, shares.1, memory.2, shares.2];
        found.iter_mut().zip(figures).for_each(|(turns, figure)| turns.push(figure));
    }
    let [server_mib, server_cpu, agent_mib, agent_cpu, postgres_mib, postgres_cpu] = found;
    let fixed = |value: f64| vec![value; settings.turns];
    Ok(vec![
        Row::new(BENCH, "server, memory", "MiB", &server_mib).beside("PostgreSQL with it", &server_mib, &postgres_mib),
        Row::new(BENCH, "server, of one core", "%", &server_cpu),
        Row::new(BENCH, "PostgreSQL with the server, of one core", "%", &postgres_cpu).beside(
            "without it",
            &postgres_cpu,
            &fixed(alone[0]),
        ),
        Row::new(BENCH, "agent, memory", "MiB", &agent_mib).beside(EXPORTER, &agent_mib, &fixed(EXPORTER_MIB)),
        Row::new(BENCH, "agent, of one core", "%", &agent_cpu).beside(EXPORTER, &agent_cpu, &fixed(EXPORTER_CPU)),
    ])
}

/// The share of one core that a process and its children take, in per cent.
async fn share(pid: u32, watch: Duration) -> Outcome<f64> {
    let (before, since) = (cpu(pid)?, Instant::now());
    sleep(watch).await;
    Ok((cpu(pid)?.as_secs_f64() - before.as_secs_f64()) / since.elapsed().as_secs_f64() * 100.0)
}

/// An agent as it comes, but for where its cards are from.
async fn agent(deployment: &Deployment) -> Outcome<Agent> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let token = deployment.join_token(&deployment.pool().await?).await?;
    let join = ["node", "join", "--token", &token, "--server", deployment.url(), "--hostname", "host"];
    let mut join = command(&join, folder.path())?;
    let joined = join.args(["--machine-id", "host"]).status().map_err(|e| e.to_string())?;
    if !joined.success() {
        return Err(format!("gpuledger node join: {joined}"));
    }
    let process = command(&["agent"], folder.path())?.spawn().map_err(|e| e.to_string())?;
    Ok(Agent { process, _folder: folder })
}

fn command(args: &[&str], folder: &Path) -> Outcome<Command> {
    let log = File::options().create(true).append(true).open(folder.join("log")).map_err(|e| e.to_string())?;
    let mut command = Command::new(binary());
    command
        .args(args)
        .env("GPULEDGER_AGENT__STATE_DIR", folder.join("state"))
        .env("GPULEDGER_AGENT__SOCKET", folder.join("agent.sock"))
        .env("GPULEDGER_AGENT__SOURCE", "simulated")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|e| e.to_string())?)
        .stderr(log);
    Ok(command)
}
