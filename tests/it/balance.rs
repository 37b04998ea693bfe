//! The balance of every GPU and hour: metered, held, unconfirmed, idle and out of service are all the time there is.

use crate::world::{Host, MODEL, World, ask, at, card, operator, span};
use app::{AppError, allocation, invoice, node::NodeState};
use metering::balance::HourBalance;
use types::{ByteMillis, Bytes, Instant, Request};

const START: &str = "2026-11-10T10:00:00Z";

async fn one_card() -> (World, Host) {
    let world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    (world, host)
}

async fn hours(world: &World, from: &str, to: &str) -> Vec<HourBalance> {
    let mut gpus = app::balance::of(&world.app, &operator(), None, span(from, to)).await.unwrap();
    assert_eq!(gpus.len(), 1);
    gpus.remove(0).hours
}

fn gib_minutes(gib: u64, minutes: i64) -> ByteMillis {
    Bytes::gib(gib).over_millis(minutes * 60_000)
}

#[tokio::test]
async fn every_term_comes_out_of_its_own_journal() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    // 10 GiB are held for a minute, and run for 19 more until the node falls silent
    let id = world.request(tenant, ask(Bytes::gib(10), 1)).await.unwrap().row.allocation_id;
    world.pass(60);
    allocation::confirm(&world.app, &operator(), id).await.unwrap();
    world.pass_to("2026-11-10T10:20:00Z");
    world.report(&host, &[id]).await;
    // a hold that expires
    world.request(tenant, ask(Bytes::gib(5), 1)).await.unwrap();
    world.pass_to("2026-11-10T10:22:00Z");
    world.tick().await;
    world.pass_to("2026-11-10T10:30:00Z");
    world.report(&host, &[]).await;
    app::node::set_state(&world.app, &operator(), host.id, NodeState::Cordoned).await.unwrap();
    world.pass_to("2026-11-10T11:00:00Z");
    let [hour] = hours(&world, START, "2026-11-10T11:00:00Z").await[..] else { panic!("one hour") };
    assert!(hour.balances(), "{hour:#?}");
    assert_eq!(hour.capacity, gib_minutes(80, 60));
    assert_eq!(hour.metered, gib_minutes(10, 19));
    assert_eq!(hour.held, gib_minutes(10, 1) + gib_minutes(5, 2));
    assert_eq!(hour.unconfirmed, gib_minutes(10, 40));
    // silent from 10:20 to 10:30, cordoned from then on
    let silent = gib_minutes(65, 2) + gib_minutes(70, 8);
    assert_eq!(hour.out_of_service, silent + gib_minutes(70, 30));
    assert_eq!(hour.idle, gib_minutes(70, 20));
    assert_eq!(hour.slack, ByteMillis::ZERO);
}

/// The same hour says the same while it is open, after its meters were closed, and after a restart.
#[tokio::test]
async fn what_is_open_balances_like_what_is_closed() {
    let (mut world, host) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(30), 1)).await.row.allocation_id;
    world.pass(7200);
    world.report(&host, &[id]).await;
    let open = hours(&world, START, "2026-11-10T12:00:00Z").await;
    world.restart_after(10).await;
    assert_eq!(hours(&world, START, "2026-11-10T12:00:00Z").await, open);
    world.report(&host, &[id]).await;
    world.release(id).await;
    assert_eq!(hours(&world, START, "2026-11-10T12:00:00Z").await, open);
    assert!(open.iter().all(HourBalance::balances));
    assert_eq!(open.len(), 2);
}

/// A capacity that becomes known later counts from then on, in every journal.
#[tokio::test]
async fn capacity_changes_while_nothing_is_granted_and_balances() {
    let mut world = World::new(START).await;
    let host = world.join(world.pool, "host", vec![card(MODEL, Bytes::gib(80), None, 5)]).await;
    world.pass(600);
    world.report(&host, &[]).await;
    world.pass(600);
    // the driver tells its share only now, in a report that is new in nothing else
    let mut later = host.clone();
    later.cards[0].driver_overhead = Some(Bytes::gib(2));
    world.report(&later, &[]).await;
    world.pass(600);
    world.report(&later, &[]).await;
    let stored: i64 =
        sqlx::query_scalar("select allocatable from gpu").fetch_one(&mut world.owner().await).await.unwrap();
    assert_eq!(Bytes::from_i64(stored), Bytes::gib(78));
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    world.run(tenant, ask(Bytes::gib(10), 1)).await;
    world.pass(1800);
    world.report(&later, &[]).await;
    let [hour] = hours(&world, START, "2026-11-10T11:00:00Z").await[..] else { panic!("one hour") };
    assert!(hour.balances(), "{hour:#?}");
    assert_eq!(hour.capacity, gib_minutes(80, 20) + gib_minutes(78, 40));
}

