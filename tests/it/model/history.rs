//! One history: the product, the model beside it, and what is known of both.

use super::{
    ledger::{Ledger, Node},
    meter::Meters,
};
use crate::world::{GRACES, Host, World, at, card, leads, name, number, operator};
use app::{node::NodeState, plan::NewVersion, subscription::NewSubscription};
use quota::Limits;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use sqlx::{PgConnection, Row};
use std::collections::{BTreeMap, BTreeSet};
use store::time::At;
use types::{AllocationId, Bytes, GpuId, Instant, PartId, PlanId, PoolId, ProjectId, Request, SetAsideId, TenantId};
use uuid::Uuid;

pub const START: &str = "2026-10-29T08:00:00Z";

/// A tenant, with the instants at which its months begin: written down here, not computed.
#[derive(Debug)]
pub struct Member {
    pub tenant: TenantId,
    pub projects: Vec<ProjectId>,
    pub plan: PlanId,
    /// October's end, November's end, December's end.
    pub month_ends: [Instant; 3],
    pub unit: &'static str,
    pub digits: u32,
    /// From when on which price of a unit holds, in nano-units: reserved, and above where it is charged.
    pub prices: Vec<(Instant, i128, Option<i128>)>,
    /// Months that have an invoice, out of those above.
    pub issued: usize,
}

pub const LABELS: [&str; 3] = ["2026-10", "2026-11", "2026-12"];

impl Member {
    /// The month that an instant lies in.
    pub fn month(&self, at: Instant) -> usize {
        self.month_ends.iter().position(|end| at < *end).unwrap()
    }

    /// The price in force at an instant.
    pub fn price(&self, at: Instant) -> (i128, Option<i128>) {
        let (_, reserved, above) = self.prices.iter().rfind(|(from, ..)| *from <= at).unwrap();
        (*reserved, *above)
    }
}

/// A request that was made under a key.
#[derive(Debug, Clone)]
pub struct Keyed {
    pub key: String,
    pub member: usize,
    pub project: ProjectId,
    pub pool: PoolId,
    pub request: Request,
    pub made_at: Instant,
    /// Absent for a refusal.
    pub id: Option<AllocationId>,
}

/// A row that waits for a ruling.
#[derive(Debug, Clone)]
pub struct Aside {
    pub host: usize,
    pub row: types::wire::Reading,
    pub skew_ms: i64,
    /// Whose invoice it stands against.
    pub tenant: Option<TenantId>,
}

#[derive(Debug)]
pub struct History {
    pub world: World,
    pub ledger: Ledger,
    pub meters: Meters,
    pub rng: StdRng,
    pub members: Vec<Member>,
    pub hosts: Vec<Host>,
    pub cards: BTreeMap<GpuId, types::wire::GpuReport>,
    pub pools: Vec<PoolId>,
    pub keys: Vec<Keyed>,
    pub parts: BTreeMap<PartId, (AllocationId, GpuId)>,
    pub aside: BTreeMap<SetAsideId, Aside>,
    pub owner: PgConnection,
    pub boots: u32,
    pub log: Vec<String>,
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last steps:");
            for line in self.log.iter().rev().take(40).rev() {
                eprintln!("  {line}");
            }
        }
    }
}

