//! Readings per second, beside `COPY` of the same rows into a table without an index.

use crate::{
    Outcome, Settings,
    client::{Connection, request},
    deployment::{Deployment, GIB, Node, text},
    load::{self, Script, whole},
    postgres_server::{self, PostgresServer},
    row::Row,
    yardstick::Copy,
};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant as Steady},
};
use types::{
    ByteMillis, Bytes, Clock, Instant, PartId, StreamId,
    wire::{BatchAck, Quality, Reading},
};

const BENCH: &str = "ingest";
/// Parts on one node: ten on each of eight cards.
const PARTS: usize = 80;
const WINDOW_MS: i64 = 60_000;
/// How far back the parts are made to begin, so that there is time to have readings of.
const PAST_DAYS: i64 = 30;
/// Where the windows of the probe begin, in minutes after those of the load: it must not be mistaken for it.
const PROBE_MINUTES: i64 = 10 * 1440;
/// As the agent compresses.
const ZSTD_LEVEL: i32 = 3;

/// A node's agent, as far as the server can tell.
#[derive(Debug)]
struct Agent {
    credential: String,
    stream: StreamId,
    sequence: u64,
    parts: Vec<PartId>,
    /// Where its next window begins.
    next: Instant,
}

/// A batch, ready but for the time at which it is sent.
#[derive(Debug)]
struct Prepared {
    credential: String,
    stream: StreamId,
    sequence: u64,
    /// What stands behind that time.
    rest: String,
    readings: usize,
}

pub async fn run(settings: Settings) -> Outcome<Vec<Row>> {
    let postgres = PostgresServer::start(settings.quick).await?;
    let deployment = Deployment::start(postgres.create("ingest", None).await?).await?;
    let (mut agents, tenant) = agents(&deployment, settings).await?;
    let mut probe = agents.pop().ok_or("no agent")?;
    probe.next = probe.next.plus_millis(PROBE_MINUTES * WINDOW_MS);
    // minutes in one batch and batches of one agent in one turn; a batch has at most 2,000 readings
    let cases =
        [("a node's minute in a batch", 1, settings.size(2, 40)), ("2,000 in a batch", 25, settings.size(1, 2))];
    // the first turn makes the rows for the yardstick, and warms up both
    send(&deployment, &mut agents, 1, settings.size(1, 20)).await?;
    let mut copy = Copy::of(&postgres, &deployment.database_url, "reading", 300_000).await?;
    copy.per_second().await?;
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], Vec::new());
    let mut visible = Vec::new();
    for _ in 0..settings.turns {
        postgres.settle().await?;
        theirs.push(copy.per_second().await?);
        for ((_, minutes, batches), rates) in cases.iter().zip(&mut ours) {
            postgres.settle().await?;
            let stop = Arc::new(AtomicBool::new(false));
            let probing = tokio::spawn(watch(address_and_key(&deployment)?, tenant.clone(), probe, Arc::clone(&stop)));
            let rate = send(&deployment, &mut agents, *minutes, *batches).await;
            stop.store(true, Ordering::Relaxed);
            let seen = probing.await.map_err(|e| e.to_string())??;
            rates.push(rate?);
            probe = seen.0;
            visible.extend(seen.1);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for ((case, ..), rates) in cases.iter().zip(&ours) {
        rows.push(
            Row::new(BENCH, format!("readings, {case}"), "/s", rates).beside("COPY", rates, &theirs).goal("≥ 0.3"),
        );
    }
    visible.sort_unstable();
    for percent in [50, 99] {
        let at = (visible.len() * percent).div_ceil(100).saturating_sub(1);
        let ms = visible.get(at).map_or(f64::NAN, |took| took.as_secs_f64() * 1000.0);
        rows.push(Row::new(BENCH, format!("acknowledged until seen in usage, p{percent}"), "ms", &[ms]));
    }
    Ok(rows)
}

/// Nodes full of parts that have run for a month, and the tenant of the last one's.
async fn agents(deployment: &Deployment, settings: Settings) -> Outcome<(Vec<Agent>, String)> {
    let pool = deployment.pool().await?;
    let nodes = deployment.nodes(&pool, settings.size(3, 100)).await?;
    let tenants = deployment.tenants(settings.size(2, 50)).await?;
    let mut parts: BTreeMap<String, Vec<PartId>> = BTreeMap::new();
    let address = deployment.address()?;
    // node by node, so that each has parts of one tenant or two
    for (number, node) in nodes.iter().enumerate() {
        let member = &tenants[number % tenants.len()].member;
        let body = json!({"memory": 8 * GIB, "node_id": node.id}).to_string();
        let script = |part: usize| {
            let key = format!("{number}-{part}");
            let headers = [("content-type", "application/json"), ("idempotency-key", key.as_str())];
            vec![request("POST", "/v1/allocations", member, &headers, body.as_bytes())]
        };
        let held = load::run(address, (0..PARTS).map(script).collect(), whole, 201, true).await?;
        let mut confirmations: Vec<Script> = Vec::new();
        for body in held.bodies.iter().flatten() {
            let allocation: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
            let path = format!("/v1/allocations/{}/confirm", text(&allocation["allocation_id"])?);
            confirmations.push(vec![request("POST", &path, member, &[], b"")]);
            let part = text(&allocation["parts"][0]["part_id"])?.parse().map_err(|e| format!("{e}"))?;
            parts.entry(node.id.clone()).or_default().push(part);
        }
        load::run(address, confirmations, whole, 200, false).await?;
    }
    let past = format!("interval '{PAST_DAYS} days'");
    let older = format!(
        "update part set held_from = held_from - {past}, active_from = active_from - {past}, metered_to = metered_to - {past}"
    );
    postgres_server::execute(&deployment.database_url, &older).await?;
    let first = Clock::System.now().plus_secs(-(PAST_DAYS - 1) * 86_400);
    let next = first.plus_millis(-first.as_millis().rem_euclid(WINDOW_MS));
    let agent = |node: &Node| Agent {
        credential: node.credential.clone(),
        stream: StreamId(uuid::Uuid::new_v4()),
        sequence: 0,
        parts: parts.remove(&node.id).unwrap_or_default(),
        next,
    };
    let of_last = (nodes.len() - 1) % tenants.len();
    Ok((nodes.iter().map(agent).collect(), tenants[of_last].id.clone()))
}

impl Agent {
    /// The next batch, with so many windows of each part.
    fn prepare(&mut self, minutes: usize) -> Outcome<Prepared> {
        self.sequence += 1;
        let mut readings = Vec::with_capacity(minutes * self.parts.len());
        for _ in 0..minutes {
            let end = self.next.plus_millis(WINDOW_MS);
            for (number, part_id) in self.parts.iter().enumerate() {
                let bytes = i128::from(4 * GIB) + number as i128 * 12_345_678;
                readings.push(Reading {
                    part_id: *part_id,
                    start: self.next,
                    end,
                    granted: Bytes(8 * GIB),
                    used: Some(ByteMillis(bytes * i128::from(WINDOW_MS))),
                    above: Some(ByteMillis::ZERO),
                    peak: Some(Bytes(6 * GIB)),
                    covered_ms: 60_000,
                    quality: Quality::Measured,
                });
            }
            self.next = end;
        }
        let json = serde_json::to_string(&readings).map_err(|e| e.to_string())?;
        let rest = format!("\",\"readings\":{json}}}");
        Ok(Prepared {
            credential: self.credential.clone(),
            stream: self.stream,
            sequence: self.sequence,
            rest,
            readings: readings.len(),
        })
    }
}

impl Prepared {
    /// As it goes over the wire now.
    fn wire(&self) -> Cow<'_, [u8]> {
        let now = Clock::System.now();
        let head = format!("{{\"stream_id\":\"{}\",\"sequence\":{},\"sent_at\":\"{now}", self.stream, self.sequence);
        // memory is the only thing that the encoder can lack
        let body = zstd::bulk::compress(format!("{head}{}", self.rest).as_bytes(), ZSTD_LEVEL).unwrap_or_default();
        let headers = [("content-type", "application/json"), ("content-encoding", "zstd")];
        Cow::Owned(request("POST", "/v1/reading-batches", &self.credential, &headers, &body))
    }
}

