//! A scripted node: reports what it sees, measures what it is told to, and keeps each batch until it is acknowledged, as
//! an agent does. It forgets answers now and then, as one does that dies before it has read them.

use crate::{
    member::Voice,
    plan::MODEL,
    record::{Batch, Sent},
    run::World,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use types::Instant;

/// Between two reports.
const EVERY: Duration = Duration::from_millis(60);

/// A host in the harness's own process.
#[derive(Debug)]
pub struct Node {
    voice: Voice,
    name: String,
    cards: Vec<Value>,
    rng: StdRng,
    stream: String,
    sequence: u64,
    /// Places in the record's batches: not acknowledged yet, the oldest first.
    spool: std::collections::VecDeque<usize>,
    /// Active parts, by id: allocation, bytes, and from when the next window runs.
    measured: BTreeMap<String, (String, i128, i64)>,
    /// Workloads that ended here and are told until somebody has heard: when.
    exits: BTreeMap<String, i64>,
    told: BTreeSet<String>,
    /// Active here, as the last orders said, with their sizes.
    active: BTreeMap<String, i128>,
    /// When it last learnt what runs here. Nothing is measured beyond that: it may have ended since.
    heard: i64,
    turn: u64,
}

/// Workloads of this size do not come with a process that an agent sees: their owners' word is the only one.
const fn is_seen(bytes: i128) -> bool {
    bytes % 8 != 1
}

/// Workloads of this size end by themselves on their node.
const fn ends_by_itself(bytes: i128) -> bool {
    bytes % 8 == 2
}

impl Node {
    /// Joins the pool. A token is good once, so where no answer came a new one is needed.
    pub async fn join(world: &Arc<World>, number: usize, memory: &[i128]) -> Option<Self> {
        let mut rng = StdRng::seed_from_u64(world.plan.seed ^ (number as u64 + 1));
        let name = format!("node-{number}");
        let operator = Voice::new(world, &world.operator_key, number);
        let pool = &world.pool;
        let credential = loop {
            let path = format!("/v1/pools/{pool}/join-tokens");
            let token = operator.expect(&[201], Method::POST, &path, Some(&json!({}))).await?;
            let body = json!({"token": token.json["secret"], "hostname": name, "machine_id": name});
            let Some(joined) = operator.ask_up_to(1, Method::POST, "/v1/nodes/join", None, Some(&body)).await else {
                continue;
            };
            if joined.status != 201 {
                world.record.violation(format!("{name} joined with {}: {}", joined.status, joined.json));
                return None;
            }
            let id = joined.json["node_id"].as_str().unwrap_or_default().to_owned();
            world.record.inner().nodes.insert(name.clone(), id);
            break joined.json["credential"].as_str().unwrap_or_default().to_owned();
        };
        let cards = memory.iter().map(|total| {
            let uuid = format!("GPU-{}", uuid::Uuid::from_u128(rng.random()));
            json!({"uuid": uuid, "model": MODEL, "memory_total": u64::try_from(*total).unwrap(), "driver_overhead": 0})
        });
        let cards = cards.collect();
        let stream = uuid::Uuid::from_u128(rng.random()).to_string();
        Some(Self {
            voice: Voice::new(world, &credential, number),
            name,
            cards,
            rng,
            stream,
            sequence: 0,
            spool: std::collections::VecDeque::new(),
            measured: BTreeMap::new(),
            exits: BTreeMap::new(),
            told: BTreeSet::new(),
            active: BTreeMap::new(),
            heard: 0,
            turn: 0,
        })
    }

    fn world(&self) -> &World {
        &self.voice.world
    }

    /// Until it is told to stop.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Self {
        loop {
            self.report().await;
            self.turn += 1;
            if self.turn.is_multiple_of(5) {
                self.close_windows(None);
            }
            let forgets = self.rng.random_bool(0.1);
            self.upload(forgets).await;
            tokio::select! {
                stopped = stop.wait_for(|stop| *stop) => {
                    drop(stopped);
                    break;
                }
                () = tokio::time::sleep(EVERY) => {}
            }
        }
        self
    }

    /// Another time, after a loss of power: windows begin anew.
    pub fn wake(&mut self) {
        self.measured.clear();
    }

    /// Hands in everything that is kept.
    pub async fn flush(&mut self) {
        self.close_windows(None);
        for _ in 0..2000 {
            if self.spool.is_empty() {
                return;
            }
            self.upload(false).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.world().record.violation(format!("{} cannot hand in its batches", self.name));
    }

    pub async fn report(&mut self) {
        let now = self.world().now();
        for (id, bytes) in &self.active {
            if ends_by_itself(*bytes) && !self.told.contains(id) && self.turn.is_multiple_of(7) {
                self.exits.entry(id.clone()).or_insert(now);
            }
        }
        let alive: Vec<String> = self
            .active
            .iter()
            .filter(|(id, bytes)| is_seen(**bytes) && !self.exits.contains_key(*id) && !self.told.contains(*id))
            .map(|(id, _)| id.clone())
            .collect();
        let exited: Vec<Value> =
            self.exits.iter().map(|(id, at)| json!({"allocation_id": id, "at": instant(*at)})).collect();
        for (id, at) in &self.exits {
            let sent = Sent { first: now, answered: None };
            self.world().record.known(id, |known| {
                known.exit.get_or_insert((*at, sent));
            });
        }
        let body =
            json!({"boot_id": "boot", "sent_at": instant(now), "gpus": self.cards, "alive": alive, "exited": exited});
        let turn = usize::try_from(self.turn).unwrap_or(0);
        let answer = self.voice.once(turn, &Method::POST, "/v1/node-reports", None, Some(&body)).await;
        let answered = self.world().now();
        for id in &alive {
            // whether or not an answer came, it may have been heard
            self.world().record.known(id, |known| known.last_sign = known.last_sign.max(Some(answered)));
        }
        match answer {
            Some((200, orders)) => {
                for (id, _) in std::mem::take(&mut self.exits) {
                    self.world().record.known(&id, |known| {
                        if let Some((_, sent)) = &mut known.exit {
                            sent.answered = Some(answered);
                        }
                    });
                    self.told.insert(id);
                }
                self.take_orders(&orders, now);
            }
            Some((status, answer)) => {
                self.world()
                    .record
                    .violation(format!("a report of {} was answered with {status}: {answer}", self.name));
            }
            None => {}
        }
    }

    /// What runs here, as it was when these orders were asked for.
    fn take_orders(&mut self, orders: &Value, asked: i64) {
        let mut parts = BTreeMap::new();
        self.active.clear();
        for order in orders["parts"].as_array().into_iter().flatten() {
            let text = |field: &str| order[field].as_str().unwrap_or_default().to_owned();
            if let (Ok(since), Some(bytes)) = (text("active_since").parse::<Instant>(), order["bytes"].as_u64()) {
                self.active.insert(text("allocation_id"), bytes.into());
                parts.insert(text("part_id"), (text("allocation_id"), i128::from(bytes), since.as_millis()));
            }
        }
        // those that are gone have a last window
        let gone: Vec<String> = self.measured.keys().filter(|part| !parts.contains_key(*part)).cloned().collect();
        for part in gone {
            self.close_windows(Some(&part));
            self.measured.remove(&part);
        }
        for (part, (allocation, bytes, since)) in parts {
            self.measured.entry(part).or_insert((allocation, bytes, since.max(asked)));
        }
        self.heard = asked;
    }

    /// Ends the present window of one part, or of all, and keeps what was measured.
    fn close_windows(&mut self, only: Option<&str>) {
        let now = self.heard;
        let mut readings = Vec::new();
        for (part, (_, bytes, from)) in &mut self.measured {
            if only.is_some_and(|only| only != part) || now <= *from {
                continue;
            }
            let window = i128::from(now - *from);
            let peak = *bytes * self.rng.random_range(50..=120) / 100;
            let used = peak * window * self.rng.random_range(50..=100) / 100;
            let above = (used - *bytes * window).max(0);
            readings.push(json!({
                "part_id": part, "start": instant(*from), "end": instant(now), "granted": u64::try_from(*bytes).unwrap(),
                "used": used.to_string(), "above": above.to_string(), "peak": u64::try_from(peak).unwrap(),
                "covered_ms": u64::try_from(window).unwrap(), "quality": "measured",
            }));
            *from = now;
        }
        if readings.is_empty() {
            return;
        }
        self.sequence += 1;
        let batch =
            Batch { stream: self.stream.clone(), sequence: self.sequence, readings, slowest_ms: 0, acknowledged: None };
        let place = {
            let mut record = self.voice.world.record.inner();
            record.batches.push(batch);
            record.batches.len() - 1
        };
        self.spool.push_back(place);
    }

    /// Sends the oldest batch; `forgets` the answer where it dies before it has read it.
    async fn upload(&mut self, forgets: bool) {
        let Some(place) = self.spool.front().copied() else { return };
        let batch = self.world().record.inner().batches[place].clone();
        let body = json!({"stream_id": batch.stream, "sequence": batch.sequence, "sent_at": instant(self.world().now()), "readings": batch.readings});
        let turn = usize::try_from(self.turn).unwrap_or(0);
        let sent = self.world().now();
        let answer = self.voice.once(turn, &Method::POST, "/v1/reading-batches", None, Some(&body)).await;
        let took = self.world().now() - sent;
        {
            let slowest = &mut self.voice.world.record.inner().batches[place].slowest_ms;
            *slowest = took.max(*slowest);
        }
        match answer {
            Some((200, ack)) => {
                let counts = (ack["accepted"].as_u64().unwrap_or(0), ack["set_aside"].as_u64().unwrap_or(0));
                let mut record = self.voice.world.record.inner();
                let kept = &mut record.batches[place].acknowledged;
                // a repeat says 0 of what was taken before
                *kept = (*kept).max(Some(counts));
                drop(record);
                self.voice.world.record.count();
                if !forgets {
                    self.spool.pop_front();
                }
            }
            Some((status, answer)) => {
                let what = format!("batch {} of {} was answered with {status}: {answer}", batch.sequence, self.name);
                self.world().record.violation(what);
                self.spool.pop_front();
            }
            None => {}
        }
    }
}

fn instant(millis: i64) -> Instant {
    Instant::from_millis(millis).unwrap()
}
