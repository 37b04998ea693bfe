//! Where requests are placed, and who waits for whom: order of arrival, and nobody is kept waiting for nothing.

use crate::{
    scheduler::futures,
    world::{GRACES, MODEL, World, ask, card, leads, member, name, number, operator},
};
use app::{AppError, allocation, node::NodeState};
use placement::Reason;
use std::{collections::BTreeMap, time::Duration};
use types::{AllocationId, AllocationState as S, Bytes, GpuId, Request, TenantId, wire::NodeReport};

const START: &str = "2026-11-10T10:00:00Z";

async fn tenant(world: &World, called: &str) -> TenantId {
    world.tenant(called, "UTC", "USD").await.0
}

async fn limit(world: &World, tenant: TenantId, bytes: Bytes) {
    let limits = quota::Limits { bytes: Some(bytes), ..quota::Limits::default() };
    app::quota::set_tenant(&world.app, &operator(), tenant, limits).await.unwrap();
}

async fn state(world: &World, id: AllocationId) -> S {
    world.get(id).await.row.state
}

#[tokio::test]
async fn a_later_small_request_never_takes_a_gpu_that_an_earlier_one_waits_for() {
    let mut world = World::new(START).await;
    world.host("large", &[Bytes::gib(80)]).await;
    world.host("small", &[Bytes::gib(24)]).await;
    let a = tenant(&world, "a").await;
    let first = world.run(a, ask(Bytes::gib(50), 1)).await.row.allocation_id;
    let large = world.request(a, ask(Bytes::gib(60), 1)).await.unwrap();
    assert_eq!((large.row.state, large.ahead), (S::Queued, Some(0)));
    // it could not use the small card
    let small = world.request(a, ask(Bytes::gib(20), 1)).await.unwrap();
    assert_eq!(small.row.state, S::Held);
    let later = world.request(a, ask(Bytes::gib(20), 1)).await.unwrap();
    assert_eq!((later.row.state, later.ahead), (S::Queued, Some(1)));
    let reasons: placement::NoRoom = serde_json::from_value(later.row.queue_reasons.clone().unwrap()).unwrap();
    assert!(reasons.reasons.iter().any(|r| r.reason == Reason::EarlierRequest), "{reasons:?}");

    world.release(first).await;
    let [large, later] = [large.row.allocation_id, later.row.allocation_id];
    assert_eq!((state(&world, large).await, state(&world, later).await), (S::Held, S::Held));
    assert_ne!(world.get(later).await.parts[0].row.gpu_id, small.parts[0].row.gpu_id);
}

#[tokio::test]
async fn who_waits_keeps_its_place_over_a_restart_and_leaves_it_when_withdrawn() {
    let mut world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let a = tenant(&world, "a").await;
    let first = world.run(a, ask(Bytes::gib(70), 1)).await.row.allocation_id;
    let mut waiting = Vec::new();
    for memory in [60, 40, 30, 5] {
        waiting.push(world.request(a, ask(Bytes::gib(memory), 1)).await.unwrap().row.allocation_id);
    }
    world.restart_after(3).await;
    world.report(&host, &[first]).await;
    for (n, id) in waiting.iter().enumerate() {
        assert_eq!(world.get(*id).await.ahead, Some(n));
    }
    allocation::cancel(&world.app, &member(a), waiting[0]).await.unwrap();
    assert_eq!(state(&world, waiting[0]).await, S::Cancelled);
    assert_eq!(world.get(waiting[3]).await.ahead, Some(2));
    world.release(first).await;
    for id in &waiting[1..] {
        assert_eq!(state(&world, *id).await, S::Held);
    }
}

