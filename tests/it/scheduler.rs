//! The life of an allocation, from the request under its key to the end of its meter.

use crate::world::{Host, World, ask, at, member, name, operator};
use app::{AppError, allocation, node::NodeState};
use std::collections::BTreeSet;
use types::{AllocationId, AllocationState as S, Bytes, Cause, Instant, Request, wire::NodeReport};

const START: &str = "2026-11-10T10:00:00Z";

async fn one_card() -> (World, Host) {
    let world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    (world, host)
}

async fn count(world: &World, table: &'static str) -> i64 {
    let text = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(text).fetch_one(&mut world.owner().await).await.unwrap()
}

#[tokio::test]
async fn a_repeated_request_gets_the_allocation_as_it_stands() {
    let (world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let me = member(tenant);
    let (first, made) = world.request_as(tenant, ask(Bytes::gib(20), 1), "k").await.unwrap();
    assert!(made);
    let id = first.row.allocation_id;
    let repeat = || async {
        let (view, made) = world.request_as(tenant, ask(Bytes::gib(20), 1), "k").await.unwrap();
        assert!(!made);
        assert_eq!(view.row.allocation_id, id);
        view.row.state
    };
    assert_eq!(repeat().await, S::Held);
    allocation::confirm(&world.app, &me, id).await.unwrap();
    assert_eq!(repeat().await, S::Active);
    allocation::release(&world.app, &me, id).await.unwrap();
    assert_eq!(repeat().await, S::Released);
    assert_eq!(count(&world, "allocation").await, 1);

    let other = world.request_as(tenant, ask(Bytes::gib(21), 1), "k").await;
    assert!(matches!(other, Err(AppError::KeyReused)), "{other:?}");
    // keys are the tenant's own
    let (stranger, _) = world.tenant("b", "UTC", "USD").await;
    let (theirs, made) = world.request_as(stranger, ask(Bytes::gib(21), 1), "k").await.unwrap();
    assert!(made && theirs.row.allocation_id != id);
}

/// A refusal is kept with its key like any answer; what could not be decided is not.
#[tokio::test]
async fn a_refusal_is_repeated_and_what_was_not_decided_is_not_stored() {
    let (mut world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let nothing = quota::Limits { bytes: Some(Bytes::ZERO), ..quota::Limits::default() };
    app::quota::set_tenant(&world.app, &operator(), tenant, nothing).await.unwrap();
    let refused = |answer: Result<_, AppError>| assert!(matches!(answer, Err(AppError::Refused(_))), "not refused");
    refused(world.request_as(tenant, ask(Bytes::gib(1), 1), "k").await.map(drop));
    app::quota::set_tenant(&world.app, &operator(), tenant, quota::Limits::default()).await.unwrap();
    refused(world.request_as(tenant, ask(Bytes::gib(1), 1), "k").await.map(drop));

    let invalid = world.request_as(tenant, ask(Bytes::gib(81), 1), "l").await;
    assert!(matches!(invalid, Err(AppError::Invalid(_))), "{invalid:?}");
    world.app.schedulers.stop();
    let undecided = world.request_as(tenant, ask(Bytes::gib(1), 1), "m").await;
    assert!(matches!(undecided, Err(AppError::Unavailable(_))), "{undecided:?}");
    world.restart_after(0).await;
    assert_eq!(count(&world, "request_key").await, 1);
    for key in ["l", "m"] {
        world.request_as(tenant, ask(Bytes::gib(1), 1), key).await.unwrap();
    }
}

#[tokio::test]
async fn many_at_once_under_one_key_make_one_allocation() {
    let (world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let asks = (0..16).map(|_| world.request_as(tenant, ask(Bytes::gib(5), 1), "k"));
    let mut answers = Vec::new();
    for answer in futures(asks).await {
        answers.push(answer.unwrap());
    }
    let ids: BTreeSet<AllocationId> = answers.iter().map(|(view, _)| view.row.allocation_id).collect();
    assert_eq!((ids.len(), answers.iter().filter(|(_, made)| *made).count()), (1, 1));
    assert_eq!(count(&world, "part").await, 1);
}

/// All of them at once, on this task.
pub async fn futures<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in running.iter_mut().zip(&mut done) {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn keys_are_kept_for_seven_days() {
    let (world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let ask_again = || async { world.request_as(tenant, ask(Bytes::gib(5), 1), "k").await.unwrap().1 };
    assert!(ask_again().await);
    world.pass(7 * 86_400 - 1);
    app::tasks::run_due(&world.app).await;
    assert!(!ask_again().await);
    world.pass(3601);
    app::tasks::run_due(&world.app).await;
    assert!(ask_again().await);
}

/// HAMi 1927, 1898, 1905: a workload that never comes leaves nothing taken behind.
#[tokio::test]
async fn a_hold_that_nobody_confirms_expires_and_gives_its_quota_back() {
    let (mut world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let limits = quota::Limits { bytes: Some(Bytes::gib(20)), ..quota::Limits::default() };
    app::quota::set_tenant(&world.app, &operator(), tenant, limits).await.unwrap();
    let held = world.request(tenant, ask(Bytes::gib(20), 1)).await.unwrap().row;
    assert_eq!((held.state, held.hold_until), (S::Held, Some(at("2026-11-10T10:02:00Z"))));
    world.pass(119);
    world.tick().await;
    assert!(world.request(tenant, ask(Bytes(1), 1)).await.is_err());
    world.pass(1);
    world.tick().await;
    let expired = world.get(held.allocation_id).await.row;
    assert_eq!((expired.state, expired.cause), (S::Expired, Cause::HoldGrace));
    let levels = app::quota::list(&world.app, &operator(), Some(tenant), None, 10).await.unwrap();
    assert!(levels.iter().all(|level| level.quota.used == quota::Use::default()), "{levels:?}");
    world.request(tenant, ask(Bytes::gib(20), 1)).await.unwrap();

    let late = allocation::confirm(&world.app, &member(tenant), held.allocation_id).await;
    assert!(matches!(late, Err(AppError::Conflict { code: "not_held", .. })), "{late:?}");
    assert_eq!(world.intervals(held.allocation_id).await, []);
}

#[tokio::test]
async fn the_first_confirmation_wins_and_a_repeat_changes_nothing() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row.allocation_id;
    world.pass(7);
    let first = allocation::confirm(&world.app, &host.caller(), id).await.unwrap();
    world.pass(5);
    let again = allocation::confirm(&world.app, &member(tenant), id).await.unwrap();
    assert_eq!(first.row.active_since, Some(at("2026-11-10T10:00:07Z")));
    assert_eq!(again.row.active_since, first.row.active_since);
}

#[tokio::test]
async fn max_duration_ends_a_workload_to_the_millisecond() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    // nothing ends within one grace of a leader's first instant
    world.pass(90);
    let request = Request { max_duration_s: Some(60), ..ask(Bytes::gib(5), 1) };
    let active = world.run(tenant, request).await.row;
    let end = at("2026-11-10T10:02:30Z");
    assert_eq!(active.ends_by, Some(end));
    world.pass(59);
    world.report(&host, &[active.allocation_id]).await;
    world.tick().await;
    assert_eq!(world.get(active.allocation_id).await.row.state, S::Active);
    world.pass(30);
    world.report(&host, &[active.allocation_id]).await;
    world.tick().await;
    let ended = world.get(active.allocation_id).await.row;
    assert_eq!((ended.state, ended.cause), (S::Released, Cause::MaxDuration));
    assert_eq!(world.intervals(active.allocation_id).await, [(end.plus_secs(-60), end, false)]);
}

/// gpustack 6279: a workload that is gone without a word is metered to its last sign of life and no further.
#[tokio::test]
async fn what_vanished_is_metered_to_its_last_sign_of_life() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let seen = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    let renewed = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    let silent = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.pass(40);
    world.report(&host, &[seen]).await;
    world.pass(10);
    allocation::renew(&world.app, &member(tenant), renewed).await.unwrap();
    for _ in 0..3 {
        world.pass(60);
        world.report(&host, &[]).await;
        world.tick().await;
    }
    for (id, seconds) in [(seen, 40), (renewed, 50), (silent, 0)] {
        let row = world.get(id).await.row;
        assert_eq!((row.state, row.cause), (S::Released, Cause::Vanished));
        let metered: i64 = world.intervals(id).await.iter().map(|(from, to, _)| to.since(*from)).sum();
        assert_eq!(metered, seconds * 1000);
    }
}

/// kubefin 47: ten seconds are ten seconds, whatever the rhythm of samples.
#[tokio::test]
async fn ten_seconds_are_metered_as_ten_seconds() {
    let (mut world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.pass(10);
    world.release(id).await;
    assert_eq!(world.intervals(id).await, [(at(START), at(START).plus_secs(10), false)]);
}

/// The exit that the agent saw ends the meter, within start and now.
#[tokio::test]
async fn an_exit_is_clamped_to_start_and_now() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    for (exit_s, metered_s) in [(-30, None), (25, Some(25)), (500, Some(60))] {
        let active = world.run(tenant, ask(Bytes::gib(5), 1)).await.row;
        let id = active.allocation_id;
        let start = active.active_since.unwrap();
        world.pass(60);
        world.exited(&host, id, start.plus_secs(exit_s)).await;
        let row = world.get(id).await.row;
        assert_eq!((row.state, row.cause, row.ended_at), (S::Released, Cause::Exited, Some(world.now())));
        let expected: Vec<(Instant, Instant, bool)> =
            metered_s.map(|s| (start, start.plus_secs(s), false)).into_iter().collect();
        assert_eq!(world.intervals(id).await, expected);
    }
}

#[tokio::test]
async fn a_silent_node_stops_the_meter_and_the_attested_gap_is_metered_and_marked() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.pass(30);
    world.report(&host, &[id]).await;
    world.pass(89);
    world.tick().await;
    assert_eq!(world.get(id).await.row.unconfirmed_since, None, "the grace has not passed");
    world.pass(1);
    world.tick().await;
    let stopped = at("2026-11-10T10:00:30Z");
    let row = world.get(id).await.row;
    assert_eq!((row.state, row.unconfirmed_since), (S::Active, Some(stopped)));
    // its memory stays held and counts, and nothing is placed there
    let waits = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap();
    assert_eq!(waits.row.state, S::Queued);

    world.pass(3600);
    let back = world.now();
    world.report(&host, &[id]).await;
    assert_eq!(world.get(id).await.row.unconfirmed_since, None);
    assert_eq!(world.get(waits.row.allocation_id).await.row.state, S::Held);
    world.pass(20);
    world.release(id).await;
    let expected = [(at(START), stopped, false), (stopped, back, true), (back, world.now(), false)];
    assert_eq!(world.intervals(id).await, expected);
}

/// What is confirmed while its node is silent is as unconfirmed as what ran there before.
#[tokio::test]
async fn a_workload_that_starts_on_a_silent_node_waits_for_its_word() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap().row.allocation_id;
    world.pass(91);
    world.tick().await;
    let started = world.now();
    allocation::confirm(&world.app, &member(tenant), id).await.unwrap();
    world.pass(60);
    allocation::renew(&world.app, &member(tenant), id).await.unwrap();
    world.tick().await;
    assert_eq!(world.get(id).await.row.unconfirmed_since, Some(world.now()));
    world.pass(600);
    world.report(&host, &[id]).await;
    let (renewed, back) = (started.plus_secs(60), world.now());
    assert_eq!(world.intervals(id).await, [(started, renewed, false), (renewed, back, true)]);
}

/// A workload that no agent sees lives by its owner's word alone, also after its node was silent: its meter goes on with
/// the next renewal, and a later silence counts from then.
#[tokio::test]
async fn a_renewal_restarts_the_meter_once_the_node_is_back() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    let started = world.now();
    world.pass(91);
    world.tick().await;
    world.report(&host, &[]).await;
    assert_eq!(world.get(id).await.row.unconfirmed_since, Some(started));
    let back = allocation::renew(&world.app, &member(tenant), id).await.unwrap();
    assert_eq!((back.row.unconfirmed_since, back.row.cause), (None, Cause::Attested));
    let restarted = world.now();
    assert_eq!(world.intervals(id).await, [(started, restarted, true)]);
    world.pass(60);
    allocation::release(&world.app, &member(tenant), id).await.unwrap();
    assert_eq!(world.intervals(id).await[1..], [(restarted, world.now(), false)]);
}

