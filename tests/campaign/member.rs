//! A tenant's member: asks for memory, starts, renews and ends workloads, and insists on an answer to everything.

use crate::{
    plan::{GIB, PlannedMember},
    record::{Asked, Record, Sent, Settled},
    run::World,
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long anybody may be left without an answer, kills included.
const PATIENCE: Duration = Duration::from_secs(40);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(40);

/// Speaks to whichever server answers, with one credential.
#[derive(Debug, Clone)]
pub struct Voice {
    pub world: Arc<World>,
    http: reqwest::Client,
    bearer: String,
    /// The server that is tried first.
    first: usize,
}

/// An answer that came, and when.
#[derive(Debug, Clone)]
pub struct Heard {
    pub status: u16,
    pub json: Value,
    pub sent: Sent,
    /// How often nothing usable came before.
    pub failures: usize,
}

impl Heard {
    pub fn at(&self) -> i64 {
        self.sent.answered.unwrap_or(self.sent.first)
    }

    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }
}

impl Voice {
    pub fn new(world: &Arc<World>, bearer: &str, first: usize) -> Self {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
        Self { world: world.clone(), http, bearer: bearer.to_owned(), first }
    }

    /// One try: the answer, or nothing where none came or it says that nobody can answer now.
    pub async fn once(
        &self,
        try_: usize,
        method: &Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        let urls = &self.world.urls;
        let url = format!("{}{path}", urls[(self.first + try_) % urls.len()]);
        let mut request = self.http.request(method.clone(), url).bearer_auth(&self.bearer);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let body = response.bytes().await.ok()?;
        // what a proxy or a dying server says is no answer of the ledger
        (!matches!(status, 408 | 502..=504)).then(|| (status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// Asks until an answer comes, with the same words. `None` after `tries`, or when patience has run out.
    pub async fn ask_up_to(
        &self,
        tries: usize,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Option<Heard> {
        let (first, since) = (self.world.now(), Instant::now());
        for failures in 0..tries {
            if let Some((status, json)) = self.once(failures, &method, path, key, body).await {
                let sent = Sent { first, answered: Some(self.world.now()) };
                if status == 500 {
                    self.world.record.violation(format!("{method} {path} {body:?} was answered with 500: {json}"));
                }
                self.world.record.count();
                return Some(Heard { status, json, sent, failures });
            }
            if since.elapsed() > PATIENCE {
                self.world.record.violation(format!("{method} {path} has had no answer for {PATIENCE:?}"));
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    pub async fn insist(&self, method: Method, path: &str, body: Option<&Value>) -> Option<Heard> {
        self.ask_up_to(usize::MAX, method, path, None, body).await
    }

    /// As [`Self::insist`]; any other status is a violation.
    pub async fn expect(&self, statuses: &[u16], method: Method, path: &str, body: Option<&Value>) -> Option<Heard> {
        let heard = self.insist(method.clone(), path, body).await?;
        if !statuses.contains(&heard.status) {
            let what = format!("{method} {path} {body:?} was answered with {}: {}", heard.status, heard.json);
            self.world.record.violation(what);
            return None;
        }
        Some(heard)
    }
}

/// One of a tenant's clients.
#[derive(Debug)]
pub struct Member {
    voice: Voice,
    number: usize,
    tenant: usize,
    rng: StdRng,
    steps: usize,
    /// What it asked for and got, with the state it last saw.
    mine: Vec<(String, String)>,
    asked: usize,
}

impl Member {
    pub fn new(world: &Arc<World>, number: usize, planned: PlannedMember) -> Self {
        let voice = Voice::new(world, &world.tenants[planned.tenant].member_key, number);
        let rng = StdRng::seed_from_u64(planned.seed);
        Self { voice, number, tenant: planned.tenant, rng, steps: planned.steps, mine: Vec::new(), asked: 0 }
    }

    fn record(&self) -> &Record {
        &self.voice.world.record
    }

    /// Does what its seed says.
    pub async fn run(mut self) {
        for _ in 0..self.steps {
            self.step().await;
            let pause = self.rng.random_range(0..15);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        // some go on until the world has moved on by a month
        let open: Vec<String> = self.in_state(&["held", "active", "queued"]);
        for id in open {
            if self.rng.random_bool(0.6) {
                self.change(&id, "release", &[200]).await;
            }
        }
    }

    async fn step(&mut self) {
        let dice = self.rng.random_range(0..100);
        let held = self.in_state(&["held"]);
        let active = self.in_state(&["active"]);
        let queued = self.in_state(&["queued"]);
        match dice {
            0..30 => self.request().await,
            30..55 if !held.is_empty() => self.on_one(&held, "confirm", &[200, 409]).await,
            55..65 if !active.is_empty() => self.on_one(&active, "renew", &[200, 409]).await,
            65..80 if !active.is_empty() => self.on_one(&active, "release", &[200]).await,
            80..84 if !held.is_empty() => self.on_one(&held, "cancel", &[200, 409]).await,
            84..88 if !queued.is_empty() => self.on_one(&queued, "cancel", &[200, 409]).await,
            88..92 => self.dry_run().await,
            92..95 => self.repeat().await,
            // whatever it is in by now: a repeat, or too late
            95..97 => {
                let all: Vec<String> = self.mine.iter().map(|(id, _)| id.clone()).collect();
                self.on_one(&all, "confirm", &[200, 409]).await;
            }
            _ => self.look().await,
        }
    }

    fn in_state(&self, states: &[&str]) -> Vec<String> {
        self.mine.iter().filter(|(_, state)| states.contains(&state.as_str())).map(|(id, _)| id.clone()).collect()
    }

    fn set_state(&mut self, id: &str, state: &str) {
        match self.mine.iter_mut().find(|(mine, _)| mine == id) {
            Some((_, known)) => state.clone_into(known),
            None => self.mine.push((id.to_owned(), state.to_owned())),
        }
    }

    fn body(&mut self) -> (Value, i128, i128, Option<i64>) {
        // odd sizes tell the workloads apart that no agent sees
        let memory = i128::from(self.rng.random_range(1..=20_i64)) * GIB / 2 + i128::from(self.rng.random_range(0..8));
        let gpus = if self.rng.random_bool(0.2) { 2 } else { 1 };
        let max_duration_s = self.rng.random_bool(0.2).then(|| self.rng.random_range(1..=3));
        let mut body = json!({"memory": u64::try_from(memory).unwrap(), "gpus": gpus});
        if let Some(seconds) = max_duration_s {
            body["max_duration_s"] = seconds.into();
        }
        (body, memory, gpus, max_duration_s)
    }

    async fn request(&mut self) {
        let (body, memory, gpus, max_duration_s) = self.body();
        self.asked += 1;
        let key = format!("member {} request {}", self.number, self.asked);
        // a few are given up when no answer comes: they may or may not have happened
        let tries = if self.rng.random_bool(0.1) { 1 } else { usize::MAX };
        let sent = Sent { first: self.voice.world.now(), answered: None };
        let place = {
            let mut record = self.record().inner();
            let asked = Asked {
                tenant: self.tenant,
                member: self.number,
                key: key.clone(),
                body: body.clone(),
                memory,
                gpus,
                max_duration_s,
                sent,
                answer: None,
            };
            record.asked.push(asked);
            record.asked.len() - 1
        };
        let path = "/v1/allocations";
        let Some(heard) = self.voice.ask_up_to(tries, Method::POST, path, Some(&key), Some(&body)).await else {
            return;
        };
        let settled = settled(&heard);
        if settled.is_none() || (heard.status == 200 && heard.failures == 0) {
            self.record().violation(format!("{key}, asked for the first time, got {}: {}", heard.status, heard.json));
        }
        {
            let asked = &mut self.record().inner().asked[place];
            asked.sent = heard.sent;
            asked.answer.clone_from(&settled);
        }
        if let Some(Settled::Allocation(id)) = settled {
            self.record().saw(&id, heard.at(), &heard.json);
            self.set_state(&id, heard.json["state"].as_str().unwrap_or_default());
        }
    }

    async fn on_one(&mut self, ids: &[String], verb: &str, statuses: &[u16]) {
        if let Some(id) = ids.choose(&mut self.rng).cloned() {
            self.change(&id, verb, statuses).await;
        }
    }

    async fn change(&mut self, id: &str, verb: &str, statuses: &[u16]) {
        let first = self.voice.world.now();
        let note = |record: &Record, sent: Sent| {
            record.known(id, |known| {
                let kept = match verb {
                    "confirm" => &mut known.confirm,
                    "release" => &mut known.release,
                    "cancel" => &mut known.cancel,
                    _ => {
                        known.last_sign = known.last_sign.max(sent.answered);
                        return;
                    }
                };
                // the first that was sent may have done it
                let first = kept.map_or(sent.first, |kept| kept.first);
                let answered = kept.and_then(|kept| kept.answered).or(sent.answered);
                *kept = Some(Sent { first, answered });
            });
        };
        note(self.record(), Sent { first, answered: None });
        let path = format!("/v1/allocations/{id}/{verb}");
        let Some(heard) = self.voice.expect(statuses, Method::POST, &path, None).await else { return };
        if heard.status == 200 {
            note(self.record(), heard.sent);
            self.record().saw(id, heard.at(), &heard.json);
            self.set_state(id, heard.json["state"].as_str().unwrap_or_default());
        } else {
            self.see(id).await;
        }
    }

    async fn see(&mut self, id: &str) {
        let path = format!("/v1/allocations/{id}");
        if let Some(heard) = self.voice.expect(&[200], Method::GET, &path, None).await {
            self.record().saw(id, heard.at(), &heard.json);
            self.set_state(id, heard.json["state"].as_str().unwrap_or_default());
        }
    }

    async fn look(&mut self) {
        if let Some((id, _)) = self.mine.choose(&mut self.rng).cloned() {
            self.see(&id).await;
        }
    }

    async fn dry_run(&mut self) {
        let (body, ..) = self.body();
        self.voice.expect(&[200], Method::POST, "/v1/allocations/dry-run", Some(&body)).await;
    }

    /// Asks again under a key that was answered.
    async fn repeat(&mut self) {
        let answered: Vec<Asked> = {
            let record = self.record().inner();
            record.asked.iter().filter(|asked| asked.member == self.number && asked.answer.is_some()).cloned().collect()
        };
        if let Some(asked) = answered.choose(&mut self.rng) {
            repeat(&self.voice, asked).await;
        }
    }
}

/// The same key with the same words: the same allocation or refusal, and nothing new.
pub async fn repeat(voice: &Voice, asked: &Asked) {
    let heard = voice.ask_up_to(usize::MAX, Method::POST, "/v1/allocations", Some(&asked.key), Some(&asked.body)).await;
    let Some(heard) = heard else { return };
    let record = &voice.world.record;
    if heard.status == 201 || heard.status == 202 || settled(&heard) != asked.answer {
        let what = format!(
            "{} was answered with {:?}, its repeat with {}: {}",
            asked.key, asked.answer, heard.status, heard.json
        );
        record.violation(what);
    } else if let Some(Settled::Allocation(id)) = &asked.answer {
        record.saw(id, heard.at(), &heard.json);
    }
}

fn settled(heard: &Heard) -> Option<Settled> {
    match heard.status {
        200..=202 => Some(Settled::Allocation(heard.json["allocation_id"].as_str()?.to_owned())),
        409 if ["quota_exceeded", "unsatisfiable"].contains(&heard.code()) => {
            let why = format!("{} {} {}", heard.code(), heard.json["violations"], heard.json["reasons"]);
            Some(Settled::Refused(why))
        }
        _ => None,
    }
}