#[tokio::test]
async fn a_request_that_waits_for_quota_blocks_nobody() {
    let mut world = World::new(START).await;
    let large = world.host("large", &[Bytes::gib(80)]).await;
    let small = world.host("small", &[Bytes::gib(24)]).await;
    let (x, y, z) = (tenant(&world, "x").await, tenant(&world, "y").await, tenant(&world, "z").await);
    limit(&world, x, Bytes::gib(60)).await;
    let other = world.run(y, ask(Bytes::gib(70), 1)).await.row.allocation_id;
    // there is quota for it, but no room
    let waits = world.request(x, ask(Bytes::gib(50), 1)).await.unwrap().row.allocation_id;
    let blocked = world.request(z, ask(Bytes::gib(5), 1)).await.unwrap().row;
    assert_eq!(blocked.state, S::Held, "it fits the small card");
    world.release(blocked.allocation_id).await;
    // now its tenant has used the quota up, so it keeps no card from others any more
    let uses_quota = world.run(x, ask(Bytes::gib(20), 1)).await.row.allocation_id;
    let placed = world.request(z, ask(Bytes::gib(9), 1)).await.unwrap();
    assert_eq!(placed.row.state, S::Held);
    assert_eq!(placed.parts[0].row.node_id, large.id);
    world.release(placed.row.allocation_id).await;
    // not even for the next leader
    world.restart_after(5).await;
    world.report(&large, &[other]).await;
    world.report(&small, &[uses_quota]).await;
    let placed = world.request(z, ask(Bytes::gib(9), 1)).await.unwrap();
    assert_eq!(placed.row.state, S::Held);

    world.release(placed.row.allocation_id).await;
    world.release(other).await;
    assert_eq!(state(&world, waits).await, S::Queued, "room, but no quota");
    world.release(uses_quota).await;
    assert_eq!(state(&world, waits).await, S::Held);
}

/// Who waits behind a request that can no longer be served is served instead, although nothing became free.
#[tokio::test]
async fn who_waits_behind_a_request_that_lost_its_chance_is_served() {
    let mut world = World::new(START).await;
    let pair = world.host("pair", &[Bytes::gib(80); 2]).await;
    let (x, y) = (tenant(&world, "x").await, tenant(&world, "y").await);
    limit(&world, x, Bytes::gib(160)).await;
    let one = Request { node_id: Some(pair.id), ..ask(Bytes::gib(50), 1) };
    let runs = world.run(y, one).await.row.allocation_id;
    // both cards are wanted, so the second stays empty
    world.request(x, ask(Bytes::gib(60), 2)).await.unwrap();
    let behind = world.request(y, ask(Bytes::gib(60), 1)).await.unwrap().row;
    assert_eq!(behind.state, S::Queued);
    // another host comes, and the first tenant uses its quota up there
    let other = world.host("other", &[Bytes::gib(60)]).await;
    assert_eq!(state(&world, behind.allocation_id).await, S::Held, "it fits the new card");
    world.release(behind.allocation_id).await;
    let behind = world.request(y, Request { node_id: Some(pair.id), ..ask(Bytes::gib(60), 1) }).await.unwrap().row;
    assert_eq!(behind.state, S::Queued);
    world.run(x, Request { node_id: Some(other.id), ..ask(Bytes::gib(60), 1) }).await;
    world.tick().await;
    assert_eq!(state(&world, behind.allocation_id).await, S::Held);
    assert_eq!(state(&world, runs).await, S::Active);
}

/// Quota is the tenant's, whatever the pool: what one pool gives back serves who waits in another.
#[tokio::test]
async fn quota_given_back_in_one_pool_serves_who_waits_in_another() {
    let mut world = World::new(START).await;
    world.host("here", &[Bytes::gib(80), Bytes::gib(80)]).await;
    let there = app::pool::create(&world.app, &operator(), name("there"), GRACES).await.unwrap().pool_id;
    leads(&world.app, there).await;
    world.join(there, "there", vec![card(MODEL, Bytes::gib(80), Some(Bytes::ZERO), number("there", 0))]).await;
    let (a, b) = (tenant(&world, "a").await, tenant(&world, "b").await);
    limit(&world, a, Bytes::gib(80)).await;
    let ask_there = |tenant, memory, key: &'static str| {
        let ask = allocation::Ask {
            tenant_id: None,
            project_id: None,
            pool_id: Some(there),
            request: ask(Bytes::gib(memory), 1),
        };
        let app = world.app.clone();
        async move { allocation::request(&app, &member(tenant), ask, key).await.unwrap().0.row }
    };
    let occupied = ask_there(b, 80, "1").await.allocation_id;
    let waits = ask_there(a, 80, "2").await.allocation_id;
    let here = world.run(a, ask(Bytes::gib(80), 1)).await.row.allocation_id;
    world.release(occupied).await;
    assert_eq!(state(&world, waits).await, S::Queued);
    world.release(here).await;
    world.app.tick(there).await.unwrap();
    assert_eq!(state(&world, waits).await, S::Held);
}

