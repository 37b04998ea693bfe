//! One leader writes a pool at a time; what changes when another takes over.

use crate::world::{Host, World, ask, at, leads, member, server};
use app::{AppError, allocation};
use types::{AllocationState as S, Bytes, Cause, Clock, Request};

const START: &str = "2026-11-10T10:00:00Z";

async fn one_card() -> (World, Host, types::TenantId) {
    let world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    (world, host, tenant)
}

#[tokio::test]
async fn an_outage_of_the_server_runs_no_deadline() {
    let (mut world, host, tenant) = one_card().await;
    let held = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row.allocation_id;
    let limited = world.run(tenant, Request { max_duration_s: Some(300), ..ask(Bytes::gib(5), 1) }).await;
    let (limited, ends_by) = (limited.row.allocation_id, limited.row.ends_by.unwrap());
    world.pass(20);
    world.report(&host, &[limited]).await;
    world.restart_after(7200).await;
    world.tick().await;
    let row = world.get(held).await.row;
    assert_eq!((row.state, row.hold_until), (S::Held, Some(at("2026-11-10T12:02:00Z"))));
    let row = world.get(limited).await.row;
    assert_eq!((row.state, row.ends_by), (S::Active, Some(ends_by.plus_secs(7200))));
    assert_eq!(row.unconfirmed_since, None, "the node had no leader to report to");

    // and nothing ends for one grace, in which signs of life can come
    world.pass(89);
    world.tick().await;
    assert_eq!(world.get(limited).await.row.unconfirmed_since, None);
    world.report(&host, &[limited]).await;
    world.pass(11);
    world.tick().await;
    let row = world.get(held).await.row;
    assert_eq!((row.state, row.cause), (S::Expired, Cause::HoldGrace));
    world.release(limited).await;
    assert_eq!(world.intervals(limited).await, [(at(START), world.now(), false)]);
}

/// Silence is counted while somebody listens, so a day without a server loses nothing either.
#[tokio::test]
async fn the_day_of_silence_runs_only_while_a_leader_listens() {
    let (mut world, host, tenant) = one_card().await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.report(&host, &[id]).await;
    world.pass(3600);
    world.tick().await;
    assert_eq!(world.get(id).await.row.unconfirmed_since, Some(at(START)));
    world.restart_after(86_400).await;
    world.pass(3600);
    world.tick().await;
    assert_eq!(world.get(id).await.row.state, S::Active);
    world.pass(86_400 - 2 * 3600);
    world.tick().await;
    let row = world.get(id).await.row;
    assert_eq!((row.state, row.cause), (S::Lost, Cause::NodeLost));
    assert_eq!(world.intervals(id).await, []);
}

/// Leaders that die one after the other add each stretch without a leader once.
#[tokio::test]
async fn the_time_without_a_leader_is_added_once() {
    let (mut world, _, tenant) = one_card().await;
    let task = world.loop_in_hand().await;
    let held = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row;
    task.abort();
    for _ in 0..3 {
        world.lease_runs_out().await;
        world.pass(100);
        world.app = world.another_server();
        let task = world.app.schedule_pool(world.pool).unwrap();
        leads(&world.app, world.pool).await;
        world.pass(1);
        // it dies before it has renewed its lease, or written anything
        task.abort();
        let _ = task.await;
    }
    let hold_until = world.get(held.allocation_id).await.row.hold_until.unwrap();
    // three times 100 s without a leader, and two stretches of a second of which nobody can tell whether it led
    let added = hold_until.since(held.hold_until.unwrap());
    assert!((300_000..=302_000).contains(&added), "{added}");
}

#[tokio::test]
async fn a_former_leader_cannot_write() {
    let (mut world, _, tenant) = one_card().await;
    let held = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row.allocation_id;
    let former = world.app.clone();
    world.lease_runs_out().await;
    world.app = world.another_server();
    world.app.schedule_pool(world.pool);
    leads(&world.app, world.pool).await;
    for _ in 0..2 {
        let late = allocation::confirm(&former, &member(tenant), held).await;
        assert!(matches!(late, Err(AppError::Unavailable(_))), "{late:?}");
    }
    assert_eq!(world.get(held).await.row.state, S::Held);
    allocation::confirm(&world.app, &member(tenant), held).await.unwrap();
    let terms: (i64,) =
        sqlx::query_as("select term from pool_leadership").fetch_one(&mut world.owner().await).await.unwrap();
    assert_eq!(terms.0, 2);
}

