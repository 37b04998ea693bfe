//! What the agent knows of its node: cards, orders, bound processes, and a meter per active part.

use crate::source::{Card, Users};
use metering::{
    attribution::{self, ProcessId, ProcessStat},
    integrate::{Integrator, WindowLength},
};
use std::collections::{BTreeMap, BTreeSet};
use types::{
    AllocationId, Bytes, GpuUuid, Instant, Name, PartId,
    wire::{Exit, GpuReport, NodeOrders, NodeReport, PartOrder, Reading},
};

/// The most processes that are bound at once: what a report may carry.
const MAX_BINDINGS: usize = 4096;

/// A part's meter.
#[derive(Debug)]
enum Meter {
    Running(Box<Integrator>),
    /// Its workload has ended; the server has not taken it from the orders yet.
    Done,
}

/// A process that an allocation is bound to.
#[derive(Debug, Clone)]
struct Binding {
    process: ProcessId,
    last_seen: Instant,
}

/// Why a process is not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BindError {
    #[error("this node holds no such allocation")]
    Unknown,
    #[error("the allocation's workload has ended")]
    Ended,
    #[error("another process runs under this allocation")]
    Taken,
    #[error("too many processes are bound on this node")]
    TooMany,
}

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    boot_id: Name,
    /// Whether the source is itself the workload of each active part.
    source_is_workload: bool,
    window: WindowLength,
    max_gap_ms: i64,
    gpus: Vec<GpuReport>,
    orders: BTreeMap<PartId, PartOrder>,
    /// The server's time in the latest orders: until then each of their parts lived. Absent before the first.
    listed_at: Option<Instant>,
    /// Since when this agent can vouch for what it meters.
    metering_since: Instant,
    meters: BTreeMap<PartId, Meter>,
    bindings: BTreeMap<AllocationId, Binding>,
    /// Workloads that ended, kept until the server has heard it and no longer orders them.
    exits: BTreeMap<AllocationId, Instant>,
    closed: Vec<Reading>,
}

impl Node {
    /// `source_is_workload`: whether each active part lives without a bound process. `max_gap_ms`: how long a sample
    /// counts.
    pub const fn new(boot_id: Name, source_is_workload: bool, window: WindowLength, max_gap_ms: i64) -> Self {
        Self {
            boot_id,
            source_is_workload,
            window,
            max_gap_ms,
            gpus: Vec::new(),
            orders: BTreeMap::new(),
            listed_at: None,
            metering_since: Instant::EPOCH,
            meters: BTreeMap::new(),
            bindings: BTreeMap::new(),
            exits: BTreeMap::new(),
            closed: Vec::new(),
        }
    }

    /// Takes up the bindings of an earlier run of the agent whose processes still live. Of those that do not, nobody
    /// knows when they ended: they are not reported, and the server takes their last sign of life.
    pub fn restore(
        &mut self,
        bindings: Vec<(AllocationId, ProcessId)>,
        now: Instant,
        stat_of: &impl Fn(u32) -> Option<ProcessStat>,
    ) {
        for (allocation_id, process) in bindings {
            let lives =
                process.boot_id == self.boot_id && stat_of(process.pid).is_some_and(|stat| stat.is_living(&process));
            if lives {
                let last_seen = now;
                self.bindings.insert(allocation_id, Binding { process, last_seen });
            }
        }
    }

    /// The bound processes, to be kept on disk.
    pub fn bindings(&self) -> Vec<(AllocationId, ProcessId)> {
        self.bindings.iter().map(|(id, binding)| (*id, binding.process.clone())).collect()
    }

    /// What names the present boot.
    pub const fn boot_id(&self) -> &Name {
        &self.boot_id
    }

    /// The parts to meter and those held.
    pub fn orders(&self) -> Vec<PartOrder> {
        self.orders.values().cloned().collect()
    }

    /// What to tell the server.
    pub fn report(&self, now: Instant) -> NodeReport {
        let alive: BTreeSet<AllocationId> = self
            .orders
            .values()
            .filter(|order| {
                let runs_by_itself = self.source_is_workload && order.active_since.is_some();
                let id = order.allocation_id;
                !self.exits.contains_key(&id) && (runs_by_itself || self.bindings.contains_key(&id))
            })
            .map(|order| order.allocation_id)
            .collect();
        NodeReport {
            boot_id: self.boot_id.clone(),
            run: None,
            sent_at: now,
            gpus: self.gpus.clone(),
            alive: alive.into_iter().collect(),
            exited: self.exits.iter().map(|(&allocation_id, &at)| Exit { allocation_id, at }).collect(),
        }
    }

