//! What the leader holds in memory: the open state of its pool, equal to what is stored.

use super::{GpuView, NodeView, PoolView};
use crate::allocation::{AllocationView, PartView};
use billing::Zone;
use placement::{Inventory, Service};
use std::collections::{BTreeMap, BTreeSet};
use store::{
    allocation::AllocationRow,
    gpu::GpuRow,
    node::{NodeRow, NodeRun, NodeState},
    part::PartRow,
    pool::PoolRow,
};
use types::{AllocationId, AllocationState, Bytes, GpuId, Instant, NodeId, RunId, TenantId};

/// The open state of a pool.
#[derive(Debug)]
pub(super) struct PoolState {
    pub pool: PoolRow,
    pub term: i64,
    /// The pool's time: never goes back.
    pub time: Instant,
    pub leader_since: Instant,
    pub inventory: Inventory,
    pub nodes: BTreeMap<NodeId, Node>,
    pub cards: BTreeMap<GpuId, Card>,
    pub open: BTreeMap<AllocationId, Open>,
    /// Whose each open part is.
    pub owners: BTreeMap<types::PartId, AllocationId>,
    /// Waiting requests in order of arrival.
    pub queue: BTreeMap<i64, AllocationId>,
    pub last_queue_number: i64,
    pub zones: BTreeMap<TenantId, Zone>,
    /// Allocations with a sign of life that is not stored yet.
    pub fresh_signs: BTreeSet<AllocationId>,
    /// Nodes heard from since that was last stored.
    pub fresh_nodes: BTreeSet<NodeId>,
    /// Cards that nodes of this pool report and that belong to another pool.
    pub elsewhere: BTreeSet<types::GpuUuid>,
    /// Boots of nodes that are over, as far as a report named one since.
    pub former_boots: BTreeSet<(NodeId, String)>,
    /// Orders the ids made within one millisecond.
    pub id_counter: u16,
}

/// A node and what the leader heard of it.
#[derive(Debug)]
pub(super) struct Node {
    pub row: NodeRow,
    pub silent: bool,
    /// Whether it reported to this leader, or shortly before it took over.
    pub reported: bool,
    pub presence_sequence: i64,
    /// When its agent last took over from another run within one boot; known to this leader alone.
    pub succession: Option<Succession>,
}

/// A run of a node's agent that took over from another one within one boot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Succession {
    pub former: NodeRun,
    pub successor: RunId,
    /// When the successor sent its first report, by the clock that both have.
    pub at: Instant,
    /// Whether the former one was heard from since, so that the successor was a copy.
    pub is_void: bool,
}

/// A card and where its journals stand.
#[derive(Debug)]
pub(super) struct Card {
    pub row: GpuRow,
    pub occupancy_sequence: i64,
    pub capacity_sequence: i64,
    /// As the capacity journal has it.
    pub in_service: bool,
    /// Bytes of parts that are held, not confirmed.
    pub held: Bytes,
    /// Whether its node's last report left it out.
    pub missing: bool,
}

/// An allocation that has not ended.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub row: AllocationRow,
    pub parts: Vec<PartRow>,
}

impl PoolState {
    /// The service of a card, from what operator, node and leader say of it.
    pub fn service(&self, card: &Card) -> Service {
        let Some(node) = self.nodes.get(&card.row.node_id) else { return Service::Removed };
        if card.row.removed_at.is_some() || node.row.state == NodeState::Removed {
            Service::Removed
        } else if node.row.state == NodeState::Cordoned {
            Service::Cordoned
        } else if node.silent || card.missing {
            Service::Silent
        } else if node.reported {
            Service::InService
        } else {
            Service::NotYetReported
        }
    }

    /// Whether the capacity journal counts a card as in service. Silence is not its matter: the presence journal has it.
    pub fn in_service(&self, card: &Card) -> bool {
        !card.missing && !matches!(self.service(card), Service::Cordoned | Service::Removed)
    }

    /// How many requests wait in front of this one.
    pub fn ahead(&self, queue_number: i64) -> usize {
        self.queue.range(..queue_number).count()
    }

    /// The allocation as callers see it.
    pub fn view(&self, open: &Open) -> AllocationView {
        let parts = open
            .parts
            .iter()
            .filter_map(|part| {
                let card = self.cards.get(&part.gpu_id)?;
                Some(PartView { row: part.clone(), gpu_uuid: card.row.uuid.clone() })
            })
            .collect();
        let ahead = (open.row.state == AllocationState::Queued).then(|| self.ahead(open.row.queue_number));
        let renew_within_s = self.pool.graces.silence_grace_s;
        AllocationView { row: open.row.clone(), parts, ahead, renew_within_s }
    }

    /// What the leader knows, for operators.
    pub fn look(&self) -> PoolView {
        let nodes = self
            .nodes
            .values()
            .map(|n| NodeView { node_id: n.row.node_id, silent: n.silent, last_heard: n.row.last_heard })
            .collect();
        let gpus = self
            .inventory
            .gpus()
            .map(|gpu| {
                let held = self.cards.get(&gpu.id).map_or(Bytes::ZERO, |card| card.held);
                GpuView {
                    gpu_id: gpu.id,
                    service: gpu.service,
                    free: gpu.free(),
                    held,
                    granted: gpu.granted().less(held),
                    parts: gpu.parts().count(),
                }
            })
            .collect();
        PoolView { term: self.term, nodes, gpus, queued: self.queue.len() }
    }
}