#[tokio::test]
async fn after_a_day_of_silence_it_is_lost_and_what_turns_up_later_is_a_stranger() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    world.pass(60);
    world.report(&host, &[id]).await;
    world.pass(86_399);
    world.tick().await;
    assert_eq!(world.get(id).await.row.state, S::Active);
    world.pass(1);
    world.tick().await;
    let row = world.get(id).await.row;
    assert_eq!((row.state, row.cause), (S::Lost, Cause::NodeLost));
    let orders = world.report(&host, &[id]).await;
    assert_eq!(orders.parts, []);
    assert_eq!(world.get(id).await.row, row);
    assert_eq!(world.intervals(id).await, [(at(START), at(START).plus_secs(60), false)]);
}

#[tokio::test]
async fn a_new_boot_loses_what_ran_and_frees_what_was_held() {
    let (mut world, mut host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let ran = world.run(tenant, ask(Bytes::gib(40), 1)).await.row.allocation_id;
    let held = world.request(tenant, ask(Bytes::gib(40), 1)).await.unwrap().row.allocation_id;
    let waits = world.request(tenant, ask(Bytes::gib(80), 1)).await.unwrap().row.allocation_id;
    world.pass(30);
    world.report(&host, &[ran]).await;
    world.pass(30);
    host.boot = name("second boot");
    // an agent that still lists it does not bring it back
    world.report(&host, &[ran]).await;
    let row = world.get(ran).await.row;
    assert_eq!((row.state, row.cause), (S::Lost, Cause::NodeRebooted));
    let row = world.get(held).await.row;
    assert_eq!((row.state, row.cause), (S::Expired, Cause::NodeRebooted));
    assert_eq!(world.get(waits).await.row.state, S::Held);
    assert_eq!(world.intervals(ran).await, [(at(START), at(START).plus_secs(30), false)]);
}

#[tokio::test]
async fn removing_a_node_loses_what_ran_there_and_it_comes_back_by_joining_again() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(40), 1)).await.row.allocation_id;
    world.pass(30);
    world.report(&host, &[]).await;
    world.pass(30);
    let set = |state| app::node::set_state(&world.app, operator_ref(), host.id, state);
    set(NodeState::Removed).await.unwrap();
    let row = world.get(id).await.row;
    assert_eq!((row.state, row.cause), (S::Lost, Cause::NodeRemoved));
    assert_eq!(world.intervals(id).await, [(at(START), at(START).plus_secs(30), false)]);
    let back = set(NodeState::Active).await;
    assert!(matches!(back, Err(AppError::Conflict { code: "node_removed", .. })), "{back:?}");
    let report = app::node::report(&world.app, &host.caller(), host.report(world.now())).await;
    assert!(matches!(report, Err(AppError::Forbidden)), "{report:?}");

    let waits = world.request(tenant, ask(Bytes::gib(80), 1)).await;
    assert!(matches!(waits, Err(AppError::Invalid(_))), "the pool has no GPUs: {waits:?}");
    let again = world.join_silently(world.pool, "host").await;
    assert_eq!(again, host.id);
    world.report(&host, &[]).await;
    assert_eq!(world.request(tenant, ask(Bytes::gib(80), 1)).await.unwrap().row.state, S::Held);
    // and the journal of its card says so
    let in_service: bool = sqlx::query_scalar("select in_service from gpu_capacity order by sequence desc limit 1")
        .fetch_one(&mut world.owner().await)
        .await
        .unwrap();
    assert!(in_service);
}

