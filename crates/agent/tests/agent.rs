//! A whole agent with simulated cards against a server of a few lines.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail like the test itself")]

use agent::{
    AgentSettings, SimulatedGpu, SourceSettings, WindowLength,
    socket::{AgentMessage, ClientMessage},
};
use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_util::sync::CancellationToken;
use types::{
    AllocationId, Bytes, Clock, GpuId, NodeId, PartId, PoolId, ProjectId, TenantId,
    wire::{BatchAck, NodeOrders, NodeReport, PartOrder, ReadingBatch},
};
use uuid::Uuid;

/// What the server heard, and what it orders.
#[derive(Debug, Default)]
struct Ledger {
    reports: Vec<NodeReport>,
    batches: Vec<ReadingBatch>,
    orders: Vec<PartOrder>,
}

type Shared = Arc<Mutex<Ledger>>;

async fn serve(listener: TcpListener, ledger: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(answer(stream, Arc::clone(&ledger)));
    }
}

async fn answer(stream: TcpStream, ledger: Shared) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first).await.unwrap_or(0) == 0 {
            return;
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let answer = ledger.lock().unwrap().answer(&first, &body);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
        let written = stream.write_all(&[head.as_bytes(), &answer].concat()).await;
        if written.is_err() {
            return;
        }
    }
}

impl Ledger {
    fn answer(&mut self, first: &str, body: &[u8]) -> Vec<u8> {
        if first.starts_with("POST /v1/node-reports ") {
            self.reports.push(serde_json::from_slice(body).unwrap());
            return serde_json::to_vec(&NodeOrders {
                node_id: NodeId(Uuid::nil()),
                // a server whose clock is an hour ahead
                server_time: Clock::System.now().plus_secs(3600),
                parts: self.orders.clone(),
                rotate_credential: false,
            })
            .unwrap();
        }
        assert!(first.starts_with("POST /v1/reading-batches "), "{first}");
        let batch: ReadingBatch = serde_json::from_slice(&zstd::decode_all(body).unwrap()).unwrap();
        let sequence = batch.sequence;
        self.batches.push(batch);
        serde_json::to_vec(&BatchAck { sequence, accepted: 1, set_aside: 0, skew_ms: 0 }).unwrap()
    }
}

fn settings(server_url: String, folder: &Path) -> AgentSettings {
    AgentSettings {
        server_url,
        node_id: NodeId(Uuid::from_u128(3)),
        pool_id: PoolId(Uuid::from_u128(4)),
        credential: "secret".to_owned(),
        credential_file: None,
        rotate_every: Duration::from_secs(86_400),
        state_dir: folder.join("state"),
        socket: folder.join("run/agent.sock"),
        ca_file: None,
        // longer than the test: only what asks for an answer at once gets one
        report_interval: Duration::from_secs(60),
        sample_interval: Duration::from_millis(100),
        window: WindowLength::MINUTE,
        source: SourceSettings::Simulated {
            seed: 1,
            gpus: vec![SimulatedGpu {
                model: "NVIDIA L4".parse().unwrap(),
                memory_total: Bytes::gib(24),
                driver_overhead: Bytes::mib(512),
            }],
        },
    }
}

