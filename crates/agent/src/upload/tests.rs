//! The uploader against a server of a few lines, which answers as it is told.

use super::*;
use crate::{node::Node, node_clock::NodeClock, spool::Spool, state::StateDir};
use std::{path::Path, sync::Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{Notify, watch},
};
use types::{
    Bytes, Clock, Instant, PartId, RunId, StreamId,
    wire::{AgentRun, Quality, Reading},
};
use uuid::Uuid;

fn readings(n: u128) -> Vec<Reading> {
    vec![Reading {
        part_id: PartId(Uuid::from_u128(n)),
        start: Instant::EPOCH,
        end: Instant::EPOCH.plus_secs(60),
        granted: Bytes(1),
        used: None,
        above: None,
        peak: None,
        covered_ms: 0,
        quality: Quality::Unknown,
    }]
}

fn shared(folder: &Path) -> Arc<Shared> {
    let state = StateDir::open(folder.to_owned()).unwrap();
    let boot = "boot".parse().unwrap();
    let clock = NodeClock::open(Clock::standing_at(Instant::EPOCH), &boot, &state);
    let stream = StreamId(Uuid::from_u128(1));
    Arc::new(Shared {
        node: Mutex::new(Node::new(boot, false, crate::WindowLength::MINUTE, 1)),
        spool: Mutex::new(Spool::open(&state.path("spool"), stream, 1 << 20).unwrap()),
        clock,
        state,
        run: AgentRun { run_id: RunId(Uuid::nil()), follows: None, report_interval_ms: 1000 },
        spooling: tokio::sync::Mutex::new(()),
        rotate_now: Notify::new(),
        report_now: Notify::new(),
        sample_now: Notify::new(),
        upload_now: Notify::new(),
        orders_seen: watch::Sender::new(0),
        heard: std::sync::atomic::AtomicBool::new(false),
    })
}

/// Answers one request after the other and returns the batches that came.
async fn serve(listener: TcpListener, answers: Vec<(u16, String)>) -> Vec<ReadingBatch> {
    let mut batches = Vec::new();
    for (status, body) in answers {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        let (head, length) = loop {
            let mut chunk = [0; 4096];
            let n = stream.read(&mut chunk).await.unwrap();
            request.extend_from_slice(&chunk[..n]);
            if let Some(end) = request.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(request[..end].to_vec()).unwrap().to_ascii_lowercase();
                let length: usize =
                    head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap().parse().unwrap();
                break (head, end + 4 + length);
            }
        };
        while request.len() < length {
            let mut chunk = [0; 4096];
            let n = stream.read(&mut chunk).await.unwrap();
            request.extend_from_slice(&chunk[..n]);
        }
        assert!(head.starts_with("post /v1/reading-batches "), "{head}");
        assert!(head.contains("content-encoding: zstd"), "{head}");
        assert!(head.contains("authorization: bearer secret"), "{head}");
        let start = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let json = zstd::decode_all(&request[start..]).unwrap();
        batches.push(serde_json::from_slice(&json).unwrap());
        let answer =
            format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    batches
}

fn ack(sequence: u64) -> (u16, String) {
    let ack = BatchAck { sequence, accepted: 1, set_aside: 0, skew_ms: 0 };
    (200, serde_json::to_string(&ack).unwrap())
}

/// Settles the front batch against each answer in turn; the batches that the server saw, and what came of each.
async fn settle(shared: &Shared, answers: Vec<(u16, String)>) -> (Vec<ReadingBatch>, Vec<Result<(), Unsettled>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = ServerClient::new(&url, None).unwrap().with_credential("secret");
    let times = answers.len();
    let server = tokio::spawn(serve(listener, answers));
    let mut results = Vec::new();
    for _ in 0..times {
        results.push(settle_front(shared, &client).await);
    }
    (server.await.unwrap(), results)
}

