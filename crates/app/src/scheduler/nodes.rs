//! What nodes report, and what operators say of them.

use super::{
    Answer,
    batch::Batch,
    speaker::Speaker,
    state::{Card, Node},
};
use crate::{error::AppError, principal::Actor};
use std::collections::BTreeSet;
use store::{
    gpu::GpuRow,
    node::{NodeState, Presence},
    part::PartRow,
};
use types::{
    AllocationId, AllocationState, Bytes, Cause, GpuId, NodeId,
    wire::{GpuReport, NodeOrders, NodeReport, PartOrder},
};

impl Batch<'_> {
    /// A node reports: it is alive, these are its cards, and these of its workloads live or have ended.
    pub fn report(&mut self, node_id: NodeId, report: &NodeReport) -> Result<Answer, AppError> {
        let now = self.state.time;
        let node = self.node(node_id)?;
        if node.row.state == NodeState::Removed {
            return Err(AppError::Forbidden);
        }
        let speaker = self.speaker(node_id, report)?;
        if speaker == Speaker::Rebooted {
            self.end_all_on(node_id, Cause::NodeRebooted)?;
        }
        self.let_speak(node_id, report, speaker)?;
        self.hear(node_id, report.boot_id.as_str())?;
        for gpu in &report.gpus {
            self.report_gpu(node_id, gpu, matches!(speaker, Speaker::First | Speaker::Rebooted))?;
        }
        self.mark_missing(node_id, report);
        self.refresh_service(node_id)?;
        let actor = Actor::Node(node_id).to_string();
        for exit in &report.exited {
            if self.active_on(node_id, exit.allocation_id) {
                self.end(exit.allocation_id, Cause::Exited, exit.at.min(now), &actor)?;
            }
        }
        for id in &report.alive {
            if self.active_on(node_id, *id) {
                let stopped = self.state.open.get(id).is_some_and(|open| open.row.unconfirmed_since.is_some());
                self.sign_of_life(*id);
                if stopped {
                    self.attest(*id, &actor)?;
                }
            }
        }
        Ok(Answer::Orders(self.orders(node_id)))
    }

    /// Whether a report says nothing that needs a transaction: then it is answered from memory, and what it says is
    /// stored with the next renewal of the lease.
    pub fn is_routine(&self, node_id: NodeId, report: &NodeReport) -> bool {
        let Some(node) = self.state.nodes.get(&node_id) else { return false };
        let cards = self.state.cards.values().filter(|card| card.row.node_id == node_id && !card.missing).count();
        node.reported
            && !node.silent
            && node.row.state != NodeState::Removed
            && node.row.boot_id.as_deref() == Some(report.boot_id.as_str())
            && node.row.run.map(|run| run.run_id) == report.run.map(|run| run.run_id)
            && cards == report.gpus.len()
            && report.gpus.iter().all(|gpu| self.is_as_known(node_id, gpu))
            && report.exited.is_empty()
            && report
                .alive
                .iter()
                .all(|id| self.state.open.get(id).is_none_or(|open| open.row.unconfirmed_since.is_none()))
    }

    /// Whether what a node says of a card changes no journal and serves no waiting request.
    fn is_as_known(&self, node_id: NodeId, gpu: &GpuReport) -> bool {
        let Some(card) = self.card_of(&gpu.uuid) else { return false };
        let seen = self.state.inventory.gpu(card.row.gpu_id);
        let strangers = seen.and_then(placement::Gpu::unattributed);
        card.row.node_id == node_id
            && !card.missing
            && card.in_service == self.state.in_service(card)
            && !is_resized(&card.row, gpu, false)
            && (self.state.queue.is_empty() || strangers <= seen.and_then(|seen| unattributed(seen, gpu)))
    }

    pub(super) fn node(&self, node: NodeId) -> Result<&Node, AppError> {
        self.state.nodes.get(&node).ok_or(AppError::NotFound("node"))
    }

    fn card_of(&self, uuid: &types::GpuUuid) -> Option<&Card> {
        self.state.cards.values().find(|card| card.row.uuid == *uuid)
    }

    fn active_on(&self, node: NodeId, id: AllocationId) -> bool {
        self.state.open.get(&id).is_some_and(|open| {
            open.row.state == AllocationState::Active && open.parts.iter().any(|part| part.node_id == node)
        })
    }

    /// Notes that the node was heard; where it was not before, the presence journal says so.
    fn hear(&mut self, node_id: NodeId, boot: &str) -> Result<(), AppError> {
        let now = self.state.time;
        let Some(node) = self.state.nodes.get_mut(&node_id) else { return Err(AppError::NotFound("node")) };
        let was_present = node.presence_sequence > 0 && !node.silent;
        node.row.boot_id = Some(boot.to_owned());
        node.row.last_heard = Some(now);
        node.silent = false;
        node.reported = true;
        self.state.fresh_nodes.insert(node_id);
        self.writes.heard.insert(node_id, (Some(boot.to_owned()), now));
        if !was_present {
            tracing::info!(pool = %self.state.pool.pool_id, term = self.state.term, %node_id, "the node is heard");
            node.presence_sequence += 1;
            let sequence = node.presence_sequence;
            self.writes.presence.push(Presence { node_id, sequence, at: now, present: true });
        }
        Ok(())
    }

    /// A card as its node reports it: new, moved, or with another capacity. A capacity changes only while nothing is
    /// granted on the card, so that it never shrinks under a grant.
    fn report_gpu(&mut self, node_id: NodeId, gpu: &GpuReport, first_of_boot: bool) -> Result<(), AppError> {
        let allocatable = allocatable(gpu);
        if self.state.elsewhere.contains(&gpu.uuid) {
            tracing::warn!(%node_id, gpu = %gpu.uuid, "the card belongs to another pool: it takes nothing here");
            return Ok(());
        }
        let Some(card) = self.card_of(&gpu.uuid) else { return self.new_gpu(node_id, gpu, allocatable) };
        let gpu_id = card.row.gpu_id;
        let moved = card.row.node_id != node_id || card.row.pool_id != self.state.pool.pool_id;
        let resized = is_resized(&card.row, gpu, first_of_boot);
        let empty = self.state.inventory.gpu(gpu_id).is_none_or(|g| g.parts().count() == 0);
        if moved && !empty {
            // one card must not take the node's other words with it
            tracing::warn!(%node_id, gpu = %gpu.uuid, "the card still has workloads on another node: it takes nothing here");
            return Ok(());
        }
        if is_impossible(gpu) {
            tracing::warn!(%node_id, gpu = %gpu.uuid, "the card reports no memory, or less than its driver keeps");
            return Ok(());
        }
        if (moved || resized) && empty {
            let pool_id = self.state.pool.pool_id;
            let Some(card) = self.state.cards.get_mut(&gpu_id) else { return Ok(()) };
            card.row.node_id = node_id;
            card.row.pool_id = pool_id;
            card.row.memory_total = gpu.memory_total;
            card.row.driver_overhead = gpu.driver_overhead;
            card.row.allocatable = allocatable;
            self.writes.changed_gpus.push(card.row.clone());
            self.place_card(gpu_id)?;
        }
        let unattributed = self.state.inventory.gpu(gpu_id).and_then(|seen| unattributed(seen, gpu));
        self.state.inventory.set_unattributed(gpu_id, unattributed).map_err(super::loading::inconsistent)?;
        if let Some(card) = self.state.cards.get_mut(&gpu_id) {
            card.missing = false;
        }
        Ok(())
    }

    fn new_gpu(&mut self, node_id: NodeId, gpu: &GpuReport, allocatable: Bytes) -> Result<(), AppError> {
        if is_impossible(gpu) {
            return Err(AppError::invalid(
                "gpus",
                format!("{}: memory_total must be above 0 and driver_overhead within it", gpu.uuid),
            ));
        }
        let gpu_id = self.id(GpuId::new);
        let row = GpuRow {
            gpu_id,
            node_id,
            pool_id: self.state.pool.pool_id,
            uuid: gpu.uuid.clone(),
            model: gpu.model.clone(),
            memory_total: gpu.memory_total,
            driver_overhead: gpu.driver_overhead,
            allocatable,
            granted: Bytes::ZERO,
            removed_at: None,
            created_at: self.state.time,
        };
        self.writes.new_gpus.push(row.clone());
        let card = Card {
            row,
            occupancy_sequence: 0,
            capacity_sequence: 0,
            in_service: true,
            held: Bytes::ZERO,
            missing: false,
        };
        self.state.cards.insert(gpu_id, card);
        self.place_card(gpu_id)?;
        self.freed = true;
        Ok(())
    }

    /// Puts an empty card into the inventory as it now is, and journals its capacity and bytes.
    fn place_card(&mut self, gpu_id: GpuId) -> Result<(), AppError> {
        let Some(card) = self.state.cards.get(&gpu_id) else { return Ok(()) };
        let in_service = card.in_service;
        let gpu = super::loading::gpu_of(card, self.state.service(card));
        self.state.inventory.upsert_gpu(gpu).map_err(super::loading::inconsistent)?;
        self.journal_capacity(gpu_id, in_service);
        self.journal_occupancy(gpu_id);
        Ok(())
    }

    /// Cards that the report leaves out take nothing new until they are back; the others go on.
    fn mark_missing(&mut self, node_id: NodeId, report: &NodeReport) {
        let seen: BTreeSet<&types::GpuUuid> = report.gpus.iter().map(|gpu| &gpu.uuid).collect();
        for card in self.state.cards.values_mut().filter(|card| card.row.node_id == node_id) {
            card.missing = !seen.contains(&card.row.uuid);
        }
    }

    /// What the node is to meter.
    pub fn orders(&self, node_id: NodeId) -> NodeOrders {
        let on_node = self.state.open.values().filter(|open| open.row.state != AllocationState::Queued);
        let parts = on_node
            .flat_map(|open| open.parts.iter().map(move |part| (open, part)))
            .filter(|(_, part)| part.node_id == node_id)
            .filter_map(|(open, part)| {
                Some(PartOrder {
                    tenant_id: part.tenant_id,
                    project_id: part.project_id,
                    allocation_id: part.allocation_id,
                    part_id: part.part_id,
                    gpu_id: part.gpu_id,
                    gpu_uuid: self.state.cards.get(&part.gpu_id)?.row.uuid.clone(),
                    bytes: part.bytes,
                    active_since: part.active_from,
                    ends_by: open.row.ends_by,
                })
            })
            .collect();
        let rotate_credential = self.state.nodes.get(&node_id).is_some_and(|node| node.row.rotate_asked_at.is_some());
        NodeOrders { node_id, server_time: self.state.time, parts, rotate_credential }
    }

    /// Ends everything on a node: active workloads are lost, metered to their last sign of life; holds expire.
    fn end_all_on(&mut self, node_id: NodeId, cause: Cause) -> Result<(), AppError> {
        let heard = self.node(node_id)?.row.last_heard;
        let on_node: Vec<AllocationId> = self
            .state
            .open
            .values()
            .filter(|open| open.parts.iter().any(|part| part.node_id == node_id))
            .map(|open| open.row.allocation_id)
            .collect();
        for id in on_node {
            let sign = self.state.open.get(&id).and_then(|open| open.row.last_sign);
            let lived_until = sign.max(heard.filter(|_| cause == Cause::NodeRemoved)).unwrap_or(self.state.time);
            self.end(id, cause, lived_until, "system")?;
        }
        Ok(())
    }

    /// An operator cordons a node (what runs goes on), uncordons it, or removes it (what runs is lost).
    pub fn set_node_state(&mut self, node_id: NodeId, to: NodeState, actor: &Actor) -> Result<Answer, AppError> {
        let from = self.node(node_id)?.row.state;
        if from == to {
            return Ok(Answer::Done);
        }
        if from == NodeState::Removed {
            return Err(AppError::conflict("node_removed", "the node was removed; it can only join again"));
        }
        if to == NodeState::Removed {
            self.end_all_on(node_id, Cause::NodeRemoved)?;
        }
        if let Some(node) = self.state.nodes.get_mut(&node_id) {
            node.row.state = to;
        }
        tracing::info!(%node_id, state = to.name(), %actor, "node state set");
        self.writes.node_states.insert(node_id, to);
        self.refresh_service(node_id)?;
        self.freed = true;
        Ok(Answer::Done)
    }

    /// Nodes that have just fallen silent, and since when.
    pub fn newly_silent(&self, now: types::Instant) -> impl Iterator<Item = (NodeId, types::Instant)> {
        let (leader_since, grace) = (self.state.leader_since, self.silence_ms());
        let listened_to = self.state.nodes.values().filter(|n| !n.silent && n.row.state != NodeState::Removed);
        listened_to.filter_map(move |node| {
            let since = metering::silence::silent_since(now, node.row.last_heard, leader_since, grace)?;
            Some((node.row.node_id, since))
        })
    }

    /// Stops the meters on nodes that fell silent. Their memory stays held.
    pub fn notice_silence(&mut self) -> Result<(), AppError> {
        let silent: Vec<(NodeId, types::Instant)> = self.newly_silent(self.state.time).collect();
        let (pool, term) = (self.state.pool.pool_id, self.state.term);
        for (node_id, since) in silent {
            tracing::warn!(%pool, term, %node_id, %since, "the node is silent: its meters stop");
            if let Some(node) = self.state.nodes.get_mut(&node_id) {
                node.silent = true;
                // a node that was never heard from has no presence to end
                if node.presence_sequence > 0 {
                    node.presence_sequence += 1;
                    let sequence = node.presence_sequence;
                    self.writes.presence.push(Presence { node_id, sequence, at: since, present: false });
                }
            }
            self.refresh_service(node_id)?;
        }
        let unheard: Vec<AllocationId> = self.unheard().collect();
        for id in unheard {
            self.stop_meter(id)?;
        }
        Ok(())
    }

    /// Allocations that are metered although their node is silent: it has just fallen silent, or they were confirmed
    /// since it did.
    pub fn unheard(&self) -> impl Iterator<Item = AllocationId> {
        let on_silent = |part: &PartRow| self.state.nodes.get(&part.node_id).is_some_and(|node| node.silent);
        let active = self.state.open.values().filter(|open| open.row.state == AllocationState::Active);
        active
            .filter(move |open| open.row.unconfirmed_since.is_none() && open.parts.iter().any(on_silent))
            .map(|open| open.row.allocation_id)
    }
}

/// Whether no card can be like this.
fn is_impossible(gpu: &GpuReport) -> bool {
    gpu.memory_total == Bytes::ZERO || gpu.driver_overhead.is_some_and(|overhead| overhead > gpu.memory_total)
}

/// What a card can give when it is empty.
fn allocatable(gpu: &GpuReport) -> Bytes {
    gpu.memory_total.less(gpu.driver_overhead.unwrap_or(Bytes::ZERO))
}

/// Whether a report gives a card another capacity. What the driver keeps wavers, so it is taken at boot, or when it
/// becomes known.
fn is_resized(card: &GpuRow, gpu: &GpuReport, first_of_boot: bool) -> bool {
    card.memory_total != gpu.memory_total
        || (card.allocatable != allocatable(gpu) && (first_of_boot || card.driver_overhead.is_none()))
}

/// What a card says is in use beyond all grants: it belongs to nobody that we know, and is nobody's to give.
fn unattributed(seen: &placement::Gpu, gpu: &GpuReport) -> Option<Bytes> {
    gpu.memory_used.map(|used| used.less(seen.granted()))
}
