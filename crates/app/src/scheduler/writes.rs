//! What a batch has decided and not yet written.

use crate::error::AppError;
use quota::Use;
use std::collections::BTreeMap;
use store::{
    Tx,
    allocation::AllocationRow,
    gpu::{Capacity, GpuRow, Occupancy},
    history::HistoryRow,
    interval::{IntervalRow, UnbilledSpan},
    node::{NodeRun, NodeState, Presence},
    part::PartRow,
    period::PeriodRow,
    quota_use::QuotaScope,
    request_key::RequestKey,
};
use types::{AllocationId, Bytes, GpuId, Instant, NodeId, PartId};

/// The rows of one batch. Written in one order, whatever the order of the decisions.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub new_allocations: BTreeMap<AllocationId, AllocationRow>,
    pub changed_allocations: BTreeMap<AllocationId, AllocationRow>,
    pub new_parts: BTreeMap<PartId, PartRow>,
    pub changed_parts: BTreeMap<PartId, PartRow>,
    pub history: Vec<HistoryRow>,
    pub intervals: Vec<IntervalRow>,
    pub unbilled: Vec<UnbilledSpan>,
    /// The periods that the intervals lie in.
    pub periods: Vec<PeriodRow>,
    pub quota: BTreeMap<QuotaScope, Use>,
    pub keys: Vec<RequestKey>,
    pub new_gpus: Vec<GpuRow>,
    pub changed_gpus: Vec<GpuRow>,
    pub granted: BTreeMap<GpuId, Bytes>,
    pub occupancy: Vec<Occupancy>,
    pub capacity: Vec<Capacity>,
    pub presence: Vec<Presence>,
    pub heard: BTreeMap<NodeId, (Option<String>, Instant)>,
    pub node_states: BTreeMap<NodeId, NodeState>,
    /// Nodes for which another run of the agent speaks now.
    pub runs: BTreeMap<NodeId, Option<NodeRun>>,
    /// Boots of nodes, those that are over and those that begin.
    pub boots: Vec<(NodeId, String)>,
}

impl Writes {
    /// Whether nothing was decided that needs to be stored.
    pub fn is_empty(&self) -> bool {
        self.new_allocations.is_empty()
            && self.changed_allocations.is_empty()
            && self.new_parts.is_empty()
            && self.changed_parts.is_empty()
            && self.history.is_empty()
            && self.intervals.is_empty()
            && self.unbilled.is_empty()
            && self.quota.is_empty()
            && self.keys.is_empty()
            && self.new_gpus.is_empty()
            && self.changed_gpus.is_empty()
            && self.occupancy.is_empty()
            && self.capacity.is_empty()
            && self.presence.is_empty()
            && self.node_states.is_empty()
            && self.runs.is_empty()
            && self.boots.is_empty()
    }

    /// An allocation as it stands now; the last state of a batch is the one that is written.
    pub fn allocation(&mut self, row: &AllocationRow) {
        match self.new_allocations.get_mut(&row.allocation_id) {
            Some(new) => *new = row.clone(),
            None => {
                self.changed_allocations.insert(row.allocation_id, row.clone());
            }
        }
    }

    /// A part as it stands now.
    pub fn part(&mut self, row: &PartRow) {
        match self.new_parts.get_mut(&row.part_id) {
            Some(new) => *new = row.clone(),
            None => {
                self.changed_parts.insert(row.part_id, row.clone());
            }
        }
    }

    /// Writes all of it.
    pub async fn flush(mut self, tx: &mut Tx, now: Instant) -> Result<(), AppError> {
        store::request_key::insert(tx, &self.keys, now).await?;
        let quota: Vec<_> = self.quota.into_iter().collect();
        store::quota_use::set(tx, &quota, now).await?;
        for gpu in &self.new_gpus {
            store::gpu::insert(tx, gpu).await.map_err(|error| {
                if error.is_rule("gpu_uuid_is_unique") {
                    AppError::conflict("gpu_elsewhere", format!("{} belongs to another node or pool", gpu.uuid))
                } else {
                    error.into()
                }
            })?;
        }
        for gpu in &self.changed_gpus {
            store::gpu::update(tx, gpu).await?;
        }
        let granted: Vec<_> = self.granted.into_iter().collect();
        store::gpu::set_granted(tx, &granted).await?;
        store::allocation::insert(tx, &values(self.new_allocations)).await?;
        store::allocation::update(tx, &values(self.changed_allocations)).await?;
        store::part::insert(tx, &values(self.new_parts)).await?;
        store::part::update(tx, &values(self.changed_parts)).await?;
        store::history::insert(tx, &self.history).await?;
        self.periods.sort_unstable();
        self.periods.dedup();
        store::period::share(tx, &self.periods).await?;
        store::interval::insert(tx, &self.intervals, now).await?;
        store::interval::insert_unbilled(tx, &self.unbilled).await?;
        store::gpu::insert_capacity(tx, &self.capacity).await?;
        store::gpu::insert_occupancy(tx, &self.occupancy).await?;
        store::node::insert_presence(tx, &self.presence).await?;
        for (node, state) in self.node_states {
            store::node::set_state(tx, node, state).await?;
        }
        for (node, run) in self.runs {
            store::node::set_run(tx, node, run).await?;
        }
        if !self.boots.is_empty() {
            store::node::insert_boots(tx, &self.boots, now).await?;
        }
        let heard: Vec<_> = self.heard.into_iter().map(|(node, (boot, at))| (node, boot, at)).collect();
        store::node::set_heard(tx, &heard).await?;
        Ok(())
    }
}

fn values<K, V>(map: BTreeMap<K, V>) -> Vec<V> {
    map.into_values().collect()
}