/// All agents send so many batches, each the next when the last is acknowledged: readings per second.
async fn send(deployment: &Deployment, agents: &mut [Agent], minutes: usize, batches: usize) -> Outcome<f64> {
    let scripts = agents.iter_mut().map(|agent| (0..batches).map(|_| agent.prepare(minutes)).collect());
    let scripts: Vec<Vec<Prepared>> = scripts.collect::<Outcome<_>>()?;
    let readings: usize = scripts.iter().flatten().map(|batch| batch.readings).sum();
    let load = load::run(deployment.address()?, scripts, Prepared::wire, 200, true).await?;
    let mut accepted = 0;
    for body in load.bodies.iter().flatten() {
        let ack: BatchAck = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        accepted += ack.accepted as usize;
    }
    if accepted != readings {
        return Err(format!("{accepted} of {readings} readings were accepted"));
    }
    Ok(readings as f64 / load.took.as_secs_f64())
}

fn address_and_key(deployment: &Deployment) -> Outcome<(std::net::SocketAddr, String)> {
    Ok((deployment.address()?, deployment.operator.clone()))
}

/// Sends one batch after the other until `stop`, and sees how long each takes from its acknowledgement until usage has
/// it.
async fn watch(
    (address, operator): (std::net::SocketAddr, String),
    tenant: String,
    mut probe: Agent,
    stop: Arc<AtomicBool>,
) -> Outcome<(Agent, Vec<Duration>)> {
    let mut connection = Connection::open(address).await?;
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) || took.is_empty() {
        let from = probe.next;
        let batch = probe.prepare(1)?;
        connection.send(&batch.wire()).await?.expect(200)?;
        let acknowledged = Steady::now();
        let path = format!("/v1/usage?tenant_id={tenant}&by=project&from={from}&to={}", probe.next);
        let question = request("GET", &path, &operator, &[], b"");
        let mut tries = 0;
        while !has_use(&connection.json(&question, 200).await?) {
            tries += 1;
            if tries > 1000 {
                return Err("what was acknowledged is not seen in usage".to_owned());
            }
        }
        took.push(acknowledged.elapsed());
    }
    Ok((probe, took))
}

fn has_use(usage: &Value) -> bool {
    let rows = usage["rows"].as_array();
    rows.into_iter().flatten().any(|row| !matches!(row["used"].as_str(), None | Some("0")))
}
