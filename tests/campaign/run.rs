//! One run, from an empty ledger to the verdict.

use crate::{
    facts::Facts,
    installation::{Installation, Template, remove, text},
    kill,
    member::{self, Member, Voice},
    node::Node,
    operator,
    plan::Plan,
    record::{Record, Sent},
    verdict,
};
use jiff::{ToSpan, civil::date, tz::TimeZone};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};
use support::Client;
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use types::Clock;

const DAY_MS: i64 = 86_400_000;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub place: PathBuf,
    pub operations: u64,
    pub kills: u64,
    pub killed: String,
    pub invoices: u64,
    pub readings: u64,
    pub took: Duration,
    pub violations: Vec<String>,
}

impl Outcome {
    /// A run that could not be brought to its end.
    pub fn broken(seed: u64, place: PathBuf, why: &str) -> Self {
        Self {
            seed,
            place,
            operations: 0,
            kills: 0,
            killed: String::new(),
            invoices: 0,
            readings: 0,
            took: Duration::ZERO,
            violations: vec![format!("the run broke off: {why}")],
        }
    }
}

/// What everybody in a run knows.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub urls: Vec<String>,
    pub record: Record,
    pub operator_key: String,
    pub pool: String,
    pub tenants: Vec<Tenant>,
    /// The end of the month in the middle of the run.
    pub edge_ms: i64,
    /// When the second version of each plan begins, after that.
    pub second_version_ms: i64,
    /// The labels of the month before that one, that one, and the next.
    pub months: [String; 3],
    moved_ms: Arc<AtomicI64>,
    began: Instant,
}

/// Who is billed, as the ledger knows them.
#[derive(Debug)]
pub struct Tenant {
    pub id: String,
    pub member_key: String,
}

impl World {
    /// The present time of the run, in milliseconds.
    pub fn now(&self) -> i64 {
        Clock::System.now().as_millis() + self.moved_ms.load(Ordering::SeqCst)
    }

    /// Notes what happens now.
    pub fn journal(&self, what: &str) {
        let (ms, acknowledged) = (self.began.elapsed().as_millis(), self.record.acknowledged.load(Ordering::SeqCst));
        let line = format!("{ms:>7} ms, {acknowledged:>4} acknowledged: {what}");
        self.record.inner().journal.push(line);
    }
}

/// Runs a seed in a folder of its own, which stays when something is wrong.
pub async fn run(seed: u64, place: PathBuf, template: Arc<Template>) -> Outcome {
    let since = Instant::now();
    let plan = Plan::of(seed);
    let zone = TimeZone::get(plan.tenants[0].zone).unwrap();
    let first = date(plan.year, plan.month, 1);
    let next = first.checked_add(1.month()).unwrap();
    let edge_ms = next.to_zoned(zone).unwrap().timestamp().as_millisecond();
    let label = |months: i64| first.checked_add(months.months()).unwrap().strftime("%Y-%m").to_string();
    let months = [label(-1), label(0), label(1)];
    let moved_ms = Arc::new(AtomicI64::new(edge_ms - plan.early_ms - Clock::System.now().as_millis()));

    let mut installation = Installation::start(&place, &template, &plan, moved_ms.clone()).await;
    let client = installation.client().with(&template.operator_key);
    until_ready(&installation).await;
    let (pool, tenants) = set_up(&client, &plan, edge_ms).await;
    let token = client.post(&format!("/v1/pools/{pool}/join-tokens"), &json!({})).await.expect(201);
    installation.join_agent(&text(&token["secret"]));
    let world = Arc::new(World {
        urls: installation.urls.clone(),
        record: Record::default(),
        operator_key: template.operator_key.clone(),
        pool,
        tenants,
        edge_ms,
        second_version_ms: edge_ms + 10 * DAY_MS,
        months,
        moved_ms,
        began: since,
        plan,
    });

    world.journal("everything is set up");
    let installation = Arc::new(Mutex::new(installation));
    let mut nodes = load(&world, &installation).await;
    world.journal("the load is over");
    let mut installation = installation.lock().await;
    repeat_all(&world).await;
    for node in &mut nodes {
        node.flush().await;
    }
    world.journal("every key was repeated; all power is lost for a month");
    // some of it is still open then, and keys are kept for seven days
    let before = Facts::load(installation.postgres.url()).await;
    kill::kill_agent(&world, &mut installation);
    installation.lose_power(Some(edge_ms + 33 * DAY_MS)).await;
    world.record.inner().killed.push("Power".to_owned());
    installation.start_all().await;
    close(&world, &mut installation, nodes).await;
    world.journal("everything is released and issued");
    let facts = Facts { keys: before.keys.clone(), ..Facts::load(installation.postgres.url()).await };
    let mut violations = std::mem::take(&mut world.record.inner().violations);
    violations.extend(verdict::of(&world, &installation, &before, &facts).await);
    world.journal("the verdict is there");
    installation.end().await;
    clear_away(&world, &place, &violations);
    let killed = std::mem::take(&mut world.record.inner().killed);
    Outcome {
        seed,
        place,
        operations: world.record.acknowledged.load(Ordering::SeqCst),
        kills: killed.len().try_into().unwrap_or(0),
        killed: killed.join(", "),
        invoices: facts.invoices.len().try_into().unwrap_or(0),
        readings: facts.readings.len().try_into().unwrap_or(0),
        took: since.elapsed(),
        violations,
    }
}

