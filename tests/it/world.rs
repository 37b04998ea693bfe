//! The product without its network: the real [`App`] on a real Postgres, at a time that stands until a test moves it.

use app::{
    App, AppError, Caller, Principal, Random, SchedulerSettings, Schedulers, SessionSettings, Sessions,
    allocation::{AllocationView, Ask},
    plan::NewVersion,
    pool::Graces,
    principal::Actor,
    subscription::NewSubscription,
    tenant::NewTenant,
};
use billing::{Rate, Rates};
use sqlx::PgConnection;
use std::{collections::BTreeMap, time::Duration};
use store::{Store, StoreSettings};
use support::Database;
use tokio::task::JoinHandle;
use types::{
    AllocationId, Bytes, Clock, GpuUuid, Instant, Name, NodeId, PlanId, PoolId, ProjectId, Request, Role, ServerId,
    Span, StreamId, TenantId,
    wire::{AgentRun, Exit, GpuReport, Join, NodeOrders, NodeReport, Reading, ReadingBatch},
};

/// A hold waits two minutes, a node is silent after 90 seconds, and what ran on it is lost after a day.
pub const GRACES: Graces = Graces { hold_grace_s: 120, silence_grace_s: 90, lost_after_s: 86_400 };

/// The cards of tests that do not care.
pub const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// No timer runs: leases last for the whole test, and deadlines pass when the test says so.
const NO_TIMERS: SchedulerSettings =
    SchedulerSettings { lease: Duration::from_secs(3600), tick: None, batch: 256, look: Duration::ZERO };

pub fn at(text: &str) -> Instant {
    text.parse().unwrap()
}