/// The equation can fail, and says where; one tenant's trouble blocks no other's invoice; a waiver needs a reason.
#[tokio::test]
async fn a_lost_interval_stands_against_its_own_tenants_invoice_alone() {
    let mut world = World::new(START).await;
    world.host("one", &[Bytes::gib(80)]).await;
    let two = world.host("two", &[Bytes::gib(24)]).await;
    let (a, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let (b, ..) = world.paying_tenant("b", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let on_one = world.run(a, ask(Bytes::gib(60), 1)).await;
    let on_two = world.run(b, Request { node_id: Some(two.id), ..ask(Bytes::gib(20), 1) }).await;
    world.pass(60);
    world.release(on_one.row.allocation_id).await;
    world.release(on_two.row.allocation_id).await;
    world.pass_to("2026-12-01T00:00:00Z");
    sqlx::query("delete from interval where tenant_id = $1")
        .bind(a.uuid())
        .execute(&mut world.owner().await)
        .await
        .unwrap();
    let issue = |tenant, waiver: Option<&str>| {
        let (app, waiver) = (world.app.clone(), waiver.map(|reason| reason.parse().unwrap()));
        async move { invoice::issue(&app, &operator(), tenant, "2026-11", waiver).await }
    };
    let Err(AppError::OutOfBalance(wrong)) = issue(a, None).await else { panic!("issued") };
    let [imbalance] = &wrong[..] else { panic!("{wrong:?}") };
    assert_eq!((imbalance.gpu_id, imbalance.hour), (on_one.parts[0].row.gpu_id, at(START)));
    assert_eq!(imbalance.difference, gib_minutes(60, 1));
    issue(b, None).await.unwrap();
    let (row, ..) = issue(a, Some("the disk of the 10th")).await.unwrap();
    assert_eq!((row.waiver.as_deref(), row.total_minor), (Some("the disk of the 10th"), 0));
}

/// A journal that says something else than the spans is found, although the sum comes out.
#[tokio::test]
async fn a_wrong_journal_is_found() {
    let (mut world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes::gib(30), 1)).await.row.allocation_id;
    world.pass(60);
    world.release(id).await;
    world.pass(7200);
    let over = span(START, "2026-11-10T12:00:00Z");
    world.assert_balance(over).await;
    let mut owner = world.owner().await;
    sqlx::query("update occupancy set held = held + 1, granted = granted - 1 where granted > 0")
        .execute(&mut owner)
        .await
        .unwrap();
    let hours = app::balance::of(&world.app, &operator(), None, over).await.unwrap();
    let found: Vec<Instant> = app::balance::imbalances(&hours).iter().map(|i| i.hour).collect();
    assert_eq!(found, [at(START)]);
}

#[tokio::test]
async fn a_card_that_moves_to_another_host_keeps_balancing() {
    let (world, host) = one_card().await;
    world.pass(600);
    let moved = world.join(world.pool, "new host", host.cards.clone()).await;
    let mut bare = host.clone();
    bare.cards.clear();
    world.report(&bare, &[]).await;
    let mut world = world;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let active = world.run(tenant, ask(Bytes::gib(80), 1)).await;
    assert_eq!(active.parts[0].row.node_id, moved.id);
    world.pass(3600);
    world.report(&moved, &[active.row.allocation_id]).await;
    world.assert_balance(span(START, "2026-11-10T11:00:00Z")).await;
}

#[tokio::test]
async fn only_the_platform_sees_the_balance() {
    let (world, _) = one_card().await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let day = span(START, "2026-11-10T12:00:00Z");
    let answer = app::balance::of(&world.app, &crate::world::member(tenant), None, day).await;
    assert!(matches!(answer, Err(AppError::Forbidden)), "{answer:?}");
}