fn operator_ref() -> &'static app::Caller {
    static OPERATOR: app::Caller = operator();
    &OPERATOR
}

/// Olares 3693: another name is no other node.
#[tokio::test]
async fn a_renamed_host_is_the_same_node() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(40), 1)).await.row.allocation_id;
    let token = app::join_token::create(&world.app, &operator(), world.pool, 3600).await.unwrap().secret;
    let join = types::wire::Join { token, hostname: name("renamed"), machine_id: host.machine.clone() };
    assert_eq!(app::node::join(&world.app, &join).await.unwrap().node_id, host.id);
    assert_eq!(world.report(&host, &[id]).await.parts.len(), 1);
    assert_eq!(world.get(id).await.row.state, S::Active);
}

/// NVSentinel 1585, HAMi 2618: a card that was exchanged is another card, empty; what ran on the old one ends.
#[tokio::test]
async fn an_exchanged_card_is_another_card() {
    let (mut world, mut host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(70), 1)).await.row.allocation_id;
    world.pass(30);
    world.report(&host, &[id]).await;
    host.cards[0].uuid = format!("GPU-{}", uuid::Uuid::from_u128(99)).parse().unwrap();
    world.report(&host, &[]).await;
    let placed = world.run(tenant, ask(Bytes::gib(80), 1)).await;
    assert_eq!(placed.parts[0].gpu_uuid, host.cards[0].uuid);
    for _ in 0..2 {
        world.pass(60);
        world.report(&host, &[placed.row.allocation_id]).await;
        world.tick().await;
    }
    assert_eq!(world.get(id).await.row.cause, Cause::Vanished);
    assert_eq!(world.intervals(id).await, [(at(START), at(START).plus_secs(30), false)]);
    // nothing is placed on the card that is gone
    assert_eq!(world.request(tenant, ask(Bytes::gib(80), 1)).await.unwrap().row.state, S::Queued);
}

