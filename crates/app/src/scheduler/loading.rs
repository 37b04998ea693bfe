//! How a new leader learns the state of its pool.

use super::state::{Card, Node, Open, PoolState};
use crate::error::AppError;
use placement::{Gpu, Inventory, Service};
use std::collections::{BTreeMap, BTreeSet};
use store::{Tx, leadership::Lease, node::NodeState};
use types::{AllocationId, AllocationState, Bytes, Instant, NodeId, PoolId, wire::NodeReport};

/// Reads the pool's open state. `now` is when the leadership began.
pub(super) async fn load(tx: &mut Tx, pool: PoolId, lease: Lease, now: Instant) -> Result<PoolState, AppError> {
    let pool = store::pool::get(tx, pool).await?.ok_or(AppError::NotFound("pool"))?;
    let time = now.max(lease.pool_time);
    let leaderless_ms = time.since(lease.pool_time);
    let silence_ms = i64::from(pool.graces.silence_grace_s) * 1000;

    let presence: BTreeMap<_, _> =
        store::node::last_presence(tx, pool.pool_id).await?.into_iter().map(|p| (p.node_id, p)).collect();
    let nodes = store::node::of_pool(tx, pool.pool_id)
        .await?
        .into_iter()
        .map(|row| {
            let last = presence.get(&row.node_id);
            let recently = row.last_heard.is_some_and(|heard| lease.pool_time.since(heard) <= silence_ms);
            let node = Node {
                silent: last.is_some_and(|p| !p.present),
                reported: recently && leaderless_ms <= silence_ms,
                presence_sequence: last.map_or(0, |p| p.sequence),
                succession: None,
                row,
            };
            (node.row.node_id, node)
        })
        .collect();

    let heads: BTreeMap<_, _> = store::gpu::journal_heads(tx, pool.pool_id)
        .await?
        .into_iter()
        .map(|(gpu, occupancy, capacity, in_service)| (gpu, (occupancy, capacity, in_service)))
        .collect();
    let mut state = PoolState {
        term: lease.term,
        time,
        leader_since: time,
        inventory: Inventory::new(),
        nodes,
        cards: BTreeMap::new(),
        open: BTreeMap::new(),
        owners: BTreeMap::new(),
        queue: BTreeMap::new(),
        last_queue_number: store::allocation::last_queue_number(tx, pool.pool_id).await?,
        zones: BTreeMap::new(),
        fresh_signs: BTreeSet::new(),
        fresh_nodes: BTreeSet::new(),
        id_counter: 0,
        elsewhere: BTreeSet::new(),
        former_boots: BTreeSet::new(),
        pool,
    };
    for row in store::gpu::page(tx, Some(state.pool.pool_id), None, None, i64::MAX).await? {
        let (occupancy_sequence, capacity_sequence, in_service) =
            heads.get(&row.gpu_id).copied().unwrap_or((0, 0, false));
        // a card that is out of service though its node is not was left out of the node's last report
        let active = state.nodes.get(&row.node_id).is_some_and(|node| node.row.state == NodeState::Active);
        let missing = active && !in_service;
        let card = Card { occupancy_sequence, capacity_sequence, in_service, held: Bytes::ZERO, missing, row };
        let service = state.service(&card);
        state.inventory.upsert_gpu(gpu_of(&card, service)).map_err(inconsistent)?;
        state.cards.insert(card.row.gpu_id, card);
    }
    load_allocations(tx, &mut state).await?;
    Ok(state)
}

async fn load_allocations(tx: &mut Tx, state: &mut PoolState) -> Result<(), AppError> {
    for row in store::allocation::open_of_pool(tx, state.pool.pool_id).await? {
        if row.state == AllocationState::Queued {
            state.queue.insert(row.queue_number, row.allocation_id);
        }
        state.open.insert(row.allocation_id, Open { row, parts: Vec::new() });
    }
    for part in store::part::open_of_pool(tx, state.pool.pool_id).await? {
        state.inventory.add_part(part.gpu_id, part.part_id, part.bytes).map_err(inconsistent)?;
        let open = state.open.get_mut(&part.allocation_id).ok_or_else(|| orphan(part.allocation_id))?;
        if open.row.state == AllocationState::Held
            && let Some(card) = state.cards.get_mut(&part.gpu_id)
        {
            card.held = card.held.plus(part.bytes);
        }
        state.owners.insert(part.part_id, part.allocation_id);
        open.parts.push(part);
    }
    Ok(())
}