impl History {
    pub async fn new(seed: u64) -> Self {
        let world = World::seeded(START, seed % 1_000_000).await;
        let other = app::pool::create(&world.app, &operator(), name("second pool"), GRACES).await.unwrap().pool_id;
        leads(&world.app, other).await;
        let owner = world.owner().await;
        let pools = vec![world.pool, other];
        let mut history = Self {
            ledger: Ledger { pools: pools.iter().map(|pool| (*pool, at(START))).collect(), ..Ledger::default() },
            meters: Meters::default(),
            rng: StdRng::seed_from_u64(seed),
            members: Vec::new(),
            hosts: Vec::new(),
            cards: BTreeMap::new(),
            pools,
            keys: Vec::new(),
            parts: BTreeMap::new(),
            aside: BTreeMap::new(),
            owner,
            boots: 0,
            log: Vec::new(),
            world,
        };
        for (pool, called, cards) in [
            (0, "big", vec![("NVIDIA H100 80GB HBM3", Bytes::gib(80), Some(Bytes::mib(550))); 2]),
            (0, "small", vec![("NVIDIA A10", Bytes::mib(24_564), None); 4]),
            (1, "mixed", vec![("NVIDIA A10", Bytes::mib(24_564), None), ("NVIDIA L40S", Bytes::gib(48), None)]),
            (1, "single", vec![("NVIDIA H100 80GB HBM3", Bytes::gib(80), None)]),
        ] {
            history.add_host(pool, called, &cards).await;
        }
        for (called, zone, currency, unit, reserved, month_ends) in [
            (
                "seoul",
                "Asia/Seoul",
                "KRW",
                "GB-hour",
                "13.7",
                ["2026-10-31T15:00:00Z", "2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z"],
            ),
            (
                "new york",
                "America/New_York",
                "USD",
                "GiB-hour",
                "0.0125",
                ["2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z", "2027-01-01T05:00:00Z"],
            ),
            (
                "kolkata",
                "Asia/Kolkata",
                "INR",
                "GB-second",
                "0.000271",
                ["2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z", "2026-12-31T18:30:00Z"],
            ),
        ] {
            history.add_member(called, zone, currency, unit, reserved, month_ends.map(at)).await;
        }
        history
    }

    async fn add_host(&mut self, pool: usize, called: &str, cards: &[(&str, Bytes, Option<Bytes>)]) {
        let pool = self.pools[pool];
        let reports = (0..).zip(cards).map(|(n, (model, total, kept))| card(model, *total, *kept, number(called, n)));
        let host = self.world.join(pool, called, reports.collect()).await;
        let now = self.world.now();
        let node = Node {
            pool,
            state: NodeState::Active,
            boot: host.boot.as_str().to_owned(),
            heard: now,
            silent: false,
            reported: true,
        };
        self.ledger.nodes.insert(host.id, node);
        for row in app::node::gpus(&self.world.app, &operator(), None, Some(host.id), None, 100).await.unwrap() {
            let report = host.cards.iter().find(|card| card.uuid == row.uuid).unwrap();
            let card = super::ledger::Card {
                node: host.id,
                model: report.model.clone(),
                allocatable: report.memory_total.less(report.driver_overhead.unwrap_or(Bytes::ZERO)),
                since: now,
                missing: false,
                strangers: Bytes::ZERO,
            };
            self.ledger.cards.insert(row.gpu_id, card);
            self.cards.insert(row.gpu_id, report.clone());
        }
        self.hosts.push(host);
    }

    async fn add_member(
        &mut self,
        called: &str,
        zone: &str,
        currency: &str,
        unit: &'static str,
        reserved: &str,
        month_ends: [Instant; 3],
    ) {
        let (tenant, project) = self.world.tenant(called, zone, currency).await;
        let other = app::project::create(&self.world.app, &operator(), Some(tenant), name("other")).await.unwrap();
        let from = at("2026-10-01T00:00:00Z");
        let above = (called != "kolkata").then_some("0.5");
        let plan = self.world.plan(called, currency, unit, reserved, above, from).await;
        let new = NewSubscription { tenant_id: tenant, plan_id: plan, starts_at: Some(from) };
        app::subscription::create(&self.world.app, &operator(), new).await.unwrap();
        let levels = [None, Some(project), Some(other.project_id)].map(|level| (level, Limits::default()));
        self.ledger.tenants.insert(tenant, levels.into());
        self.members.push(Member {
            tenant,
            projects: vec![project, other.project_id],
            plan,
            month_ends,
            unit,
            digits: if currency == "KRW" { 0 } else { 2 },
            prices: vec![(from, nanos(reserved), above.map(nanos))],
            issued: 0,
        });
    }

    pub fn now(&self) -> Instant {
        self.world.now()
    }

    pub fn note(&mut self, what: String) {
        self.log.push(format!("{} {what}", self.now()));
    }