pub fn span(from: &str, to: &str) -> Span {
    Span::new(at(from), at(to)).unwrap()
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// So much memory on each of so many cards.
pub fn ask(memory: Bytes, gpus: u32) -> Request {
    Request { memory, gpus, model: None, node_id: None, max_duration_s: None }
}

/// A server process on a database, with one pool at first.
#[derive(Debug)]
pub struct World {
    // before the database, so that its connections are gone first
    pub app: App,
    pub pool: PoolId,
    pub database: Database,
    seed: u64,
    servers: u64,
    keys: u64,
}

/// A host as its agent knows it.
#[derive(Debug, Clone)]
pub struct Host {
    pub id: NodeId,
    pub pool: PoolId,
    pub machine: Name,
    pub boot: Name,
    /// Which run of its agent reports; absent as with agents that do not say.
    pub run: Option<AgentRun>,
    pub cards: Vec<GpuReport>,
    pub stream: StreamId,
    /// Of the last batch.
    pub sequence: u64,
}

impl Host {
    pub const fn caller(&self) -> Caller {
        Caller { principal: Principal::Node { node: self.id, pool: self.pool }, request_id: None }
    }

    /// A report that sees nothing but its cards.
    pub fn report(&self, sent_at: Instant) -> NodeReport {
        NodeReport {
            boot_id: self.boot.clone(),
            run: self.run,
            sent_at,
            gpus: self.cards.clone(),
            alive: Vec::new(),
            exited: Vec::new(),
        }
    }

    /// The next batch of its stream.
    pub fn batch(&mut self, sent_at: Instant, readings: Vec<Reading>) -> ReadingBatch {
        self.sequence += 1;
        let run_id = self.run.map(|run| run.run_id);
        ReadingBatch { stream_id: self.stream, run_id, sequence: self.sequence, sent_at, readings }
    }
}

/// A card of this model and memory, of which the driver keeps some.
pub fn card(model: &str, total: Bytes, overhead: Option<Bytes>, number: u128) -> GpuReport {
    let uuid: GpuUuid = format!("GPU-{}", uuid::Uuid::from_u128(number)).parse().unwrap();
    GpuReport { uuid, model: model.parse().unwrap(), memory_total: total, driver_overhead: overhead, memory_used: None }
}

/// A member of a tenant.
pub const fn member(tenant: TenantId) -> Caller {
    Caller { principal: Principal::Tenant { actor: Actor::System, role: Role::Member, tenant }, request_id: None }
}

pub const fn operator() -> Caller {
    Caller::system()
}

/// A server on a database at a time, leading no pool yet.
pub fn server(database: &Database, clock: Clock, seed: u64) -> App {
    let settings = StoreSettings { connections: 8, ..StoreSettings::new(database.url()) };
    let id = ServerId(uuid::Uuid::from_u128(u128::from(seed)));
    App::new(
        Store::open(&settings).unwrap(),
        clock,
        Random::seeded(seed),
        Sessions::new(SessionSettings::default()),
        Schedulers::new(id, NO_TIMERS),
    )
}

/// Waits until the server leads the pool.
pub async fn leads(app: &App, pool: PoolId) {
    for _ in 0..2000 {
        match app.look_at_pool(pool).await {
            Ok(_) => return,
            Err(AppError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("nobody leads the pool");
}

impl World {
    /// A fresh database with a pool that is led.
    pub async fn new(start: &str) -> Self {
        Self::seeded(start, 1).await
    }

    /// The same, with ids from this seed.
    pub async fn seeded(start: &str, seed: u64) -> Self {
        Self::begun(Database::fresh().await, start, seed).await
    }

    /// On a database that may have a history.
    pub async fn on(database: Database, start: &str) -> Self {
        Self::begun(database, start, 1).await
    }

    async fn begun(database: Database, start: &str, seed: u64) -> Self {
        let app = server(&database, Clock::standing_at(at(start)), seed);
        let pool = app::pool::create(&app, &operator(), name("pool"), GRACES).await.unwrap().pool_id;
        leads(&app, pool).await;
        Self { app, pool, database, seed, servers: 0, keys: 0 }
    }

    pub fn now(&self) -> Instant {
        self.app.clock.now()
    }

    /// Time passes. Nobody acts on it yet.
    pub fn pass(&self, seconds: i64) {
        self.app.clock.advance_to(self.now().plus_secs(seconds));
    }

    /// Time passes until an instant. Nobody acts on it yet.
    pub fn pass_to(&self, instant: &str) {
        self.app.clock.advance_to(at(instant));
    }

    /// Deadlines pass.
    pub async fn tick(&self) {
        self.app.tick(self.pool).await.unwrap();
    }

    /// A connection with the rights of the schema's owner.
    pub async fn owner(&self) -> PgConnection {
        self.database.connect().await
    }

    /// A new server on the same database, which does not schedule yet.
    pub fn another_server(&mut self) -> App {
        self.servers += 1;
        server(&self.database, self.app.clock.clone(), self.seed * 1000 + self.servers)
    }

    /// The server stops in good order, `seconds` pass without one, and a new one takes over.
    pub async fn restart_after(&mut self, seconds: i64) {
        self.app.schedulers.stop();
        self.wait_until_given_up().await;
        self.pass(seconds);
        self.app = self.another_server();
        self.app.schedule_all_pools().await.unwrap();
        for pool in self.app.schedulers.pools() {
            leads(&self.app, pool).await;
        }
    }

    async fn wait_until_given_up(&self) {
        let mut owner = self.owner().await;
        for _ in 0..2000 {
            let held: i64 =
                sqlx::query_scalar("select count(*) from pool_leadership where expires_at > clock_timestamp()")
                    .fetch_one(&mut owner)
                    .await
                    .unwrap();
            if held == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("the leases are not given up");
    }

    /// The time of a lease passes, as Postgres counts it.
    pub async fn lease_runs_out(&self) {
        sqlx::query("update pool_leadership set expires_at = '-infinity'")
            .execute(&mut self.owner().await)
            .await
            .unwrap();
    }

    /// Stops the pool's loop and starts it again, to have its task in hand. No time passes.
    pub async fn loop_in_hand(&mut self) -> JoinHandle<()> {
        self.app.schedulers.stop();
        self.wait_until_given_up().await;
        self.app = self.another_server();
        let task = self.app.schedule_pool(self.pool).unwrap();
        leads(&self.app, self.pool).await;
        task
    }

    /// A tenant with its project `default`.
    pub async fn tenant(&self, called: &str, zone: &str, currency: &str) -> (TenantId, ProjectId) {
        let new = NewTenant { name: name(called), zone: zone.parse().unwrap(), currency: currency.parse().unwrap() };
        let tenant = app::tenant::create(&self.app, &operator(), new).await.unwrap().tenant_id;
        (tenant, self.projects(tenant).await["default"])
    }

    pub async fn projects(&self, tenant: TenantId) -> BTreeMap<String, ProjectId> {
        let rows = app::project::list(&self.app, &operator(), Some(tenant), None, 100).await.unwrap();
        rows.into_iter().map(|row| (row.name.as_str().to_owned(), row.project_id)).collect()
    }

    /// A tenant on a plan of its own from an instant on: a GB-hour costs 1, and 2 above the reservation.
    pub async fn paying_tenant(
        &self,
        called: &str,
        zone: &str,
        currency: &str,
        from: &str,
    ) -> (TenantId, ProjectId, PlanId) {
        let (tenant, project) = self.tenant(called, zone, currency).await;
        let plan = self.plan(called, currency, "GB-hour", "1", Some("2"), at(from)).await;
        let new = NewSubscription { tenant_id: tenant, plan_id: plan, starts_at: Some(at(from)) };
        app::subscription::create(&self.app, &operator(), new).await.unwrap();
        (tenant, project, plan)
    }

    pub async fn plan(
        &self,
        called: &str,
        currency: &str,
        unit: &str,
        reserved: &str,
        above: Option<&str>,
        from: Instant,
    ) -> PlanId {
        let first = NewVersion { unit: unit.parse().unwrap(), rates: rates(reserved, above), valid_from: Some(from) };
        let currency = currency.parse().unwrap();
        app::plan::create(&self.app, &operator(), name(called), currency, first).await.unwrap().row.plan_id
    }

    /// A host of the first pool with cards of [`MODEL`], all of whose memory can be given.
    pub async fn host(&self, called: &str, cards: &[Bytes]) -> Host {
        let cards = (0..).zip(cards).map(|(n, total)| card(MODEL, *total, Some(Bytes::ZERO), number(called, n)));
        self.join(self.pool, called, cards.collect()).await
    }

    /// A host joins and reports.
    pub async fn join(&self, pool: PoolId, called: &str, cards: Vec<GpuReport>) -> Host {
        let joined = self.join_silently(pool, called).await;
        let host = Host {
            id: joined,
            pool,
            machine: name(called),
            boot: name("first boot"),
            run: None,
            cards,
            stream: self.app.id(StreamId::new),
            sequence: 0,
        };
        self.report(&host, &[]).await;
        host
    }

    pub async fn join_silently(&self, pool: PoolId, called: &str) -> NodeId {
        let token = app::join_token::create(&self.app, &operator(), pool, 3600).await.unwrap().secret;
        let join = Join { token, hostname: name(called), machine_id: name(called) };
        app::node::join(&self.app, &join).await.unwrap().node_id
    }

    /// The host reports, and sees these workloads living.
    pub async fn report(&self, host: &Host, alive: &[AllocationId]) -> NodeOrders {
        let report = NodeReport { alive: alive.to_vec(), ..host.report(self.now()) };
        app::node::report(&self.app, &host.caller(), report).await.unwrap()
    }

    /// The host reports that a workload ended.
    pub async fn exited(&self, host: &Host, allocation_id: AllocationId, at: Instant) -> NodeOrders {
        let report = NodeReport { exited: vec![Exit { allocation_id, at }], ..host.report(self.now()) };
        app::node::report(&self.app, &host.caller(), report).await.unwrap()
    }

    /// A key that was never used.
    pub fn key(&mut self) -> String {
        self.keys += 1;
        format!("key {}", self.keys)
    }

    /// Asks for memory in the project `default`, under a new key.
    pub async fn request(&mut self, tenant: TenantId, request: Request) -> Result<AllocationView, AppError> {
        let key = self.key();
        self.request_as(tenant, request, &key).await.map(|(view, _)| view)
    }

    pub async fn request_as(
        &self,
        tenant: TenantId,
        request: Request,
        key: &str,
    ) -> Result<(AllocationView, bool), AppError> {
        let ask = Ask { tenant_id: None, project_id: None, pool_id: Some(self.pool), request };
        app::allocation::request(&self.app, &member(tenant), ask, key).await
    }

    /// Asks, is placed at once and confirms.
    pub async fn run(&mut self, tenant: TenantId, request: Request) -> AllocationView {
        let held = self.request(tenant, request).await.unwrap();
        app::allocation::confirm(&self.app, &member(tenant), held.row.allocation_id).await.unwrap()
    }

    pub async fn get(&self, id: AllocationId) -> AllocationView {
        app::allocation::get(&self.app, &operator(), id).await.unwrap()
    }

    pub async fn release(&self, id: AllocationId) -> AllocationView {
        app::allocation::release(&self.app, &operator(), id).await.unwrap()
    }

    /// The final intervals of an allocation: start, end and whether attested, of all its parts.
    pub async fn intervals(&self, id: AllocationId) -> Vec<(Instant, Instant, bool)> {
        let (_, intervals) = app::allocation::history(&self.app, &operator(), id).await.unwrap();
        intervals.into_iter().map(|i| (i.span.start(), i.span.end(), i.attested)).collect()
    }

    /// Fails when any hour of any card in the span does not balance.
    pub async fn assert_balance(&self, over: Span) {
        let hours = app::balance::of(&self.app, &operator(), None, over).await.unwrap();
        assert!(hours.iter().any(|gpu| !gpu.hours.is_empty()), "no hour is over yet");
        let wrong = app::balance::imbalances(&hours);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

pub fn rates(reserved: &str, above: Option<&str>) -> Rates {
    let default = Rate { reserved: reserved.parse().unwrap(), above: above.map(|price| price.parse().unwrap()) };
    Rates { default, models: BTreeMap::new() }
}

/// Names a host's card differently from every other host's.
pub fn number(host: &str, card: u128) -> u128 {
    host.bytes().fold(7, |n: u128, b| (n * 257 + u128::from(b)) % (1 << 90)) << 8 | card
}