/// The card as placement sees it, without parts.
pub(super) fn gpu_of(card: &Card, service: Service) -> Gpu {
    let row = &card.row;
    Gpu::new(row.gpu_id, row.uuid.clone(), row.node_id, row.model.clone(), row.allocatable, service)
}

/// What is stored contradicts itself: a defect, which the balance would show, too.
pub(super) fn inconsistent(error: placement::InventoryError) -> AppError {
    AppError::Internal(format!("the pool's stored state is inconsistent: {error}"))
}

fn orphan(allocation: AllocationId) -> AppError {
    AppError::Internal(format!("an open part belongs to no open allocation: {allocation}"))
}

/// Reads a node that joined. One that was in another pool before brings its presence journal along.
pub(super) async fn node(tx: &mut Tx, state: &mut PoolState, node: NodeId) -> Result<(), AppError> {
    let Some(row) = store::node::get(tx, node).await? else { return Ok(()) };
    let last = store::node::presence_of(tx, &[node]).await?.pop();
    match state.nodes.get_mut(&node) {
        Some(known) => {
            known.row.hostname = row.hostname;
            known.row.state = row.state;
            known.row.run = row.run;
            known.row.rotate_asked_at = row.rotate_asked_at;
        }
        None => {
            let silent = last.is_some_and(|p| !p.present);
            let presence_sequence = last.map_or(0, |p| p.sequence);
            let node = Node { row, silent, reported: false, presence_sequence, succession: None };
            state.nodes.insert(node.row.node_id, node);
        }
    }
    // a join lets every boot begin anew
    state.former_boots.retain(|(of, _)| *of != node);
    Ok(())
}

/// Learns whether a report comes from a boot that is over.
pub(super) async fn former_boot(
    tx: &mut Tx,
    state: &mut PoolState,
    node: NodeId,
    report: &NodeReport,
) -> Result<(), AppError> {
    let boot = report.boot_id.as_str();
    let is_another =
        state.nodes.get(&node).is_some_and(|n| n.row.boot_id.as_deref().is_some_and(|known| known != boot));
    if is_another && store::node::knows_boot(tx, node, boot).await? {
        state.former_boots.insert((node, boot.to_owned()));
    }
    Ok(())
}

/// Cards that a report names and this pool does not know, but another does: one that is empty comes over with its
/// journals when its node moved here, or was removed there. Any other stays where it is.
pub(super) async fn cards_from_elsewhere(
    tx: &mut Tx,
    state: &mut PoolState,
    node: NodeId,
    report: &NodeReport,
) -> Result<(), AppError> {
    for gpu in &report.gpus {
        if state.cards.values().any(|card| card.row.uuid == gpu.uuid) {
            continue;
        }
        let Some(row) = store::gpu::by_uuid(tx, &gpu.uuid).await? else { continue };
        let its_node = store::node::get(tx, row.node_id).await?;
        let came_along = row.node_id == node || its_node.is_none_or(|n| n.state == NodeState::Removed);
        if row.granted > Bytes::ZERO || !came_along {
            state.elsewhere.insert(gpu.uuid.clone());
            continue;
        }
        state.elsewhere.remove(&gpu.uuid);
        let (occupancy_sequence, capacity_sequence, in_service) = store::gpu::journal_head(tx, row.gpu_id).await?;
        let card = Card { occupancy_sequence, capacity_sequence, in_service, held: Bytes::ZERO, missing: true, row };
        state.cards.insert(card.row.gpu_id, card);
    }
    Ok(())
}