    /// A price changes from the next minute on.
    pub async fn change_price(&mut self) {
        let n = self.rng.random_range(0..self.members.len());
        let reserved = format!("0.{:04}", self.rng.random_range(1..9999));
        let above = self.rng.random_bool(0.5).then(|| format!("0.{:04}", self.rng.random_range(1..9999)));
        let from = self.now().minute_start().plus_secs(60 * self.rng.random_range(1..600));
        let member = &mut self.members[n];
        if member.prices.last().is_some_and(|(last, ..)| *last >= from) {
            return;
        }
        let rates = crate::world::rates(&reserved, above.as_deref());
        let version = NewVersion { unit: member.unit.parse().unwrap(), rates, valid_from: Some(from) };
        app::plan::add_version(&self.world.app, &operator(), member.plan, version).await.unwrap();
        member.prices.push((from, nanos(&reserved), above.as_deref().map(nanos)));
    }

    /// One of the allocations that the model knows and that pass.
    pub fn some_allocation(&mut self, pass: impl Fn(&super::ledger::Allocation) -> bool) -> Option<AllocationId> {
        let ids: Vec<AllocationId> =
            self.ledger.allocations.iter().filter(|(_, a)| pass(a)).map(|(id, _)| *id).collect();
        ids.choose(&mut self.rng).copied()
    }

    /// Product and model agree on every allocation, every quota and every card.
    pub async fn agree(&mut self) {
        let rows = sqlx::query(
            "select a.allocation_id, a.state, a.cause, a.hold_until, a.ends_by, a.active_since, a.unconfirmed_since, a.lost_by,
                a.ended_at, array(select p.gpu_id from part p where p.tenant_id = a.tenant_id and p.allocation_id = a.allocation_id
                    order by p.gpu_id)
               from allocation a",
        )
        .fetch_all(&mut self.owner)
        .await
        .unwrap();
        assert_eq!(rows.len(), self.ledger.allocations.len(), "allocations");
        for row in rows {
            let id: AllocationId = row.get::<Uuid, _>(0).into();
            let time = |n: usize| row.get::<Option<At>, _>(n).map(Instant::from);
            let cards: Vec<GpuId> = row.get::<Vec<Uuid>, _>(9).into_iter().map(GpuId).collect();
            let found = (row.get::<String, _>(1), row.get::<String, _>(2), cards);
            let times = [3, 4, 5, 6, 7, 8].map(time);
            let a = &self.ledger.allocations[&id];
            assert_eq!(found, (a.state.name().to_owned(), a.cause.name().to_owned(), a.cards.clone()), "{id}: {a:#?}");
            let holds = if a.state.is_final() { times[0] } else { a.hold_until };
            let expected = [holds, a.ends_by, a.confirmed, a.unconfirmed_since, a.lost_by, a.ended];
            assert_eq!(times, expected, "{id}: {a:#?}");
        }
        for row in sqlx::query("select tenant_id, scope_id, level, used_bytes, used_allocations from quota")
            .fetch_all(&mut self.owner)
            .await
            .unwrap()
        {
            let tenant: TenantId = row.get::<Uuid, _>(0).into();
            let project = (row.get::<String, _>(2) == "project").then(|| ProjectId(row.get(1)));
            let (bytes, allocations) = self.ledger.used(tenant, project);
            let used: (i64, i32) = (row.get(3), row.get(4));
            assert_eq!(used, (bytes.as_i64(), i32::try_from(allocations).unwrap()), "{tenant} {project:?}");
        }
        for row in sqlx::query("select gpu_id, granted from gpu").fetch_all(&mut self.owner).await.unwrap() {
            let card: GpuId = row.get::<Uuid, _>(0).into();
            let granted = self.ledger.granted(card);
            assert_eq!(row.get::<i64, _>(1), granted.as_i64(), "granted on {card}");
            assert!(granted <= self.ledger.cards[&card].allocatable, "over on {card}");
        }
    }

    /// Parts have ids that only the product knows.
    pub async fn learn_parts(&mut self) {
        let known: BTreeSet<PartId> = self.parts.keys().copied().collect();
        for row in
            sqlx::query("select part_id, allocation_id, gpu_id from part").fetch_all(&mut self.owner).await.unwrap()
        {
            let part = PartId(row.get(0));
            if !known.contains(&part) {
                self.parts.insert(part, (AllocationId(row.get(1)), GpuId(row.get(2))));
            }
        }
    }
}

/// A decimal price in nano-units.
fn nanos(text: &str) -> i128 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{decimals:0<9}").parse().unwrap()
}
