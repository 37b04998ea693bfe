//! Nodes that come, go and move, and copies of them.

use crate::world::{Host, World, ask, at, member, name, operator};
use app::{AppError, allocation, node::NodeState};
use types::{AllocationState as S, Bytes, Cause, RunId, Span, wire::AgentRun};

const START: &str = "2026-11-10T10:00:00Z";

/// A node that was removed from one pool and joins another brings its empty cards and its journals along.
#[tokio::test]
async fn a_node_moves_to_another_pool_with_its_cards() {
    let world = World::new(START).await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let other = app::pool::create(&world.app, &operator(), name("other"), crate::world::GRACES).await.unwrap().pool_id;
    crate::world::leads(&world.app, other).await;
    world.pass(60);
    app::node::set_state(&world.app, &operator(), host.id, NodeState::Removed).await.unwrap();
    world.pass(60);
    let moved = world.join(other, "host", host.cards.clone()).await;
    assert_eq!(moved.id, host.id);
    let card = app::node::gpus(&world.app, &operator(), Some(other), None, None, 10).await.unwrap();
    assert_eq!(card.iter().map(|gpu| gpu.node_id).collect::<Vec<_>>(), [host.id]);
    let request = ask(Bytes::gib(5), 1);
    let wanted = allocation::Ask { tenant_id: None, project_id: None, pool_id: Some(other), request };
    let (placed, _) = allocation::request(&world.app, &member(tenant), wanted, "there").await.unwrap();
    assert_eq!(placed.row.state, S::Held);
    world.pass(7200);
    world.assert_balance(Span::new(at(START), world.now()).unwrap()).await;
}

/// A run of an agent that reports every five seconds.
fn run(n: u128, follows: Option<u128>) -> Option<AgentRun> {
    let id = |n| RunId(uuid::Uuid::from_u128(n));
    Some(AgentRun { run_id: id(n), follows: follows.map(id), report_interval_ms: 5_000 })
}

/// The same host as another boot or run of its agent has it.
fn also(host: &Host, boot: &str, run: Option<AgentRun>) -> Host {
    Host { boot: name(boot), run, ..host.clone() }
}

/// What a report gets: nothing said against it, or the code of the conflict.
async fn report(world: &World, host: &Host) -> Result<(), &'static str> {
    match app::node::report(&world.app, &host.caller(), host.report(world.now())).await {
        Ok(_) => Ok(()),
        Err(AppError::Conflict { code, .. }) => Err(code),
        Err(other) => panic!("{other}"),
    }
}

const ANOTHER: Result<(), &str> = Err("another_agent_reports");
const FORMER: Result<(), &str> = Err("former_boot");

/// A host whose agent names its run, with an allocation that runs there.
async fn with_workload() -> (World, Host, types::AllocationId) {
    let mut world = World::new(START).await;
    let host = also(&world.host("host", &[Bytes::gib(80)]).await, "first boot", run(1, None));
    report(&world, &host).await.unwrap();
    let (tenant, _) = world.tenant("a", "UTC", "USD").await;
    let active = world.run(tenant, ask(Bytes::gib(5), 1)).await.row.allocation_id;
    (world, host, active)
}

#[tokio::test]
async fn a_copy_with_another_boot_is_refused_while_the_first_reports_and_loses_nothing() {
    let (world, first, active) = with_workload().await;
    let copy = also(&first, "boot of a copy", run(2, Some(1)));
    for _ in 0..24 {
        world.report(&first, &[active]).await;
        assert_eq!(report(&world, &copy).await, ANOTHER);
        world.pass(5);
        assert_eq!(report(&world, &copy).await, ANOTHER);
        world.tick().await;
    }
    assert_eq!(world.get(active).await.row.state, S::Active);
    let node = app::node::get_live(&world.app, &operator(), first.id).await.unwrap();
    assert_eq!(node.row.boot_id.as_deref(), Some("first boot"));
    let reasons: Vec<_> = node.refused.iter().map(|refusal| refusal.reason.name()).collect();
    assert_eq!(reasons, ["another_agent_reports"]);
    let entries = app::audit::list(&world.app, &operator(), None, None, 200).await.unwrap();
    assert_eq!(
        entries.iter().filter(|entry| entry.action == "node.refuse").count(),
        1,
        "it is told once, not each time"
    );

    // the first has gone, and the copy is all there is: it counts as the node, rebooted
    world.pass(12);
    assert_eq!(report(&world, &copy).await, Ok(()));
    let row = world.get(active).await.row;
    assert_eq!((row.state, row.cause), (S::Lost, Cause::NodeRebooted));
    // no host goes back to a boot that is over, whoever else reports
    for pause in [0, 3600] {
        world.pass(pause);
        assert_eq!(report(&world, &first).await, if pause == 0 { ANOTHER } else { FORMER });
    }
    assert_eq!(report(&world, &copy).await, Ok(()));
}

