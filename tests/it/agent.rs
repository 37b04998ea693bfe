//! A real agent beside the real server, and commands that run under it.

use crate::deployment::{Deployment, Ran, Tenant, ask, change, command, eventually, run, start, text};
use serde_json::{Value, json};
use sqlx::Row;
use std::{
    env, fs,
    fs::File,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};
use support::binary;
use tempfile::TempDir;
use types::{Clock, Instant, StreamId, wire::Reading};

/// A node's agent, in a process of its own. Dropped, it is killed.
pub struct Agent {
    folder: TempDir,
    process: Child,
    more: Vec<(String, String)>,
}

impl Agent {
    /// Joins the pool and starts.
    pub async fn join(deployment: &Deployment, pool: &str, more: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let more: Vec<_> = more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let token = deployment.join_token(pool).await;
        let url = deployment.server.url();
        let join = ["node", "join", "--token", &token, "--server", url, "--hostname", "host", "--machine-id", "host"];
        let environment = environment(folder.path(), &more);
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert!(run(&join, &environment, "").expect(0).contains("joined as node"));
        let again = run(&join, &environment, "").complaint(3);
        assert!(again.contains("401"), "a token is good once: {again}");
        let mode = fs::metadata(folder.path().join("state/credential.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let process = spawn(folder.path(), &more);
        Self { folder, process, more }
    }

    pub fn kill(&mut self) {
        // errors mean that it is gone already
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn start_again(&mut self) {
        self.process = spawn(self.folder.path(), &self.more);
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A second agent on the same state, with another socket, until it ends.
    pub fn another(&self, socket: &str) -> Ran {
        let mut more = self.more.clone();
        more.push(("GPULEDGER_AGENT__SOCKET".to_owned(), self.path(socket)));
        let environment = environment(self.folder.path(), &more);
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        run(&["agent"], &environment, "")
    }

    /// `gpuledger run` on this node.
    fn run(&self, tenant: &RunAs, memory: &str, script: &str) -> Run {
        let path = env::var("PATH").unwrap();
        let environment = [
            ("GPULEDGER_AGENT__SOCKET", &*self.path("agent.sock")),
            ("GPULEDGER_TOKEN", &tenant.token),
            ("PATH", &path),
        ];
        let mut command = command(&["run", "--memory", memory, "--", "sh", "-c", script], &environment);
        command.env("GPULEDGER", binary()).env("FOLDER", self.folder.path()).env("GPULEDGER_SERVER", &tenant.server);
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run(pipes.spawn().unwrap())
    }

    /// What a script wrote into a file of the folder.
    async fn written(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        eventually(&format!("{name} is written"), 30, async || {
            fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')).map(|text| text.trim().to_owned())
        })
        .await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the agent said:\n{}", fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
        }
    }
}

fn environment(folder: &Path, more: &[(String, String)]) -> Vec<(String, String)> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut all = vec![
        ("GPULEDGER_AGENT__STATE_DIR".to_owned(), path("state")),
        ("GPULEDGER_AGENT__SOCKET".to_owned(), path("agent.sock")),
        ("GPULEDGER_AGENT__SOURCE".to_owned(), "simulated".to_owned()),
        ("GPULEDGER_AGENT__SIMULATED__GPUS".to_owned(), "2".to_owned()),
        ("GPULEDGER_AGENT__REPORT_INTERVAL".to_owned(), "500ms".to_owned()),
        ("GPULEDGER_AGENT__SAMPLE_INTERVAL".to_owned(), "200ms".to_owned()),
    ];
    all.extend(more.iter().cloned());
    all
}

fn spawn(folder: &Path, more: &[(String, String)]) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
    let environment = environment(folder, more);
    let environment: Vec<_> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut agent = command(&["agent"], &environment);
    agent.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// Who runs a command.
struct RunAs {
    token: String,
    server: String,
}

async fn member(deployment: &Deployment, tenant: &Tenant) -> RunAs {
    let token = text(&deployment.secret(Some(&tenant.id), "member").await["secret"]);
    RunAs { token, server: deployment.server.url().to_owned() }
}

/// A running `gpuledger run`. Dropped, it is killed.
struct Run(Child);

impl Run {
    async fn status(&mut self) -> ExitStatus {
        eventually("the run ends", 60, async || self.0.try_wait().unwrap()).await
    }

    /// How it ended and what it printed.
    fn ended(mut self) -> (Option<i32>, String, String) {
        let read = |pipe: Option<&mut dyn std::io::Read>| {
            let mut text = String::new();
            pipe.unwrap().read_to_string(&mut text).unwrap();
            text
        };
        let out = read(self.0.stdout.as_mut().map(|pipe| pipe as &mut dyn std::io::Read));
        let err = read(self.0.stderr.as_mut().map(|pipe| pipe as &mut dyn std::io::Read));
        (self.0.wait().unwrap().code(), out, err)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // errors mean that it is gone already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success(), "{pid} is gone already");
}

/// A deployment with an agent whose cards can be had.
async fn with_agent(silence_grace_s: u32, more: &[(&str, &str)]) -> (Deployment, Agent, Tenant) {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(10, silence_grace_s).await;
    let agent = Agent::join(&deployment, &pool, more).await;
    until_ready(&deployment).await;
    let tenant = deployment.tenant("tenant").await;
    (deployment, agent, tenant)
}

async fn until_ready(deployment: &Deployment) -> Vec<Value> {
    eventually("both cards can be had", 30, async || {
        let gpus = deployment.operator.get("/v1/gpus").await;
        let items = gpus.json["items"].as_array().cloned().unwrap_or_default();
        let is_ready = items.len() == 2 && items.iter().all(|gpu| gpu["live"]["service"] == "in_service");
        is_ready.then_some(items)
    })
    .await
}

/// Waits until the node has seen an allocation living for so long.
async fn lives_for(deployment: &Deployment, id: &str, millis: i64) {
    eventually("the node sees it living", 30, async || {
        let allocation = deployment.allocation(id).await;
        let at = |field: &str| allocation[field].as_str().and_then(|text| text.parse::<Instant>().ok());
        (at("last_sign")?.since(at("active_since")?) >= millis).then_some(())
    })
    .await;
}

/// Every reading in the ledger: part, start, end and what was used.
async fn readings(deployment: &Deployment) -> Vec<(String, i64, i64, Option<String>)> {
    let rows = sqlx::query(
        "select part_id::text, (extract(epoch from starts_at) * 1000)::bigint,
            (extract(epoch from ends_at) * 1000)::bigint, used::text from reading order by 1, 2",
    )
    .fetch_all(&mut deployment.owner().await)
    .await
    .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

async fn usage(deployment: &Deployment, tenant: &Tenant) -> Value {
    let now = Clock::System.now();
    let (from, to) = (now.plus_secs(-3600), now.plus_secs(60));
    let path = format!("/v1/usage?tenant_id={}&by=project&from={from}&to={to}", tenant.id);
    deployment.operator.get(&path).await.expect(200)["rows"][0].clone()
}

fn number(value: &Value) -> i128 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_measures_is_in_usage() {
    let (deployment, mut agent, tenant) = with_agent(60, &[]).await;
    let cards = until_ready(&deployment).await;
    for card in &cards {
        assert_eq!(
            (&card["model"], &card["memory_total"]),
            (&json!("NVIDIA H100 80GB HBM3"), &json!(81_559_u64 << 20))
        );
        assert_eq!(card["allocatable"], (81_559_u64 - 614) << 20);
    }
    let id = start(&tenant.member, "one", &json!({"memory": "10GiB", "gpus": 2})).await;
    lives_for(&deployment, &id, 2500).await;
    let released = change(&tenant.member, &id, "release").await.expect(200);
    let used = eventually("readings of both cards arrive", 30, async || {
        let readings = readings(&deployment).await;
        let used: Option<Vec<i128>> = readings.iter().map(|row| row.3.as_ref()?.parse().ok()).collect();
        used.filter(|used| used.len() >= 2).map(|used| used.into_iter().sum::<i128>())
    })
    .await;
    assert!(used > 0);
    let usage = usage(&deployment, &tenant).await;
    assert_eq!(number(&usage["used"]), used, "{usage}");
    let at = |field: &str| text(&released[field]).parse::<Instant>().unwrap();
    let lived_ms = i128::from(at("ended_at").since(at("active_since")));
    assert_eq!(number(&usage["reserved"]), lived_ms * 2 * 10 * (1 << 30), "{usage}");
    assert_eq!(deployment.operator.get("/v1/set-aside").await.expect(200)["items"], json!([]));
    // asked to end, the agent hands in what it has and leaves no socket
    signal("-TERM", &agent.process.id().to_string());
    let status = eventually("the agent ends", 20, async || agent.process.try_wait().unwrap()).await;
    assert!(status.success() && !agent.folder.path().join("agent.sock").exists());
}

/// The readings in an agent's spool, read from a copy.
fn spooled(agent: &Agent) -> Vec<Reading> {
    let spools = agent.folder.path().join("state/spool");
    let spool = fs::read_dir(&spools).unwrap().flatten().next().unwrap().path();
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(&spool).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let folder = copy.path().join(spool.file_name().unwrap());
    let stream = StreamId::new(Clock::System.now(), [1; 10]);
    let mut spool = ::agent::spool::Spool::open(&folder, stream, 1 << 30).unwrap();
    let mut readings = Vec::new();
    while let Some(batch) = spool.front().unwrap() {
        readings.extend(batch.readings);
        spool.acknowledge(batch.sequence).unwrap();
    }
    readings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reading_is_lost_or_doubled_when_server_and_agent_are_killed() {
    let (mut deployment, mut agent, tenant) = with_agent(60, &[]).await;
    let member = member(&deployment, &tenant).await;
    let wait = "echo $GPULEDGER_ALLOCATION_ID > $FOLDER/$0.id; while [ ! -e $FOLDER/end ]; do sleep 0.05; done";
    let mut runs: Vec<Run> =
        (0..3).map(|n| agent.run(&member, "5GiB", &wait.replace("$0", &format!("run{n}")))).collect();
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(agent.written(&format!("run{n}.id")).await);
    }
    for id in &ids {
        lives_for(&deployment, id, 1500).await;
    }
    let before = readings(&deployment).await;
    // the commands end while nobody hears of it: their readings go to the disk
    deployment.server.kill();
    fs::write(agent.folder.path().join("end"), "").unwrap();
    let kept = eventually("the readings of all three are on disk", 30, async || {
        let kept = spooled(&agent);
        (kept.len() >= 3).then_some(kept)
    })
    .await;
    agent.kill();
    assert_eq!(spooled(&agent), kept);
    deployment.start_again().await;
    agent.start_again();
    let arrived = eventually("all of them arrive", 60, async || {
        let readings = readings(&deployment).await;
        (readings.len() >= before.len() + kept.len()).then_some(readings)
    })
    .await;
    for reading in &kept {
        let part = reading.part_id.to_string();
        let same: Vec<_> = arrived.iter().filter(|row| row.0 == part && row.1 == reading.start.as_millis()).collect();
        assert_eq!(same.len(), 1, "{reading:?}: {arrived:?}");
        assert_eq!(same[0].2, reading.end.as_millis());
        assert_eq!(same[0].3, reading.used.map(|used| used.to_string()));
    }
    // whoever ran them gives the memory back by itself
    for run in &mut runs {
        assert!(run.status().await.success());
    }
    for id in &ids {
        deployment.until(id, "released", 30).await;
    }
    // once more, in the middle of everything: what is uploaded twice counts once
    agent.kill();
    agent.start_again();
    until_ready(&deployment).await;
    let all = readings(&deployment).await;
    for pair in all.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "two readings of one time: {pair:?}");
    }
    let sum: i128 = all.iter().map(|row| row.3.as_ref().map_or(0, |used| used.parse::<i128>().unwrap())).sum();
    assert_eq!(number(&usage(&deployment, &tenant).await["used"]), sum);
    assert_eq!(deployment.operator.get("/v1/set-aside").await.expect(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_with_memory_that_is_confirmed_before_and_released_after() {
    let (deployment, agent, tenant) = with_agent(10, &[]).await;
    let member = member(&deployment, &tenant).await;
    // the first thing that the command does is to look at its own allocation
    let script =
        "\"$GPULEDGER\" show \"$GPULEDGER_ALLOCATION_ID\" --json; echo; echo \"$CUDA_VISIBLE_DEVICES\"; exit 7";
    let (code, out, err) = agent.run(&member, "20GiB", script).ended();
    assert_eq!(code, Some(7), "{out}{err}");
    let (shown, devices) = out.trim().rsplit_once('\n').unwrap();
    let shown: Value = serde_json::from_str(shown).unwrap();
    assert_eq!((&shown["state"], &shown["cause"]), (&json!("active"), &json!("confirmed")), "{shown}");
    assert_eq!(shown["environment"]["CUDA_VISIBLE_DEVICES"], devices);
    assert_eq!(shown["parts"][0]["gpu_uuid"], devices);
    let id = text(&shown["allocation_id"]);
    let released = deployment.until(&id, "released", 10).await;
    assert!(["owner", "exited"].contains(&released["cause"].as_str().unwrap()), "{released}");

    let missing = command(&["run", "--memory", "1GiB", "--", "no-such-command"], &[]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    let (code, _, err) = agent.run(&member, "500GiB", "true").ended();
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("memory must be at most"), "{err}");
    assert_eq!(tenant.viewer.get("/v1/allocations").await.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_end_of_a_command_its_memory_is_released() {
    let (deployment, agent, tenant) = with_agent(10, &[]).await;
    let member = member(&deployment, &tenant).await;
    let script = |name: &str| {
        format!("echo $$ > $FOLDER/{name}.pid; echo $GPULEDGER_ALLOCATION_ID > $FOLDER/{name}.id; exec sleep 300")
    };

    // a signal to the run reaches the command, and is told
    let mut asked = agent.run(&member, "1GiB", &script("asked"));
    let id = agent.written("asked.id").await;
    signal("-TERM", &asked.0.id().to_string());
    assert_eq!(asked.status().await.code(), Some(143));
    deployment.until(&id, "released", 10).await;

    // one that handles it ends as it wants to
    let trap =
        "trap 'echo caught > $FOLDER/caught; exit 3' TERM; echo > $FOLDER/trapping; while :; do sleep 0.05; done";
    let mut trapping = agent.run(&member, "1GiB", trap);
    agent.written("trapping").await;
    signal("-TERM", &trapping.0.id().to_string());
    assert_eq!(trapping.status().await.code(), Some(3));
    assert_eq!(agent.written("caught").await, "caught");

    // the command is killed
    let mut killed = agent.run(&member, "1GiB", &script("killed"));
    let id = agent.written("killed.id").await;
    signal("-KILL", &agent.written("killed.pid").await);
    assert_eq!(killed.status().await.code(), Some(137));
    deployment.until(&id, "released", 10).await;

    // the run itself is killed: the command lives on, and the agent reports its end
    let mut orphaning = agent.run(&member, "1GiB", &script("orphan"));
    let id = agent.written("orphan.id").await;
    orphaning.0.kill().unwrap();
    orphaning.0.wait().unwrap();
    lives_for(&deployment, &id, 1500).await;
    assert_eq!(deployment.allocation(&id).await["state"], "active");
    signal("-KILL", &agent.written("orphan.pid").await);
    let released = deployment.until(&id, "released", 15).await;
    assert_eq!(released["cause"], "exited", "{released}");

    // nothing stays behind
    let quota = tenant.viewer.get("/v1/quotas").await.expect(200);
    assert_eq!(quota["items"][0]["used_bytes"], 0, "{quota}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_of_a_node_stops_its_meters_and_its_return_attests_what_lived_on() {
    let (deployment, mut agent, tenant) = with_agent(2, &[]).await;
    let id = start(&tenant.member, "one", &json!({"memory": "10GiB"})).await;
    lives_for(&deployment, &id, 1000).await;
    agent.kill();
    let silent = eventually("the meter stands still", 20, async || {
        let allocation = deployment.allocation(&id).await;
        (!allocation["unconfirmed_since"].is_null()).then_some(allocation)
    })
    .await;
    assert_eq!((&silent["state"], &silent["cause"]), (&json!("active"), &json!("node_silent")));
    let waits = ask(&tenant.member, "two", &json!({"memory": "1GiB"})).await.expect(202);
    assert_eq!(waits["state"], "queued");
    agent.start_again();
    eventually("the node attests", 30, async || {
        let allocation = deployment.allocation(&id).await;
        (allocation["cause"] == "attested" && allocation["unconfirmed_since"].is_null()).then_some(())
    })
    .await;
    deployment.until(&text(&waits["allocation_id"]), "held", 20).await;
    change(&tenant.member, &id, "release").await.expect(200);
    let history = tenant.viewer.get(&format!("/v1/allocations/{id}/history")).await.expect(200);
    let intervals = history["intervals"].as_array().unwrap();
    assert!(intervals.iter().any(|interval| interval["attested"] == true), "{intervals:?}");
    for pair in intervals.windows(2) {
        assert_eq!(pair[0]["span"]["end"], pair[1]["span"]["start"], "{intervals:?}");
    }
}

const CARDS: [&str; 2] = ["GPU-3f1c0a52-7d41-4b8e-9a60-1e5d2c7b9f01", "GPU-8a94d7e3-20b6-4f15-b3c8-6d0e41a27f02"];

/// A program that prints what the driver's would: two files of a folder.
fn driver(folder: &Path) {
    let script = "#!/bin/sh\nfolder=${0%/*}\ncase $1 in\n--query-gpu=*) cat \"$folder/gpus.csv\" ;;\n\
        --query-compute-apps=*) cat \"$folder/apps.csv\" ;;\n*) exit 2 ;;\nesac\n";
    fs::write(folder.join("nvidia-smi"), script).unwrap();
    fs::set_permissions(folder.join("nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
    let rows: String =
        CARDS.iter().map(|card| format!("{card}, NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 0 MiB\n")).collect();
    let head = "uuid, name, memory.total [MiB], memory.reserved [MiB], memory.used [MiB]\n";
    fs::write(folder.join("gpus.csv"), format!("{head}{rows}")).unwrap();
    apps(folder, "");
}

/// The processes that the driver lists.
fn apps(folder: &Path, rows: &str) {
    let text = format!("gpu_uuid, pid, used_gpu_memory [MiB]\n{rows}");
    fs::write(folder.join("apps.new"), text).unwrap();
    fs::rename(folder.join("apps.new"), folder.join("apps.csv")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_driver_lists_is_attributed_to_the_command_that_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    driver(folder.path());
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let (deployment, agent, tenant) =
        with_agent(60, &[("GPULEDGER_AGENT__SOURCE", "nvidia-smi"), ("PATH", &path)]).await;
    let cards = until_ready(&deployment).await;
    let mut uuids: Vec<&str> = cards.iter().map(|card| card["gpu_uuid"].as_str().unwrap()).collect();
    uuids.sort_unstable();
    assert_eq!(uuids, CARDS);
    assert!(cards.iter().all(|card| card["driver_overhead"] == 551_u64 << 20), "{cards:?}");

    let member = member(&deployment, &tenant).await;
    // a child of the command is the one that uses the card
    let script = "echo $GPULEDGER_ALLOCATION_ID > $FOLDER/id; echo $CUDA_VISIBLE_DEVICES > $FOLDER/card; \
        sleep 300 & echo $! > $FOLDER/pid; while [ ! -e $FOLDER/end ]; do sleep 0.05; done; kill $!";
    let mut running = agent.run(&member, "4GiB", script);
    let (id, card, pid) = (agent.written("id").await, agent.written("card").await, agent.written("pid").await);
    // a stranger on the same card is nobody's use
    apps(folder.path(), &format!("{card}, {pid}, 2048 MiB\n{card}, 1, 8192 MiB\n"));
    lives_for(&deployment, &id, 3000).await;
    fs::write(agent.folder.path().join("end"), "").unwrap();
    assert!(running.status().await.success());
    deployment.until(&id, "released", 10).await;
    let rows = eventually("the reading arrives", 30, async || {
        let rows = sqlx::query("select used::text, peak, quality, covered_ms from reading order by starts_at")
            .fetch_all(&mut deployment.owner().await)
            .await
            .unwrap();
        (!rows.is_empty()).then_some(rows)
    })
    .await;
    // in a namespace of its own the agent cannot know whose processes the driver lists, and says so
    let sees_processes = fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]");
    for row in rows {
        let (used, peak, quality): (Option<String>, Option<i64>, String) = (row.get(0), row.get(1), row.get(2));
        if sees_processes {
            assert_eq!((peak, quality.as_str()), (Some(2048 << 20), "measured"));
            let covered: i32 = row.get(3);
            let used: i128 = used.unwrap().parse().unwrap();
            assert!(used > 0 && used <= i128::from(covered) * (2048 << 20), "{used} in {covered} ms");
        } else {
            assert_eq!((used, peak, quality.as_str()), (None, None, "unknown"));
        }
    }
}
