//! Nodes that come, go and move.

use crate::world::{World, ask, at, member, name, operator};
use app::{allocation, node::NodeState};
use types::{AllocationState as S, Bytes, Span};

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
