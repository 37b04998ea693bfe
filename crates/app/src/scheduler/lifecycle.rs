//! From a hold to the end: confirmation, renewal, release, cancellation, and what deadlines do.

use super::{Answer, batch::Batch, state::Open};
use crate::{error::AppError, principal::Principal};
use metering::silence::{Deadline, Life, first_deadline};
use store::interval::UnbilledKind;
use types::{AllocationId, AllocationState, Cause, Instant, Span, TenantId};

impl Batch<'_> {
    /// The workload starts: metering begins at the pool's time. The first confirmation wins; a repeat shows it again.
    pub fn confirm(&mut self, id: AllocationId, by: &Principal) -> Result<Answer, AppError> {
        let Some(open) = self.owned(id, by)? else { return Ok(Answer::Stored(id)) };
        match open.row.state {
            AllocationState::Active => return Ok(self.show(id, false)),
            AllocationState::Held => {}
            state => return Err(AppError::conflict("not_held", format!("the allocation is {state}, not held"))),
        }
        let mut open = self.take(id)?;
        let now = self.state.time;
        let from = open.row.state;
        open.row.state = quota::next(from, Cause::Confirmed).map_err(illegal)?;
        open.row.cause = Cause::Confirmed;
        open.row.active_since = Some(now);
        open.row.last_sign = Some(now);
        open.row.ends_by = open.row.request.max_duration_s.map(|s| now.plus_secs(i64::from(s)));
        open.row.hold_until = None;
        for index in 0..open.parts.len() {
            let part = &mut open.parts[index];
            part.active_from = Some(now);
            part.metered_to = Some(now);
            let part = part.clone();
            if let Some(card) = self.state.cards.get_mut(&part.gpu_id) {
                card.held = card.held.less(part.bytes);
            }
            self.leave_unbilled(&part, UnbilledKind::Held, Span::clamped(part.held_from, now));
            self.journal_occupancy(part.gpu_id);
            self.writes.part(&part);
        }
        self.record(&open, Some(from), Cause::Confirmed, &by.actor().to_string(), serde_json::json!({}));
        self.put_back(open);
        Ok(self.show(id, false))
    }

    /// The workload lives.
    pub fn renew(&mut self, id: AllocationId, by: &Principal) -> Result<Answer, AppError> {
        let Some(open) = self.owned(id, by)? else { return Ok(Answer::Stored(id)) };
        let state = open.row.state;
        if state != AllocationState::Active {
            return Err(AppError::conflict("not_active", format!("the allocation is {state}, not active")));
        }
        let meter_stands = self.meter_stands(id);
        self.sign_of_life(id);
        if meter_stands {
            self.attest(id, &by.actor().to_string())?;
        }
        Ok(self.show(id, false))
    }

    /// Whether a workload is unconfirmed although its node is heard from again: it is one that no agent sees, and its owner's
    /// word is the only one to come. While the node is silent the meter stands still, whatever the owner says.
    pub fn meter_stands(&self, id: AllocationId) -> bool {
        self.state.open.get(&id).is_some_and(|open| open.row.unconfirmed_since.is_some() && !self.node_is_silent(open))
    }

    fn node_is_silent(&self, open: &Open) -> bool {
        let node = open.parts.first().and_then(|part| self.state.nodes.get(&part.node_id));
        node.is_some_and(|node| node.silent)
    }

    /// A sign of life at the pool's time.
    pub fn sign_of_life(&mut self, id: AllocationId) {
        if let Some(open) = self.state.open.get_mut(&id) {
            open.row.last_sign = open.row.last_sign.max(Some(self.state.time));
            self.state.fresh_signs.insert(id);
        }
    }

    /// The owner says that the workload ended. A held allocation is withdrawn instead.
    pub fn release(&mut self, id: AllocationId, by: &Principal) -> Result<Answer, AppError> {
        let Some(open) = self.owned(id, by)? else { return Ok(Answer::Stored(id)) };
        let cause = match open.row.state {
            AllocationState::Active if matches!(by, Principal::Node { .. }) => Cause::Exited,
            AllocationState::Active => Cause::Owner,
            _ => Cause::Cancelled,
        };
        let now = self.state.time;
        self.end(id, cause, now, &by.actor().to_string())?;
        Ok(self.show(id, false))
    }

    /// The request is withdrawn before its workload started.
    pub fn cancel(&mut self, id: AllocationId, by: &Principal) -> Result<Answer, AppError> {
        let Some(open) = self.owned(id, by)? else { return Ok(Answer::Stored(id)) };
        if open.row.state == AllocationState::Active {
            return Err(AppError::conflict("active", "the allocation is active: release it"));
        }
        let now = self.state.time;
        self.end(id, Cause::Cancelled, now, &by.actor().to_string())?;
        Ok(self.show(id, false))
    }

    /// Ends an allocation now. It counts as having lived until `lived_until`: that much is metered; what it kept beyond
    /// that is recorded as unconfirmed.
    pub fn end(&mut self, id: AllocationId, cause: Cause, lived_until: Instant, actor: &str) -> Result<(), AppError> {
        let mut open = self.take(id)?;
        let now = self.state.time;
        let from = open.row.state;
        open.row.state = quota::next(from, cause).map_err(illegal)?;
        open.row.cause = cause;
        open.row.ended_at = Some(now);
        open.row.unconfirmed_since = None;
        open.row.lost_by = None;
        open.row.queue_reasons = None;
        let was_granted = from != AllocationState::Queued;
        for index in 0..open.parts.len() {
            let mut part = open.parts[index].clone();
            self.close_meter(&mut part, lived_until)?;
            self.state
                .inventory
                .remove_part(part.gpu_id, part.part_id)
                .map_err(|e| AppError::Internal(format!("ending {id}: {e}")))?;
            self.state.owners.remove(&part.part_id);
            if from == AllocationState::Held
                && let Some(card) = self.state.cards.get_mut(&part.gpu_id)
            {
                card.held = card.held.less(part.bytes);
            }
            self.journal_occupancy(part.gpu_id);
            self.writes.part(&part);
            open.parts[index] = part;
        }
        self.state.queue.remove(&open.row.queue_number);
        self.state.fresh_signs.remove(&id);
        if was_granted {
            self.give_back_quota(open.row.tenant_id, open.row.project_id, open.row.request.total())?;
        }
        self.freed = true;
        let detail = serde_json::json!({ "lived_until": lived_until });
        self.record(&open, Some(from), cause, actor, detail);
        self.writes.allocation(&open.row);
        self.ended.insert(id, self.state.view(&open));
        Ok(())
    }

    fn close_meter(&mut self, part: &mut store::part::PartRow, lived_until: Instant) -> Result<(), AppError> {
        let now = self.state.time;
        match part.metered_to {
            None => self.leave_unbilled(part, UnbilledKind::Held, Span::clamped(part.held_from, now)),
            Some(metered_to) => {
                let until = lived_until.clamp(metered_to, now.max(metered_to));
                self.meter(part, Span::clamped(metered_to, until), part.unconfirmed_since.is_some())?;
                self.leave_unbilled(part, UnbilledKind::Unconfirmed, Span::clamped(until, now));
                part.metered_to = Some(until);
            }
        }
        part.unconfirmed_since = None;
        part.ended_at = Some(now);
        Ok(())
    }

    /// Stops the meter of an active allocation whose node fell silent: final up to its last sign of life, unconfirmed
    /// from there.
    pub fn stop_meter(&mut self, id: AllocationId) -> Result<(), AppError> {
        let mut open = self.take(id)?;
        let now = self.state.time;
        let lost_after_s = i64::from(self.state.pool.graces.lost_after_s);
        // a confirmation is a sign of life, so an active allocation has one
        let lived_until = open.row.last_sign.unwrap_or(now).min(now);
        for index in 0..open.parts.len() {
            let mut part = open.parts[index].clone();
            let Some(metered_to) = part.metered_to else { continue };
            let until = lived_until.max(metered_to);
            self.meter(&part, Span::clamped(metered_to, until), false)?;
            part.metered_to = Some(until);
            part.unconfirmed_since = Some(until);
            open.row.unconfirmed_since = Some(until);
            open.row.lost_by = Some(until.plus_secs(lost_after_s));
            self.writes.part(&part);
            open.parts[index] = part;
        }
        open.row.cause = Cause::NodeSilent;
        self.record(&open, Some(open.row.state), Cause::NodeSilent, "system", serde_json::json!({}));
        self.put_back(open);
        Ok(())
    }

    /// The node is back, and it or the owner says that the workload lived on: the gap is metered, and marked.
    pub fn attest(&mut self, id: AllocationId, actor: &str) -> Result<(), AppError> {
        let mut open = self.take(id)?;
        let now = self.state.time;
        for index in 0..open.parts.len() {
            let mut part = open.parts[index].clone();
            if let Some(since) = part.unconfirmed_since.take() {
                self.meter(&part, Span::clamped(since, now), true)?;
                part.metered_to = Some(now.max(since));
                self.writes.part(&part);
                open.parts[index] = part;
            }
        }
        let since = open.row.unconfirmed_since.take();
        open.row.lost_by = None;
        open.row.cause = Cause::Attested;
        self.record(
            &open,
            Some(open.row.state),
            Cause::Attested,
            actor,
            serde_json::json!({ "unconfirmed_since": since }),
        );
        self.put_back(open);
        Ok(())
    }

    /// The tenant's running meters that are not final up to an instant.
    fn meters_before(&self, tenant: TenantId, edge: Instant) -> impl Iterator<Item = AllocationId> {
        self.state
            .open
            .values()
            .filter(move |open| open.row.tenant_id == tenant && open.row.state == AllocationState::Active)
            .filter(|open| open.row.unconfirmed_since.is_none())
            .filter(move |open| open.parts.iter().any(|part| part.metered_to.is_some_and(|to| to < edge)))
            .map(|open| open.row.allocation_id)
    }

    /// Whether a cut would find nothing to do.
    pub fn is_cut(&self, tenant: TenantId, edge: Instant) -> bool {
        self.meters_before(tenant, edge).next().is_none()
    }

    /// Makes a tenant's open meters final up to the end of its period. Those not known to have lived until then stay
    /// open; their number is the answer.
    pub fn cut(&mut self, tenant: TenantId, edge: Instant) -> Result<Answer, AppError> {
        let now = self.state.time;
        let due: Vec<AllocationId> = self.meters_before(tenant, edge).collect();
        let mut waiting = 0;
        for id in due {
            let known_to = self.state.open.get(&id).and_then(|open| open.row.last_sign);
            if edge > now || known_to.is_none_or(|sign| sign < edge) {
                waiting += 1;
                continue;
            }
            let mut open = self.take(id)?;
            for index in 0..open.parts.len() {
                let mut part = open.parts[index].clone();
                let Some(metered_to) = part.metered_to.filter(|to| *to < edge) else { continue };
                self.meter(&part, Span::clamped(metered_to, edge), false)?;
                part.metered_to = Some(edge);
                self.writes.part(&part);
                open.parts[index] = part;
            }
            self.state.open.insert(id, open);
        }
        Ok(Answer::Cut(waiting))
    }

    /// Ends whatever is past its deadline, and stops the meters of nodes that fell silent.
    pub fn pass_deadlines(&mut self) -> Result<(), AppError> {
        self.notice_silence()?;
        let now = self.state.time;
        let silence_ms = self.silence_ms();
        let mut due: Vec<(Deadline, AllocationId)> = self
            .state
            .open
            .values()
            .filter_map(|open| Some((first_deadline(self.life(open)?, silence_ms, self.state.leader_since), open)))
            .filter(|(deadline, _)| deadline.due <= now)
            .map(|(deadline, open)| (deadline, open.row.allocation_id))
            .collect();
        due.sort_unstable_by_key(|(deadline, id)| (deadline.due, *id));
        for (deadline, id) in due {
            self.end(id, deadline.cause, deadline.lived_until, "system")?;
        }
        Ok(())
    }

    /// Whether no deadline has passed by then, and no node fell silent.
    pub fn nothing_is_due(&self, at: Instant) -> bool {
        let now = self.state.time.max(at);
        let silence_ms = self.silence_ms();
        let mut deadlines = self.state.open.values().filter_map(|open| self.life(open));
        self.newly_silent(now).next().is_none()
            && self.unheard().next().is_none()
            && deadlines.all(|life| first_deadline(life, silence_ms, self.state.leader_since).due > now)
    }

    pub fn silence_ms(&self) -> i64 {
        i64::from(self.state.pool.graces.silence_grace_s) * 1000
    }

    /// What an allocation's deadlines depend on; `None` while it waits.
    fn life(&self, open: &Open) -> Option<Life> {
        let row = &open.row;
        match row.state {
            AllocationState::Held => row.hold_until.map(|hold_until| Life::Held { hold_until }),
            AllocationState::Active => {
                let node_silent = self.node_is_silent(open);
                match row.unconfirmed_since.zip(row.lost_by) {
                    Some((since, lost_by)) if node_silent => {
                        Some(Life::Unconfirmed { ends_by: row.ends_by, since, lost_by })
                    }
                    _ => row
                        .last_sign
                        .or(row.active_since)
                        .map(|last_sign| Life::Active { ends_by: row.ends_by, last_sign }),
                }
            }
            _ => None,
        }
    }

    /// Takes an open allocation out of the state, to change it.
    fn take(&mut self, id: AllocationId) -> Result<Open, AppError> {
        self.state.open.remove(&id).ok_or_else(|| AppError::Internal(format!("allocation {id} is not open")))
    }

    /// Puts a changed allocation back, and writes it.
    fn put_back(&mut self, open: Open) {
        self.writes.allocation(&open.row);
        self.state.open.insert(open.row.allocation_id, open);
    }
}

fn illegal(error: quota::Illegal) -> AppError {
    AppError::conflict("illegal_change", error.to_string())
}