#[tokio::test]
async fn an_acknowledged_batch_is_deleted_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(folder.path());
    shared.spool().append(&readings(1)).unwrap();
    shared.spool().append(&readings(2)).unwrap();
    let (seen, results) = settle(&shared, vec![ack(1)]).await;
    assert!(results[0].is_ok());
    assert_eq!((seen[0].sequence, &seen[0].readings), (1, &readings(1)));
    assert_eq!(shared.spool().front().unwrap().unwrap().sequence, 2);
}

/// cf-abacus 434: a retry is the same batch under the same sequence, whatever became of the first try.
#[tokio::test]
async fn a_failed_upload_is_repeated_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(folder.path());
    shared.spool().append(&readings(1)).unwrap();
    let answers = [503, 500, 401, 403, 404, 429, 302]
        .map(|status| (status, String::new()))
        .into_iter()
        // a proxy's page is no acknowledgement
        .chain([(200, "<html>".to_owned()), ack(1)])
        .collect();
    let (seen, results) = settle(&shared, answers).await;
    let (last, failures) = results.split_last().unwrap();
    assert!(last.is_ok());
    assert!(failures.iter().all(Result::is_err));
    assert!(seen.iter().all(|batch| *batch == seen[0]));
    assert!(shared.spool().is_empty());
}

#[tokio::test]
async fn a_refused_batch_is_kept_aside_and_the_next_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(folder.path());
    shared.spool().append(&readings(1)).unwrap();
    shared.spool().append(&readings(2)).unwrap();
    let problem = r#"{"title":"malformed","detail":"no such part"}"#.to_owned();
    let (seen, results) = settle(&shared, vec![(422, problem), ack(1)]).await;
    assert!(results.iter().all(Result::is_ok));
    // the server's mark stands before the refused batch, so what follows goes to a stream of its own
    assert_ne!(seen[0].stream_id, seen[1].stream_id);
    assert_eq!((seen[1].sequence, &seen[1].readings), (1, &readings(2)));
    let kept: Vec<_> = std::fs::read_dir(folder.path().join("refused"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].contains("no such part"), "{}", kept[0]);
    assert!(kept[0].contains(&PartId(Uuid::from_u128(1)).to_string()));
}

#[tokio::test]
async fn a_gap_begins_a_new_stream_with_the_same_batches() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(folder.path());
    shared.spool().append(&readings(1)).unwrap();
    shared.spool().append(&readings(2)).unwrap();
    let gap = (409, r#"{"expected":7}"#.to_owned());
    let (seen, results) = settle(&shared, vec![gap, ack(1), ack(2)]).await;
    assert!(results.iter().all(Result::is_ok));
    assert_ne!(seen[0].stream_id, seen[1].stream_id);
    assert_eq!(seen[1].stream_id, seen[2].stream_id);
    assert_eq!(seen[1].readings, readings(1));
    assert_eq!(seen[2].readings, readings(2));
    assert!(shared.spool().is_empty());
}

/// The state folder was restored from an old copy: the server takes the new batch for one that it has.
#[tokio::test]
async fn a_server_that_knows_more_than_the_spool_gets_a_new_stream() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(folder.path());
    shared.spool().append(&readings(1)).unwrap();
    let (seen, results) = settle(&shared, vec![ack(5), ack(1)]).await;
    assert!(results.iter().all(Result::is_ok));
    assert_ne!(seen[0].stream_id, seen[1].stream_id);
    assert_eq!(seen[1].readings, readings(1));
    assert!(shared.spool().is_empty());
}

#[test]
fn retries_come_ever_more_rarely_and_never_in_step() {
    let error = |after| Unsettled::Status { status: 503, detail: String::new(), after };
    for failures in 0..100 {
        let wait = retry_after(failures, &error(None));
        let longest = Duration::from_secs(1 << failures.min(6)).min(LAST_RETRY);
        assert!(wait <= longest && wait >= longest / 2, "{failures}: {wait:?}");
    }
    let told = |secs| retry_after(0, &error(Some(Duration::from_secs(secs))));
    assert_eq!(told(7), Duration::from_secs(7));
    assert_eq!(told(0), FIRST_RETRY);
    assert_eq!(told(99_999), LAST_RETRY);
}