/// A take-over waits for the transaction that the former leader has under way.
#[tokio::test]
async fn a_take_over_waits_for_the_former_leaders_transaction() {
    let (mut world, _, _) = one_card().await;
    let mut owner = world.owner().await;
    let mut under_way = sqlx::Connection::begin(&mut owner).await.unwrap();
    sqlx::query("select from pool_leadership where term = 1 for key share").fetch_all(&mut *under_way).await.unwrap();
    world.lease_runs_out().await;
    let next = world.another_server();
    next.schedule_pool(world.pool);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let term: i64 =
        sqlx::query_scalar("select term from pool_leadership").fetch_one(&mut world.owner().await).await.unwrap();
    assert_eq!(term, 1);
    under_way.rollback().await.unwrap();
    leads(&next, world.pool).await;
}

/// The next leader's clock may be behind: the pool's time is not.
#[tokio::test]
async fn the_pools_time_never_goes_back() {
    let (mut world, host, tenant) = one_card().await;
    let task = world.loop_in_hand().await;
    world.pass(1000);
    world.report(&host, &[]).await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    let written = world.now();
    task.abort();
    let _ = task.await;
    world.lease_runs_out().await;
    world.app = server(&world.database, Clock::standing_at(written.plus_secs(-30)), 500);
    world.app.schedule_pool(world.pool);
    leads(&world.app, world.pool).await;
    world.release(id).await;
    let (changes, _) = allocation::history(&world.app, &member(tenant), id).await.unwrap();
    let released = changes.iter().find(|change| change.to_state == S::Released).unwrap();
    assert_eq!(released.at, written);
}

/// Slurm bug 16545: what ran goes on, and what was used stays used, over any number of restarts.
#[tokio::test]
async fn what_runs_survives_restarts() {
    let (mut world, host, tenant) = one_card().await;
    let limits = quota::Limits { bytes: Some(Bytes::gib(50)), ..quota::Limits::default() };
    app::quota::set_tenant(&world.app, &app::Caller::system(), tenant, limits).await.unwrap();
    let ids: Vec<_> = [
        world.run(tenant, ask(Bytes::gib(20), 1)).await.row.allocation_id,
        world.run(tenant, ask(Bytes::gib(20), 1)).await.row.allocation_id,
    ]
    .into();
    for _ in 0..3 {
        world.restart_after(5).await;
        world.report(&host, &ids).await;
        world.tick().await;
        assert!(matches!(world.request(tenant, ask(Bytes::gib(11), 1)).await, Err(AppError::Refused(_))));
    }
    for id in &ids {
        assert_eq!(world.release(*id).await.row.state, S::Released);
        // HAMi 1966: a release is given back once
        assert_eq!(world.release(*id).await.row.state, S::Released);
    }
    world.request(tenant, ask(Bytes::gib(50), 1)).await.unwrap();
    assert!(matches!(world.request(tenant, ask(Bytes(1), 1)).await, Err(AppError::Refused(_))));
}

/// Renewals are answered from memory; a server that stops in good order leaves them behind.
#[tokio::test]
async fn signs_of_life_outlive_the_leader_that_heard_them() {
    let (mut world, _, tenant) = one_card().await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.pass(60);
    allocation::renew(&world.app, &member(tenant), id).await.unwrap();
    world.restart_after(60).await;
    world.pass(91);
    world.tick().await;
    world.tick().await;
    let metered: i64 = world.intervals(id).await.iter().map(|(from, to, _)| to.since(*from)).sum();
    assert_eq!(metered, 60_000);
}

#[tokio::test]
async fn a_node_takes_new_placements_once_it_has_reported_to_the_present_leader() {
    let (mut world, host, tenant) = one_card().await;
    world.restart_after(10).await;
    let placed = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row;
    assert_eq!(placed.state, S::Held, "it reported shortly before the take-over");
    world.restart_after(91).await;
    let waits = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row;
    assert_eq!(waits.state, S::Queued);
    world.report(&host, &[]).await;
    assert_eq!(world.get(waits.allocation_id).await.row.state, S::Held);
}

/// A card that its node no longer reports takes nothing from the next leader either.
#[tokio::test]
async fn a_missing_card_stays_missing_for_the_next_leader() {
    let (mut world, mut host, tenant) = one_card().await;
    let gone = host.cards.pop().unwrap();
    world.report(&host, &[]).await;
    world.restart_after(5).await;
    let waits = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row;
    assert_eq!(waits.state, S::Queued);
    host.cards.push(gone);
    world.report(&host, &[]).await;
    assert_eq!(world.get(waits.allocation_id).await.row.state, S::Held);
}