/// One command that the database refuses does not harm those that came with it.
#[tokio::test]
async fn a_bad_command_harms_no_other_of_its_batch() {
    let (world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let other_pool = app::pool::create(&world.app, &operator(), name("other"), crate::world::GRACES).await.unwrap();
    crate::world::leads(&world.app, other_pool.pool_id).await;
    let stranger = world.join(other_pool.pool_id, "stranger", Vec::new()).await;
    // it claims a card that the first pool has
    let claim = NodeReport { gpus: host.cards.clone(), ..stranger.report(world.now()) };
    let claims = app::node::report(&world.app, &stranger.caller(), claim).await;
    assert!(claims.unwrap().parts.is_empty(), "a card that is elsewhere takes nothing, and nothing else with it");
    assert_eq!(count(&world, "gpu").await, 1);

    // in one batch: while the lease's row is locked, they gather
    let own = world.join_silently(world.pool, "thief").await;
    let thief = Host { id: own, pool: world.pool, boot: name("b"), ..stranger.clone() };
    let refused = crate::world::card(crate::world::MODEL, Bytes::gib(1), None, 77);
    refuse_card(&world, &refused).await;
    let bad = NodeReport { gpus: vec![refused], ..thief.report(world.now()) };
    let mut owner = world.owner().await;
    let mut lock = sqlx::Connection::begin(&mut owner).await.unwrap();
    sqlx::query("select from pool_leadership for update").fetch_all(&mut *lock).await.unwrap();
    let good = futures((0..8).map(|n| {
        let key = format!("good {n}");
        let world = &world;
        async move { world.request_as(tenant, ask(Bytes::gib(10), 1), &key).await }
    }));
    let caller = thief.caller();
    let bad = app::node::report(&world.app, &caller, bad);
    let release = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        lock.commit().await.unwrap();
    };
    let (good, bad, ()) = tokio::join!(good, bad, release);
    assert!(matches!(bad, Err(AppError::Internal(_))), "{bad:?}");
    for answer in good {
        assert_eq!(answer.unwrap().0.row.state, S::Held);
    }
    assert_eq!(count(&world, "part").await, 8);
}

/// Has the database refuse a card, so that a batch that brings it fails as a whole.
async fn refuse_card(world: &World, card: &types::wire::GpuReport) {
    let trap = format!("alter table gpu add constraint trap check (uuid <> '{}')", card.uuid);
    sqlx::raw_sql(sqlx::AssertSqlSafe(trap)).execute(&mut world.owner().await).await.unwrap();
}

/// After a batch that failed, the leader reads its state anew; what it had heard meanwhile was heard all the same.
#[tokio::test]
async fn a_batch_that_failed_forgets_no_sign_of_life() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let refused = crate::world::card(crate::world::MODEL, Bytes::gib(1), None, 77);
    refuse_card(&world, &refused).await;
    let id = world.run(tenant, ask(Bytes::gib(10), 1)).await.row.allocation_id;
    world.pass(80);
    world.report(&host, &[id]).await;
    let bad = NodeReport { gpus: vec![refused, host.cards[0].clone()], ..host.report(world.now()) };
    assert!(app::node::report(&world.app, &host.caller(), bad).await.is_err());
    world.pass(89);
    world.tick().await;
    let row = world.get(id).await.row;
    assert_eq!((row.state, row.unconfirmed_since), (S::Active, None));
}
