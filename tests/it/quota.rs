//! Limits hold whatever happens at once, and what is used is what is really granted.

use crate::{
    scheduler::futures,
    world::{World, ask, member, operator},
};
use app::{AppError, allocation, error::Refusal};
use quota::{Level, LimitKind, Limits, Use, Violation};
use std::collections::BTreeSet;
use types::{AllocationState as S, Bytes, ProjectId, TenantId};

const START: &str = "2026-11-10T10:00:00Z";

async fn pool_of(cards: &[Bytes]) -> (World, TenantId, ProjectId) {
    let world = World::new(START).await;
    world.host("host", cards).await;
    let (tenant, project) = world.tenant("a", "UTC", "USD").await;
    (world, tenant, project)
}

async fn set(world: &World, tenant: TenantId, limits: Limits) {
    app::quota::set_tenant(&world.app, &operator(), tenant, limits).await.unwrap();
}

fn bytes(limit: Bytes) -> Limits {
    Limits { bytes: Some(limit), ..Limits::default() }
}

async fn used(world: &World, tenant: TenantId) -> Use {
    let levels = app::quota::list(&world.app, &operator(), Some(tenant), None, 10).await.unwrap();
    assert_eq!(levels[0].quota.level, Level::Tenant);
    levels[0].quota.used
}

fn violations<T: std::fmt::Debug>(answer: Result<T, AppError>) -> Vec<Violation> {
    match answer {
        Err(AppError::Refused(Refusal::QuotaExceeded { violations })) => violations,
        other => panic!("not refused for its quota: {other:?}"),
    }
}

/// KAI 1370 and HAMi 1393: every card of a workload counts.
#[tokio::test]
async fn reports_3_and_17_every_card_counts() {
    let (mut world, tenant, _) = pool_of(&[Bytes::mib(100); 2]).await;
    set(&world, tenant, bytes(Bytes::mib(100))).await;
    let refused = violations(world.request(tenant, ask(Bytes::mib(60), 2)).await);
    let (mib100, mib120) = (Bytes::mib(100).0, Bytes::mib(120).0);
    assert_eq!(
        refused,
        [Violation { level: Level::Tenant, limit_kind: LimitKind::Bytes, limit: mib100, used: 0, asked: mib120 }]
    );
    world.request(tenant, ask(Bytes::mib(50), 2)).await.unwrap();
    assert_eq!(used(&world, tenant).await, Use { bytes: Bytes::mib(100), allocations: 1 });
}