    /// Takes the orders that answered `report`. Returns whether parts began or changed, so that a sample is due.
    pub fn take_orders(&mut self, report: &NodeReport, orders: NodeOrders, now: Instant) -> bool {
        let listed_before = self.listed_at.replace(orders.server_time);
        if listed_before.is_none() {
            self.metering_since = now;
        }
        self.orders = orders.parts.into_iter().map(|order| (order.part_id, order)).collect();
        let ordered: BTreeSet<AllocationId> = self.orders.values().map(|o| o.allocation_id).collect();
        self.exits.retain(|id, _| ordered.contains(id) || !report.exited.iter().any(|e| e.allocation_id == *id));
        self.end_unordered(listed_before);
        let active: Vec<PartOrder> =
            self.orders.values().filter(|order| order.active_since.is_some()).cloned().collect();
        let mut changed = false;
        for order in active {
            changed |= self.meter(&order, now);
        }
        changed
    }

    /// Ends the meters of parts that are no longer ordered. They ended at some instant since they were last listed, so
    /// a window that began after that may lie wholly behind the end and is dropped; what began before is kept.
    fn end_unordered(&mut self, listed_before: Option<Instant>) {
        let gone: Vec<PartId> = self.meters.keys().filter(|id| !self.orders.contains_key(id)).copied().collect();
        for part_id in gone {
            if let Some(Meter::Running(meter)) = self.meters.remove(&part_id)
                && let Some(listed) = listed_before
                && meter.window_start() < listed
            {
                self.closed.extend(meter.finish(listed));
            }
        }
    }

    /// Begins a part's meter, or takes over a change of its grant. Returns whether either happened.
    fn meter(&mut self, order: &PartOrder, now: Instant) -> bool {
        let Some(active_since) = order.active_since else {
            return false;
        };
        match self.meters.get_mut(&order.part_id) {
            Some(Meter::Done) => false,
            Some(Meter::Running(meter)) => {
                let changed = meter.granted() != order.bytes;
                self.closed.extend(meter.grant(now, order.bytes));
                changed
            }
            None if self.exits.contains_key(&order.allocation_id) => {
                self.meters.insert(order.part_id, Meter::Done);
                false
            }
            None => {
                let meter = Integrator::new(
                    order.part_id,
                    order.bytes,
                    active_since.max(self.metering_since),
                    self.window,
                    self.max_gap_ms,
                );
                self.meters.insert(order.part_id, Meter::Running(Box::new(meter)));
                true
            }
        }
    }

    /// Takes what the source saw at `now`; `None` where it saw nothing at all. Returns whether the cards are others
    /// than before.
    pub fn take_sample(
        &mut self,
        now: Instant,
        cards: Option<Vec<Card>>,
        stat_of: &impl Fn(u32) -> Option<ProcessStat>,
    ) -> bool {
        let by_gpu: BTreeMap<&GpuUuid, &Card> = cards.iter().flatten().map(|card| (&card.report.uuid, card)).collect();
        let used: Vec<(PartId, Option<Bytes>)> = self
            .orders
            .values()
            .map(|order| {
                let users = by_gpu.get(&order.gpu_uuid).map(|card| &card.users);
                let used = users.and_then(|users| self.used_by(order, users, stat_of));
                (order.part_id, used)
            })
            .collect();
        for (part_id, used) in used {
            if let Some(Meter::Running(meter)) = self.meters.get_mut(&part_id) {
                self.closed.extend(meter.sample(now, used));
            }
        }
        self.take_inventory(cards)
    }

    fn take_inventory(&mut self, cards: Option<Vec<Card>>) -> bool {
        let Some(cards) = cards else {
            // the cards are still there; what they use is unknown
            for gpu in &mut self.gpus {
                gpu.memory_used = None;
            }
            return false;
        };
        let gpus: Vec<GpuReport> = cards.into_iter().map(|card| card.report).collect();
        let same = gpus.len() == self.gpus.len()
            && gpus
                .iter()
                .zip(&self.gpus)
                .all(|(new, old)| (&new.uuid, new.memory_total) == (&old.uuid, old.memory_total));
        self.gpus = gpus;
        !same
    }