/// Removes what a good run leaves; writes down what was wrong with any other.
fn clear_away(world: &World, place: &Path, violations: &[String]) {
    if violations.is_empty() {
        return remove(place);
    }
    let lines = [&world.record.inner().journal, violations].concat().join("\n");
    std::fs::write(place.join("violations.txt"), lines).unwrap();
}

async fn until_ready(installation: &Installation) {
    let since = Instant::now();
    while !installation.is_ready().await {
        assert!(since.elapsed() < Duration::from_secs(30), "the servers do not become ready");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A pool that is led, tenants on plans, and their keys.
async fn set_up(operator: &Client, plan: &Plan, edge_ms: i64) -> (String, Vec<Tenant>) {
    let body = json!({"name": "pool", "hold_grace_s": plan.hold_grace_s, "silence_grace_s": 60});
    let pool = text(&operator.post("/v1/pools", &body).await.expect(201)["pool_id"]);
    let at = |ms: i64| types::Instant::from_millis(ms).unwrap();
    let mut tenants = Vec::new();
    for (n, tenant) in plan.tenants.iter().enumerate() {
        let body = json!({"name": format!("tenant {n}"), "zone": tenant.zone, "currency": tenant.currency});
        let id = text(&operator.post("/v1/tenants", &body).await.expect(201)["tenant_id"]);
        let rates = |(reserved, above): (i128, Option<i128>)| json!({"default": {"reserved": price(reserved), "above": above.map(price)}});
        let version = |n: usize, from: i64| json!({"unit": tenant.unit, "rates": rates(tenant.prices[n]), "valid_from": at(from)});
        let mut body = version(0, edge_ms - 70 * DAY_MS);
        body["name"] = format!("plan {n}").into();
        body["currency"] = tenant.currency.into();
        let plan_id = text(&operator.post("/v1/plans", &body).await.expect(201)["plan_id"]);
        let second = version(1, edge_ms + 10 * DAY_MS);
        operator.post(&format!("/v1/plans/{plan_id}/versions"), &second).await.expect(201);
        let body = json!({"tenant_id": id, "plan_id": plan_id, "starts_at": at(edge_ms - 70 * DAY_MS)});
        operator.post("/v1/subscriptions", &body).await.expect(201);
        let limits =
            json!({"bytes": u64::try_from(tenant.limit_bytes).unwrap(), "allocations": tenant.limit_allocations});
        operator.put("/v1/quotas/tenant", &json!({"tenant_id": id, "limits": limits})).await.expect(204);
        let key = json!({"tenant_id": id, "name": "member", "role": "member"});
        let member_key = text(&operator.post("/v1/keys", &key).await.expect(201)["secret"]);
        tenants.push(Tenant { id, member_key });
    }
    let since = Instant::now();
    loop {
        let request = operator.request(Method::PATCH, &format!("/v1/pools/{pool}"));
        if operator.send(request.json(&json!({"hold_grace_s": plan.hold_grace_s}))).await.status == 200 {
            return (pool, tenants);
        }
        assert!(since.elapsed() < Duration::from_secs(20), "nobody leads the pool");
        sleep(Duration::from_millis(30)).await;
    }
}

fn price(nanos: i128) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// Clients, nodes and operator work while processes are killed: the nodes, which have stopped.
async fn load(world: &Arc<World>, installation: &Arc<Mutex<Installation>>) -> Vec<Node> {
    let (stop, stopped) = watch::channel(false);
    let (joined, mut joins) = mpsc::unbounded_channel();
    let mut nodes = JoinSet::new();
    for (number, memory) in world.plan.nodes.iter().enumerate().take(world.plan.nodes.len() - 1) {
        let mut node = Node::join(world, number, memory).await.unwrap();
        node.report().await;
        nodes.spawn(node.run(stopped.clone()));
    }
    let load_is_over = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn(kill::run(world.clone(), installation.clone(), load_is_over.clone()));
    let mut clients = JoinSet::new();
    for (number, planned) in world.plan.members.iter().enumerate() {
        clients.spawn(Member::new(world, number, *planned).run());
    }
    clients.spawn(operator::run(world.clone(), joined));
    while let Some(node) = joins.recv().await {
        nodes.spawn(node.run(stopped.clone()));
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    load_is_over.store(true, Ordering::SeqCst);
    killer.await.unwrap();
    // an error means that no node is there any more
    let _ = stop.send(true);
    let mut all = Vec::new();
    while let Some(node) = nodes.join_next().await {
        all.push(node.unwrap());
    }
    all
}

/// Every key that was answered is asked again.
async fn repeat_all(world: &Arc<World>) {
    let asked = world.record.inner().asked.clone();
    let voices: Vec<Voice> = world.tenants.iter().map(|tenant| Voice::new(world, &tenant.member_key, 0)).collect();
    let answered: Vec<_> = asked.into_iter().filter(|asked| asked.answer.is_some()).collect();
    for some in answered.chunks(24) {
        let mut repeats = JoinSet::new();
        for asked in some.iter().cloned() {
            let voice = voices[asked.tenant].clone();
            repeats.spawn(async move { member::repeat(&voice, &asked).await });
        }
        repeats.join_all().await;
    }
}

/// A month later: everything ends in good order, and every month is issued.
async fn close(world: &Arc<World>, installation: &mut Installation, mut nodes: Vec<Node>) {
    let operator = Voice::new(world, &world.operator_key, 0);
    let (stop, stopped) = watch::channel(false);
    let mut running = JoinSet::new();
    for mut node in nodes.drain(..) {
        node.wake();
        running.spawn(node.run(stopped.clone()));
    }
    release_all(world, &operator).await;
    world.journal("everything is released");
    let _ = stop.send(true);
    while let Some(node) = running.join_next().await {
        let mut node = node.unwrap();
        node.report().await;
        node.flush().await;
    }
    match installation.stop_agent().await {
        Some(0) => {}
        status => world.record.violation(format!("the agent ended with {status:?} when it was asked to")),
    }
    let left = kill::spooled(installation);
    if !left.is_empty() {
        world.record.violation(format!("the agent left {} readings in its spool", left.len()));
    }
    for month in &world.months {
        for tenant in 0..world.tenants.len() {
            let since = Instant::now();
            while !operator::issue(&operator, tenant, month).await {
                if since.elapsed() > Duration::from_secs(10) {
                    world.record.violation(format!("{month} of tenant {tenant} cannot be issued"));
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            operator::issue(&operator, tenant, month).await;
        }
    }
}

/// Releases whatever is open, until nothing is.
async fn release_all(world: &Arc<World>, operator: &Voice) {
    for _ in 0..100 {
        let path = "/v1/allocations?open=true&limit=200";
        let Some(open) = operator.expect(&[200], Method::GET, path, None).await else { return };
        let open: Vec<Value> = open.json["items"].as_array().cloned().unwrap_or_default();
        if open.is_empty() {
            return;
        }
        for allocation in open {
            let id = text(&allocation["allocation_id"]);
            let note = |sent: Sent| {
                world.record.known(&id, |known| {
                    let first = known.release.map_or(sent.first, |kept| kept.first);
                    let answered = known.release.and_then(|kept| kept.answered).or(sent.answered);
                    known.release = Some(Sent { first, answered });
                });
            };
            note(Sent { first: world.now(), answered: None });
            let path = format!("/v1/allocations/{id}/release");
            if let Some(heard) = operator.expect(&[200], Method::POST, &path, None).await {
                note(heard.sent);
                world.record.saw(&id, heard.at(), &heard.json);
            }
        }
    }
    world.record.violation("there is always something open".to_owned());
}