#[tokio::test]
async fn a_reboot_is_taken_for_one_at_once_or_within_seconds() {
    let (world, host, active) = with_workload().await;
    world.report(&host, &[active]).await;
    world.pass(20);
    let rebooted = also(&host, "second boot", run(2, Some(1)));
    assert_eq!(report(&world, &rebooted).await, Ok(()), "it took longer than two intervals");
    assert_eq!(world.get(active).await.row.state, S::Lost);
    // faster than that, it waits until the former boot would have reported twice
    world.pass(3);
    let again = also(&host, "third boot", run(3, Some(2)));
    assert_eq!(report(&world, &again).await, ANOTHER);
    world.pass(8);
    assert_eq!(report(&world, &again).await, ANOTHER);
    world.pass(1);
    assert_eq!(report(&world, &again).await, Ok(()));
}

#[tokio::test]
async fn an_agent_that_starts_anew_is_heard_at_once_and_two_on_one_host_are_not() {
    let (world, host, active) = with_workload().await;
    let restarted = also(&host, "first boot", run(2, Some(1)));
    assert_eq!(report(&world, &restarted).await, Ok(()));
    assert_eq!(world.get(active).await.row.state, S::Active);
    // one with a state of its own
    let second = also(&host, "first boot", run(3, None));
    assert_eq!(report(&world, &second).await, ANOTHER);
    world.pass(5);
    assert_eq!(report(&world, &restarted).await, Ok(()));
    assert_eq!(report(&world, &second).await, ANOTHER);
    // its state is lost, and the agent that had it is gone
    world.pass(12);
    assert_eq!(report(&world, &second).await, Ok(()));
    assert_eq!(world.get(active).await.row.state, S::Active, "one boot, one life");
}

#[tokio::test]
async fn a_copied_state_on_the_same_boot_gives_way_to_the_first() {
    let (world, first, _) = with_workload().await;
    let late = first.report(world.now());
    world.pass(1);
    let copy = also(&first, "first boot", run(2, Some(1)));
    assert_eq!(report(&world, &copy).await, Ok(()), "so far it looks like a new start");
    // what the first sent before comes late: that says nothing
    let answer = app::node::report(&world.app, &first.caller(), late).await;
    assert!(matches!(answer, Err(AppError::Conflict { code: "another_agent_reports", .. })), "{answer:?}");
    for _ in 0..3 {
        world.pass(4);
        assert_eq!(report(&world, &first).await, Ok(()), "the first lives");
        assert_eq!(report(&world, &copy).await, ANOTHER);
    }
}

#[tokio::test]
async fn an_outage_of_the_server_is_no_reboot() {
    let (mut world, first, active) = with_workload().await;
    world.report(&first, &[active]).await;
    world.restart_after(60).await;
    let copy = also(&first, "boot of a copy", run(2, Some(1)));
    assert_eq!(report(&world, &copy).await, ANOTHER);
    world.pass(10);
    assert_eq!(report(&world, &copy).await, ANOTHER);
    world.report(&first, &[active]).await;
    assert_eq!(world.get(active).await.row.state, S::Active);
}

#[tokio::test]
async fn whoever_joins_anew_speaks_for_the_node() {
    let (world, host, _) = with_workload().await;
    let other = also(&host, "boot of the new host", run(2, None));
    assert_eq!(report(&world, &other).await, ANOTHER);
    assert_eq!(world.join_silently(world.pool, "host").await, host.id);
    assert_eq!(report(&world, &other).await, Ok(()));
    assert_eq!(report(&world, &host).await, ANOTHER);
}

#[tokio::test]
async fn an_agent_that_is_not_heard_hands_in_no_readings() {
    let (world, mut host, _) = with_workload().await;
    let batch = host.batch(world.now(), Vec::new());
    app::reading::ingest(&world.app, &host.caller(), &batch).await.unwrap();
    let mut copy = also(&host, "boot of a copy", run(2, Some(1)));
    let batch = copy.batch(world.now(), Vec::new());
    let answer = app::reading::ingest(&world.app, &copy.caller(), &batch).await;
    assert!(matches!(answer, Err(AppError::Conflict { code: "another_agent_reports", .. })), "{answer:?}");
    // the first one's next batch has the same number, and is new
    let batch = host.batch(world.now(), Vec::new());
    assert_eq!(app::reading::ingest(&world.app, &host.caller(), &batch).await.unwrap().sequence, batch.sequence);
}

#[tokio::test]
async fn an_interval_that_no_agent_has_is_refused() {
    let (world, host, _) = with_workload().await;
    for report_interval_ms in [0, 99, 60_001, u32::MAX] {
        let run = host.run.map(|run| AgentRun { report_interval_ms, ..run });
        let bad = app::node::report(&world.app, &host.caller(), Host { run, ..host.clone() }.report(world.now())).await;
        assert!(matches!(bad, Err(AppError::Invalid(_))), "{bad:?}");
    }
}