    /// What a part uses of its card; `None` where that cannot be told. A card's whole use is never taken for a part's.
    fn used_by(
        &self,
        order: &PartOrder,
        users: &Users,
        stat_of: &impl Fn(u32) -> Option<ProcessStat>,
    ) -> Option<Bytes> {
        match users {
            Users::Unavailable(_) => None,
            Users::Parts(parts) => parts.get(&order.part_id).copied(),
            Users::Processes(processes) => {
                self.bindings.get(&order.allocation_id)?;
                processes
                    .iter()
                    .filter(|(pid, _)| self.owner(*pid, stat_of) == Some(order.allocation_id))
                    .try_fold(Bytes::ZERO, |sum, (_, used)| Some(sum.plus((*used)?)))
            }
        }
    }

    fn owner(&self, pid: u32, stat_of: &impl Fn(u32) -> Option<ProcessStat>) -> Option<AllocationId> {
        attribution::owner(pid, stat_of, |stat| {
            self.bindings
                .iter()
                .find(|(_, binding)| binding.process.pid == stat.pid && binding.process.start_ticks == stat.start_ticks)
                .map(|(id, _)| *id)
        })
    }

    /// Binds a process to an allocation that is held or active here. A repeat is as good as the first time.
    pub fn bind(
        &mut self,
        allocation_id: AllocationId,
        process: ProcessId,
        now: Instant,
    ) -> Result<Vec<PartOrder>, BindError> {
        if self.exits.contains_key(&allocation_id) {
            return Err(BindError::Ended);
        }
        let parts: Vec<PartOrder> =
            self.orders.values().filter(|order| order.allocation_id == allocation_id).cloned().collect();
        if parts.is_empty() {
            return Err(BindError::Unknown);
        }
        match self.bindings.get(&allocation_id) {
            Some(binding) if binding.process != process => return Err(BindError::Taken),
            None if self.bindings.len() >= MAX_BINDINGS => return Err(BindError::TooMany),
            Some(_) | None => {}
        }
        let last_seen = now;
        self.bindings.insert(allocation_id, Binding { process, last_seen });
        Ok(parts)
    }

    /// The bound process of an allocation ended at `at`. Returns whether it was bound.
    pub fn ended(&mut self, allocation_id: AllocationId, process: &ProcessId, at: Instant) -> bool {
        match self.bindings.get(&allocation_id) {
            Some(binding) if binding.process == *process => {}
            _ => return false,
        }
        self.bindings.remove(&allocation_id);
        self.exits.insert(allocation_id, at);
        for order in self.orders.values() {
            if order.allocation_id != allocation_id {
                continue;
            }
            if let Some(Meter::Running(meter)) = self.meters.insert(order.part_id, Meter::Done) {
                self.closed.extend(meter.finish(at));
            }
        }
        true
    }

    /// Looks whether the bound processes still live. One that does not ended at the instant it was last seen, so that
    /// nobody pays for the time until this look. Returns whether any ended.
    pub fn check_bound(&mut self, now: Instant, stat_of: &impl Fn(u32) -> Option<ProcessStat>) -> bool {
        let mut ended = Vec::new();
        for (id, binding) in &mut self.bindings {
            if stat_of(binding.process.pid).is_some_and(|stat| stat.is_living(&binding.process)) {
                binding.last_seen = now;
            } else {
                ended.push((*id, binding.clone()));
            }
        }
        for (id, binding) in &ended {
            self.ended(*id, &binding.process, binding.last_seen);
        }
        !ended.is_empty()
    }

    /// Closes every open window at `now`: the agent stops, the workloads do not.
    pub fn close_all(&mut self, now: Instant) {
        for meter in std::mem::take(&mut self.meters).into_values() {
            if let Meter::Running(meter) = meter {
                self.closed.extend(meter.finish(now));
            }
        }
    }

    /// The readings that are ready, in the order of each part's time.
    pub fn take_closed(&mut self) -> Vec<Reading> {
        std::mem::take(&mut self.closed)
    }

    /// Takes back readings that could not be kept elsewhere, up to `most` altogether. Returns how many were taken.
    pub fn put_back(&mut self, readings: &[Reading], most: usize) -> usize {
        let room = most.saturating_sub(self.closed.len());
        let kept = readings.len().min(room);
        // they are older than what closed meanwhile
        self.closed.splice(0..0, readings[..kept].iter().cloned());
        kept
    }
}

#[cfg(test)]
mod tests;