/// HAMi 2313: zero is nothing, absent is unlimited.
#[tokio::test]
async fn report_15_zero_is_nothing_and_absent_is_unlimited() {
    let (mut world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    for limits in [
        bytes(Bytes::ZERO),
        Limits { workload_bytes: Some(Bytes::ZERO), ..Limits::default() },
        Limits { allocations: Some(0), ..Limits::default() },
    ] {
        set(&world, tenant, limits).await;
        assert_eq!(violations(world.request(tenant, ask(Bytes(1), 1)).await).len(), 1);
    }
    set(&world, tenant, Limits::default()).await;
    world.request(tenant, ask(Bytes::gib(80), 1)).await.unwrap();
}

#[tokio::test]
async fn every_violated_limit_is_named() {
    let (mut world, tenant, project) = pool_of(&[Bytes::gib(80)]).await;
    world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap();
    let all =
        |gib| Limits { bytes: Some(Bytes::gib(gib)), workload_bytes: Some(Bytes::gib(gib)), allocations: Some(1) };
    set(&world, tenant, all(12)).await;
    app::quota::set_project(&world.app, &operator(), project, all(6)).await.unwrap();
    let named: Vec<_> = violations(world.request(tenant, ask(Bytes::gib(10), 1)).await)
        .into_iter()
        .map(|v| (v.level.name(), v.limit_kind.name(), v.limit >> 30, v.used >> 30, v.asked >> 30))
        .collect();
    assert_eq!(
        named,
        [
            ("tenant", "bytes", 12, 5, 10),
            ("tenant", "allocations", 0, 0, 0),
            ("project", "bytes", 6, 5, 10),
            ("project", "workload_bytes", 6, 0, 10),
            ("project", "allocations", 0, 0, 0),
        ]
    );
}

/// Lowering a limit below what is used is legal, takes nothing away, and only stops what comes.
#[tokio::test]
async fn a_limit_below_its_use_only_stops_admission() {
    let (mut world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    let ids = [
        world.run(tenant, ask(Bytes::gib(30), 1)).await.row.allocation_id,
        world.run(tenant, ask(Bytes::gib(30), 1)).await.row.allocation_id,
    ];
    set(&world, tenant, bytes(Bytes::gib(10))).await;
    assert_eq!(used(&world, tenant).await.bytes, Bytes::gib(60));
    for id in ids {
        assert_eq!(world.get(id).await.row.state, S::Active);
        violations(world.request(tenant, ask(Bytes(1), 1)).await);
        world.release(id).await;
    }
    assert_eq!(used(&world, tenant).await, Use::default());
    world.request(tenant, ask(Bytes::gib(10), 1)).await.unwrap();
}

/// Exactly as many as fit are granted of what comes at once; the others get the reason.
#[tokio::test]
async fn at_the_edge_exactly_as_many_as_fit_are_granted() {
    let (world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    set(&world, tenant, bytes(Bytes::gib(10))).await;
    let keys: Vec<String> = (0..48).map(|n| format!("k{n}")).collect();
    let answers = futures(keys.iter().map(|key| world.request_as(tenant, ask(Bytes::gib(1), 1), key))).await;
    let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((granted.len(), refused.len()), (10, 38));
    for answer in refused {
        violations(answer);
    }
    assert_eq!(used(&world, tenant).await, Use { bytes: Bytes::gib(10), allocations: 10 });
}

/// HAMi 2386: no request slips through while limits are edited.
#[tokio::test]
async fn report_14_editing_a_limit_never_lifts_it() {
    let (world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    set(&world, tenant, bytes(Bytes::gib(4))).await;
    let edits = async {
        for n in 0..40 {
            set(&world, tenant, bytes(Bytes::gib(3 + n % 2))).await;
        }
        set(&world, tenant, bytes(Bytes::gib(4))).await;
    };
    let keys: Vec<String> = (0..120).map(|n| format!("k{n}")).collect();
    let asks = async {
        let mut granted = 0;
        for chunk in keys.chunks(6) {
            let answers = futures(chunk.iter().map(|key| world.request_as(tenant, ask(Bytes::gib(1), 1), key))).await;
            granted += answers.iter().filter(|answer| answer.is_ok()).count();
        }
        granted
    };
    let ((), granted) = tokio::join!(edits, asks);
    assert!((3..=4).contains(&granted), "{granted}");
    assert_eq!(used(&world, tenant).await.bytes, Bytes::gib(u64::try_from(granted).unwrap()));
}

/// Volcano 5253, 4809: a replay counts once, and so does a release.
#[tokio::test]
async fn report_10_a_replay_counts_once() {
    let (world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        ids.insert(world.request_as(tenant, ask(Bytes::mib(1000), 1), "k").await.unwrap().0.row.allocation_id);
    }
    assert_eq!((ids.len(), used(&world, tenant).await.bytes), (1, Bytes::mib(1000)));
    let id = *ids.first().unwrap();
    let releases = futures((0..5).map(|_| allocation::release(&world.app, operator_ref(), id))).await;
    assert!(releases.into_iter().all(|r| r.unwrap().row.state == S::Cancelled));
    assert_eq!(used(&world, tenant).await, Use::default());
}

fn operator_ref() -> &'static app::Caller {
    static OPERATOR: app::Caller = operator();
    &OPERATOR
}

/// The schema holds the same a second time: what would be over is refused whatever the scheduler believes.
#[tokio::test]
async fn the_schema_refuses_more_than_a_card_has_and_use_below_nothing() {
    let (world, tenant, _) = pool_of(&[Bytes::gib(80)]).await;
    let mut owner = world.owner().await;
    for (statement, rule) in [
        ("update gpu set granted = allocatable + 1", "gpu_never_over"),
        ("update gpu set granted = -1", "gpu_never_over"),
        ("update quota set used_bytes = -1", "quota_use_is_not_negative"),
        ("update quota set limit_bytes = -1", "quota_limits_are_not_negative"),
    ] {
        let error = sqlx::query(statement).execute(&mut owner).await.unwrap_err();
        assert_eq!(error.as_database_error().and_then(|e| e.constraint()), Some(rule));
    }
    // use that the scheduler would give back although nobody has it is an alarm, and no quota grows
    let mut world = world;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    sqlx::query("update quota set used_bytes = 1, used_allocations = 1").execute(&mut owner).await.unwrap();
    let answer = allocation::release(&world.app, &member(tenant), id).await;
    assert!(matches!(answer, Err(AppError::Internal(_))), "{answer:?}");
    assert_eq!(used(&world, tenant).await.bytes, Bytes(1));
    assert_eq!(world.get(id).await.row.state, S::Active);
}