fn order(n: u128) -> PartOrder {
    PartOrder {
        tenant_id: TenantId(Uuid::nil()),
        project_id: ProjectId(Uuid::nil()),
        allocation_id: AllocationId(Uuid::from_u128(n)),
        part_id: PartId(Uuid::from_u128(n)),
        gpu_id: GpuId(Uuid::nil()),
        gpu_uuid: agent::simulated_uuid(1, 0),
        bytes: Bytes::gib(4),
        active_since: Some(Clock::System.now().plus_secs(3600)),
        ends_by: None,
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never came: {what}");
}

/// The program of the bound process below: binds itself, writes the answer to a file, and waits to be ended.
#[test]
#[ignore = "a program that another test starts"]
fn bind_and_wait() {
    use std::io::{BufRead, Write};
    let path = |name| std::env::var_os(name).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(path("AGENT_SOCKET")).unwrap();
    let message = ClientMessage::Bind { allocation_id: AllocationId(Uuid::from_u128(1)) };
    writeln!(stream, "{}", serde_json::to_string(&message).unwrap()).unwrap();
    let mut line = String::new();
    std::io::BufReader::new(&stream).read_line(&mut line).unwrap();
    std::fs::write(path("ANSWER"), line).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Says lines at the socket and returns the answers.
async fn say(socket: &Path, lines: &[String]) -> Vec<AgentMessage> {
    let mut stream = BufReader::new(UnixStream::connect(socket).await.unwrap());
    let mut answers = Vec::new();
    for line in lines {
        stream.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        answers.push(serde_json::from_str(&answer).unwrap());
    }
    answers
}

struct Running {
    ledger: Shared,
    folder: tempfile::TempDir,
    settings: AgentSettings,
    stop: CancellationToken,
    agent: tokio::task::JoinHandle<Result<(), agent::AgentError>>,
}

async fn start() -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ledger = Shared::default();
    tokio::spawn(serve(listener, Arc::clone(&ledger)));
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(url, folder.path());
    let stop = CancellationToken::new();
    let agent = tokio::spawn(agent::run(settings.clone(), Clock::System, stop.clone()));
    let heard = Arc::clone(&ledger);
    until("a first report", || !heard.lock().unwrap().reports.is_empty()).await;
    Running { ledger, folder, settings, stop, agent }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_workload_is_reported_metered_and_reported_ended() {
    let run = start().await;
    let gpus = run.ledger.lock().unwrap().reports[0].gpus.clone();
    assert_eq!(gpus[0].uuid, agent::simulated_uuid(1, 0));

    // an allocation that is younger than the last report: binding asks for it at once
    run.ledger.lock().unwrap().orders = vec![order(1)];
    let answer_file = run.folder.path().join("answer");
    let mut client = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["bind_and_wait", "--exact", "--ignored"])
        .env("AGENT_SOCKET", &run.settings.socket)
        .env("ANSWER", &answer_file)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until("an answer to the process", || std::fs::read_to_string(&answer_file).is_ok_and(|text| text.ends_with('\n')))
        .await;
    let answer = std::fs::read_to_string(&answer_file).unwrap();
    match serde_json::from_str(&answer).unwrap() {
        AgentMessage::Bound { parts } => {
            assert_eq!(parts[0].gpu_uuid, agent::simulated_uuid(1, 0));
        }
        other => panic!("{other:?}"),
    }
    let id = AllocationId(Uuid::from_u128(1));
    until("a report that it lives", || {
        let ledger = run.ledger.lock().unwrap();
        ledger.reports.last().is_some_and(|r| r.alive == [id])
    })
    .await;

    // while it lives, nobody else is bound to it
    let taken =
        say(&run.settings.socket, &[serde_json::to_string(&ClientMessage::Bind { allocation_id: id }).unwrap()]).await;
    assert!(matches!(&taken[0], AgentMessage::Refused { reason } if reason.contains("another process")), "{taken:?}");

    tokio::time::sleep(Duration::from_millis(400)).await;
    let killed_at = Clock::System.now().plus_secs(3600);
    client.kill().await.unwrap();
    until("a report that it ended", || {
        let ledger = run.ledger.lock().unwrap();
        ledger.reports.last().is_some_and(|r| !r.exited.is_empty())
    })
    .await;
    let exit = run.ledger.lock().unwrap().reports.last().unwrap().exited[0].clone();
    assert_eq!(exit.allocation_id, id);
    let off = exit.at.since(killed_at);
    assert!((-200..1_000).contains(&off), "{off} ms");

    run.stop.cancel();
    run.agent.await.unwrap().unwrap();
    let ledger = run.ledger.lock().unwrap();
    let readings: Vec<_> = ledger.batches.iter().flat_map(|b| &b.readings).collect();
    assert!(!readings.is_empty());
    let last = readings.last().unwrap();
    assert_eq!(last.end, exit.at);
    assert!(last.used.is_some());
    // by the server's time, though the host's clock is an hour behind it
    let skew = ledger.batches[0].sent_at.since(killed_at);
    assert!((-1_000..10_000).contains(&skew), "{skew} ms");
    assert!(!run.settings.socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_refuses_what_it_should() {
    let run = start().await;
    let unknown =
        serde_json::to_string(&ClientMessage::Bind { allocation_id: AllocationId(Uuid::from_u128(99)) }).unwrap();
    let answers = say(
        &run.settings.socket,
        &[
            serde_json::to_string(&ClientMessage::Hello {}).unwrap(),
            unknown,
            r#"{"op":"bind","allocation_id":"nonsense"}"#.to_owned(),
            r#"{"op":"hello","pid":1}"#.to_owned(),
            "x".repeat(5_000),
        ],
    )
    .await;
    assert!(matches!(&answers[0], AgentMessage::Hello { node_id, .. } if *node_id == NodeId(Uuid::from_u128(3))));
    for answer in &answers[1..] {
        assert!(matches!(answer, AgentMessage::Refused { .. }), "{answer:?}");
    }

    // a second agent does not take the socket away
    let second = AgentSettings { state_dir: run.folder.path().join("second"), ..run.settings.clone() };
    let error = agent::run(second, Clock::System, run.stop.clone()).await.unwrap_err();
    assert!(matches!(error, agent::AgentError::SocketInUse(_)), "{error}");
    run.stop.cancel();
    run.agent.await.unwrap().unwrap();
}