#[tokio::test]
async fn a_raised_limit_and_an_uncordoned_node_serve_who_waits() {
    let mut world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let a = tenant(&world, "a").await;
    app::node::set_state(&world.app, &operator(), host.id, NodeState::Cordoned).await.unwrap();
    let waits = world.request(a, ask(Bytes::gib(50), 1)).await.unwrap().row.allocation_id;
    limit(&world, a, Bytes::gib(40)).await;
    app::node::set_state(&world.app, &operator(), host.id, NodeState::Active).await.unwrap();
    assert_eq!(state(&world, waits).await, S::Queued);
    limit(&world, a, Bytes::gib(50)).await;
    assert_eq!(state(&world, waits).await, S::Held);
}

/// Memory that a stranger used and gave up is found out by a report that says nothing else.
#[tokio::test]
async fn memory_that_strangers_give_up_serves_who_waits() {
    let mut world = World::new(START).await;
    let mut host = world.host("host", &[Bytes::gib(80)]).await;
    let a = tenant(&world, "a").await;
    host.cards[0].memory_used = Some(Bytes::gib(30));
    world.report(&host, &[]).await;
    let waits = world.request(a, ask(Bytes::gib(60), 1)).await.unwrap().row.allocation_id;
    assert_eq!(state(&world, waits).await, S::Queued);
    host.cards[0].memory_used = Some(Bytes::gib(1));
    world.report(&host, &[]).await;
    assert_eq!(state(&world, waits).await, S::Held);
}

