//! Requests: quota, placement, the queue in order of arrival.

use super::{Answer, DryRun, NewRequest, batch::Batch, state::Open};
use crate::error::{AppError, Invalid, Refusal};
use placement::{NoRoom, Placement};
use quota::{Ask, Violation};
use std::collections::BTreeSet;
use store::{
    allocation::AllocationRow,
    part::PartRow,
    request_key::{KeyAnswer, RequestKey},
};
use types::{AllocationId, AllocationState, Cause, GpuId, PartId, ProjectId, Request, TenantId};

/// What a request gets now.
enum Decision {
    Place(Placement),
    Wait(NoRoom),
    QuotaExceeded(Vec<Violation>),
    Unsatisfiable(NoRoom),
}

impl Batch<'_> {
    /// Decides a request, or repeats what was decided under its key.
    pub fn request(&mut self, new: &NewRequest) -> Result<Answer, AppError> {
        if let Some((key, hash)) = &new.key
            && let Some(known) = self.keys.get(&(new.tenant_id, key.clone()))
        {
            return repeat(known, hash).map(|id| self.show(id, false));
        }
        placement::validate(&new.request, &self.state.inventory).map_err(invalid)?;
        let decision = self.decide(new.tenant_id, new.project_id, &new.request);
        let Some((key, hash)) = &new.key else { return Ok(Answer::DryRun(self.dry(decision))) };
        let answer = match decision {
            Decision::Place(placement) => Ok(self.admit(new, Some(&placement), None)?),
            Decision::Wait(no_room) => Ok(self.admit(new, None, Some(&no_room))?),
            Decision::QuotaExceeded(violations) => Err(Refusal::QuotaExceeded { violations }),
            Decision::Unsatisfiable(no_room) => {
                Err(Refusal::Unsatisfiable { reasons: no_room.reasons, nearest: no_room.nearest })
            }
        };
        let stored = match &answer {
            Ok(id) => KeyAnswer::Allocation(*id),
            Err(refusal) => KeyAnswer::Refusal(serde_json::json!(refusal)),
        };
        let row = RequestKey { tenant_id: new.tenant_id, key: key.clone(), body_hash: *hash, answer: stored };
        self.writes.keys.push(row.clone());
        self.keys.insert((new.tenant_id, key.clone()), row);
        answer.map(|id| self.show(id, true)).map_err(AppError::Refused)
    }

    fn decide(&self, tenant: TenantId, project: ProjectId, request: &Request) -> Decision {
        if let Err(violations) = quota::decide(&self.accounts(tenant, project), Ask::from(request)) {
            return Decision::QuotaExceeded(violations);
        }
        match placement::place(&self.state.inventory, request, &self.closed_to_newcomers()) {
            Ok(placement) => Decision::Place(placement),
            Err(no_room) if no_room.ever => Decision::Wait(no_room),
            Err(no_room) => Decision::Unsatisfiable(no_room),
        }
    }

    /// GPUs that waiting requests could use: a later request never takes one of them. Who waits for quota keeps none.
    fn closed_to_newcomers(&self) -> BTreeSet<GpuId> {
        let waiting = self.state.queue.values().filter_map(|id| self.state.open.get(id)).map(|open| &open.row);
        let within_quota = waiting.filter(|row| {
            quota::decide(&self.accounts(row.tenant_id, row.project_id), Ask::from(&row.request)).is_ok()
        });
        placement::closed_by(&self.state.inventory, within_quota.map(|row| &row.request))
    }

    fn dry(&self, decision: Decision) -> DryRun {
        match decision {
            Decision::Place(placement) => DryRun::Placed {
                gpus: placement
                    .gpus
                    .iter()
                    .filter_map(|gpu| self.state.cards.get(gpu))
                    .map(|card| card.row.uuid.clone())
                    .collect(),
                measured: placement.measured,
            },
            Decision::Wait(no_room) => DryRun::Queued { ahead: self.state.queue.len(), no_room },
            Decision::QuotaExceeded(violations) => DryRun::QuotaExceeded(violations),
            Decision::Unsatisfiable(no_room) => DryRun::Unsatisfiable(no_room),
        }
    }

    /// Makes the allocation: queued first, and placed at once where there is room.
    fn admit(
        &mut self,
        new: &NewRequest,
        placement: Option<&Placement>,
        no_room: Option<&NoRoom>,
    ) -> Result<AllocationId, AppError> {
        let allocation_id = self.id(AllocationId::new);
        self.state.last_queue_number += 1;
        let row = AllocationRow {
            tenant_id: new.tenant_id,
            allocation_id,
            project_id: new.project_id,
            pool_id: self.state.pool.pool_id,
            state: AllocationState::Queued,
            request: new.request.clone(),
            requested_by: new.actor.to_string(),
            requested_at: self.state.time,
            queue_number: self.state.last_queue_number,
            queue_reasons: no_room.map(|reasons| serde_json::json!(reasons)),
            hold_until: None,
            active_since: None,
            ends_by: None,
            last_sign: None,
            unconfirmed_since: None,
            lost_by: None,
            ended_at: None,
            cause: Cause::Requested,
        };
        let open = Open { row, parts: Vec::new() };
        self.record(&open, None, Cause::Requested, &new.actor.to_string(), serde_json::json!(new.request));
        self.writes.new_allocations.insert(allocation_id, open.row.clone());
        self.state.queue.insert(open.row.queue_number, allocation_id);
        self.state.open.insert(allocation_id, open);
        if let Some(placement) = placement {
            self.hold(allocation_id, placement)?;
        }
        Ok(allocation_id)
    }

    /// Holds the chosen GPUs for a queued allocation.
    fn hold(&mut self, id: AllocationId, placement: &Placement) -> Result<(), AppError> {
        let mut open = self.state.open.remove(&id).ok_or_else(|| missing(id))?;
        let now = self.state.time;
        let from = open.row.state;
        open.row.state = quota::next(from, Cause::Placed).map_err(|e| AppError::Internal(e.to_string()))?;
        open.row.hold_until = Some(now.plus_secs(i64::from(self.state.pool.graces.hold_grace_s)));
        open.row.queue_reasons = None;
        open.row.cause = Cause::Placed;
        self.state.queue.remove(&open.row.queue_number);
        self.take_quota(open.row.tenant_id, open.row.project_id, Ask::from(&open.row.request));
        for gpu in &placement.gpus {
            let card = self.state.cards.get_mut(gpu).ok_or_else(|| missing(id))?;
            card.held = card.held.plus(open.row.request.memory);
            let part = PartRow {
                tenant_id: open.row.tenant_id,
                part_id: PartId::new(now, self.random.bytes()),
                allocation_id: id,
                project_id: open.row.project_id,
                pool_id: open.row.pool_id,
                node_id: card.row.node_id,
                gpu_id: *gpu,
                model: card.row.model.clone(),
                bytes: open.row.request.memory,
                held_from: now,
                active_from: None,
                metered_to: None,
                unconfirmed_since: None,
                read_to: None,
                ended_at: None,
            };
            self.state
                .inventory
                .add_part(*gpu, part.part_id, part.bytes)
                .map_err(|e| AppError::Internal(format!("placed over a GPU's edge: {e}")))?;
            self.state.owners.insert(part.part_id, id);
            self.journal_occupancy(*gpu);
            self.writes.new_parts.insert(part.part_id, part.clone());
            open.parts.push(part);
        }
        let detail = serde_json::json!({ "gpus": placement.gpus, "measured": placement.measured });
        self.record(&open, Some(from), Cause::Placed, "system", detail);
        self.writes.allocation(&open.row);
        self.state.open.insert(id, open);
        Ok(())
    }

    /// Whether any request waits.
    pub fn someone_waits(&self) -> bool {
        !self.state.queue.is_empty()
    }

    /// Places waiting requests in order of arrival. One that waits for quota keeps nothing from the others; one that
    /// waits for room keeps every GPU that it could use.
    pub fn scan_queue(&mut self) -> Result<(), AppError> {
        let mut closed: BTreeSet<GpuId> = BTreeSet::new();
        let waiting: Vec<AllocationId> = self.state.queue.values().copied().collect();
        for id in waiting {
            let Some(open) = self.state.open.get(&id) else { continue };
            let (tenant, project, request) = (open.row.tenant_id, open.row.project_id, open.row.request.clone());
            if let Err(violations) = quota::decide(&self.accounts(tenant, project), Ask::from(&request)) {
                self.keep_waiting(id, serde_json::json!({ "quota": violations }));
                continue;
            }
            match placement::place(&self.state.inventory, &request, &closed) {
                Ok(placement) => self.hold(id, &placement)?,
                Err(no_room) => {
                    closed.extend(placement::could_use(&self.state.inventory, &request));
                    self.keep_waiting(id, serde_json::json!(no_room));
                }
            }
        }
        Ok(())
    }

    fn keep_waiting(&mut self, id: AllocationId, reasons: serde_json::Value) {
        let Some(open) = self.state.open.get_mut(&id) else { return };
        if open.row.queue_reasons.as_ref() != Some(&reasons) {
            open.row.queue_reasons = Some(reasons);
            self.writes.allocation(&open.row);
        }
    }
}

/// What a repeat of a decided request gets.
fn repeat(known: &RequestKey, hash: &[u8; 32]) -> Result<AllocationId, AppError> {
    if known.body_hash != *hash {
        return Err(AppError::KeyReused);
    }
    match &known.answer {
        KeyAnswer::Allocation(id) => Ok(*id),
        KeyAnswer::Refusal(stored) => {
            let refusal: Refusal = serde_json::from_value(stored.clone())
                .map_err(|e| AppError::Internal(format!("a stored refusal does not parse: {e}")))?;
            Err(AppError::Refused(refusal))
        }
    }
}

fn invalid(faults: Vec<placement::Invalid>) -> AppError {
    AppError::Invalid(faults.into_iter().map(|f| Invalid { field: f.field.to_owned(), rule: f.rule }).collect())
}

fn missing(id: AllocationId) -> AppError {
    AppError::Internal(format!("allocation {id} is not in the pool's state"))
}