#[tokio::test]
async fn waiting_ends_when_it_is_placed() {
    let mut world = World::new(START).await;
    world.host("host", &[Bytes::gib(80)]).await;
    let a = tenant(&world, "a").await;
    let first = world.run(a, ask(Bytes::gib(80), 1)).await.row.allocation_id;
    let waits = world.request(a, ask(Bytes::gib(80), 1)).await.unwrap().row.allocation_id;
    let app = world.app.clone();
    let waiting = tokio::spawn(async move {
        allocation::wait(&app, &member(a), waits, Duration::from_secs(30)).await.unwrap().row.state
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.release(first).await;
    let placed = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    assert_eq!(placed, S::Held);
    let again = world.request(a, ask(Bytes::gib(80), 1)).await.unwrap().row.allocation_id;
    let in_vain = allocation::wait(&world.app, &member(a), again, Duration::from_millis(50)).await.unwrap();
    assert_eq!(in_vain.row.state, S::Queued);
}

/// KAI 416: 46068 MiB are 23 × 2000 MiB, not 24.
#[tokio::test]
async fn report_1_of_24_requests_23_run_and_1_waits() {
    let world = World::new(START).await;
    world.host("host", &[Bytes::mib(46_068)]).await;
    let a = tenant(&world, "a").await;
    let keys: Vec<String> = (0..24).map(|n| format!("k{n}")).collect();
    let answers = futures(keys.iter().map(|key| world.request_as(a, ask(Bytes::mib(2000), 1), key))).await;
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    for answer in answers {
        *states.entry(answer.unwrap().0.row.state.name()).or_default() += 1;
    }
    assert_eq!(states, BTreeMap::from([("held", 23), ("queued", 1)]));
}

/// KAI 2153: sixteen halves on eight cards are two on each.
#[tokio::test]
async fn report_5_sixteen_halves_fill_eight_cards() {
    let world = World::new(START).await;
    world.host("host", &[Bytes::gib(80); 8]).await;
    let a = tenant(&world, "a").await;
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    let answers = futures(keys.iter().map(|key| world.request_as(a, ask(Bytes::gib(40), 1), key))).await;
    let mut on: BTreeMap<GpuId, u32> = BTreeMap::new();
    for answer in answers {
        *on.entry(answer.unwrap().0.parts[0].row.gpu_id).or_default() += 1;
    }
    assert_eq!(on.into_values().collect::<Vec<_>>(), [2; 8]);
}

/// KAI 2212: what the driver keeps is nobody's to give.
#[tokio::test]
async fn report_6_the_drivers_memory_is_not_given() {
    let mut world = World::new(START).await;
    world.join(world.pool, "t4", vec![card("Tesla T4", Bytes::mib(15_360), Some(Bytes::mib(450)), 1)]).await;
    let a = tenant(&world, "a").await;
    let whole = world.request(a, ask(Bytes::mib(15_360), 1)).await;
    assert!(matches!(whole, Err(AppError::Invalid(_))), "{whole:?}");
    for _ in 0..2 {
        assert_eq!(world.request(a, ask(Bytes::mib(7455), 1)).await.unwrap().row.state, S::Held);
    }
    assert_eq!(world.request(a, ask(Bytes(1), 1)).await.unwrap().row.state, S::Queued);
}

/// HAMi 1106: a request for several cards gets all of them on one node, or none.
#[tokio::test]
async fn report_13_all_cards_on_one_node_or_none() {
    let mut world = World::new(START).await;
    let one = world.host("one", &[Bytes::gib(80); 2]).await;
    let two = world.host("two", &[Bytes::gib(80); 2]).await;
    let a = tenant(&world, "a").await;
    let mut on_one = Vec::new();
    for host in [&one, &two] {
        let pinned = Request { node_id: Some(host.id), ..ask(Bytes::gib(70), 1) };
        on_one.push(world.run(a, pinned).await.row.allocation_id);
    }
    let waits = world.request(a, ask(Bytes::gib(20), 2)).await.unwrap();
    assert_eq!((waits.row.state, waits.parts.len()), (S::Queued, 0));
    let never = world.request(a, ask(Bytes::gib(20), 3)).await;
    assert!(matches!(never, Err(AppError::Refused(app::error::Refusal::Unsatisfiable { .. }))), "{never:?}");
    world.release(on_one[0]).await;
    let placed = world.get(waits.row.allocation_id).await;
    assert_eq!(placed.parts.len(), 2);
    assert!(placed.parts.iter().all(|part| part.row.node_id == one.id));
}

/// Volcano 5470, 2859: strangers that use more than there is leave nothing free, rather than a number that wraps.
#[tokio::test]
async fn report_9_more_in_use_than_there_is_leaves_nothing_free() {
    let mut world = World::new(START).await;
    let host = world.host("host", &[Bytes(1000)]).await;
    let a = tenant(&world, "a").await;
    let mut report = NodeReport { ..host.report(world.now()) };
    report.gpus[0].memory_used = Some(Bytes(3000));
    app::node::report(&world.app, &host.caller(), report).await.unwrap();
    assert_eq!(world.request(a, ask(Bytes(500), 1)).await.unwrap().row.state, S::Queued);
    assert_eq!(world.app.look_at_pool(world.pool).await.unwrap().gpus[0].free, Bytes::ZERO);
}

#[tokio::test]
async fn a_dry_run_says_what_a_request_would_get_and_holds_nothing() {
    let mut world = World::new(START).await;
    world.host("host", &[Bytes::gib(80)]).await;
    let a = tenant(&world, "a").await;
    let dry = |memory| {
        let app = world.app.clone();
        let ask =
            allocation::Ask { tenant_id: None, project_id: None, pool_id: None, request: ask(Bytes::gib(memory), 1) };
        async move { allocation::dry_run(&app, &member(a), ask).await.unwrap() }
    };
    for _ in 0..3 {
        assert!(matches!(dry(80).await, app::scheduler::DryRun::Placed { .. }));
    }
    let rows: i64 =
        sqlx::query_scalar("select count(*) from allocation").fetch_one(&mut world.owner().await).await.unwrap();
    assert_eq!(rows, 0);
    world.request(a, ask(Bytes::gib(80), 1)).await.unwrap();
    limit(&world, a, Bytes::gib(81)).await;
    let busy = {
        let app = world.app.clone();
        let ask = allocation::Ask { tenant_id: None, project_id: None, pool_id: None, request: ask(Bytes::gib(1), 1) };
        allocation::dry_run(&app, &member(a), ask).await.unwrap()
    };
    assert!(matches!(busy, app::scheduler::DryRun::Queued { ahead: 0, .. }), "{busy:?}");
}
