//! One batch: what it needs to know, and the pieces that decisions are made of.

use super::{
    Answer, Command,
    loading::gpu_of,
    state::{Open, PoolState},
    writes::Writes,
};
use crate::{Random, error::AppError, principal::Principal};
use placement::Service;
use quota::{Account, Ask};
use std::collections::{BTreeMap, BTreeSet};
use store::{
    Scope, Tx,
    gpu::{Capacity, Occupancy},
    history::HistoryRow,
    interval::{IntervalRow, UnbilledKind, UnbilledSpan},
    part::PartRow,
    period::PeriodRow,
    quota_use::{QuotaScope, QuotaUse},
    request_key::RequestKey,
};
use types::{
    AllocationId, AllocationState, Bytes, Cause, GpuId, HistoryId, Instant, IntervalId, NodeId, ProjectId, Span,
    TenantId, UnbilledSpanId,
};

/// A batch in the making: decisions change the state in memory at once, and the writes that make them durable gather.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub state: &'a mut PoolState,
    pub random: &'a Random,
    pub quotas: BTreeMap<QuotaScope, QuotaUse>,
    pub keys: BTreeMap<(TenantId, String), RequestKey>,
    pub writes: Writes,
    /// Whether something became free, so that waiting requests are looked at.
    pub freed: bool,
    /// Allocations that this batch ended, as they ended.
    pub ended: BTreeMap<AllocationId, crate::allocation::AllocationView>,
    /// Allocations that changed.
    pub changed: BTreeSet<AllocationId>,
}

/// Reads and locks what the commands need: request keys, quota rows in their fixed order, tenants' zones.
pub(super) async fn gather(
    tx: &mut Tx,
    state: &mut PoolState,
    commands: &[(&Command, Instant)],
) -> Result<(BTreeMap<QuotaScope, QuotaUse>, BTreeMap<(TenantId, String), RequestKey>), AppError> {
    let mut owners: BTreeSet<(TenantId, ProjectId)> = BTreeSet::new();
    let mut keys: Vec<(TenantId, String)> = Vec::new();
    for (command, _) in commands {
        match command {
            Command::Request(new) => {
                owners.insert((new.tenant_id, new.project_id));
                keys.extend(new.key.as_ref().map(|(key, _)| (new.tenant_id, key.clone())));
            }
            Command::Release(id, _) | Command::Cancel(id, _) | Command::Confirm(id, _) | Command::Renew(id, _) => {
                owners.extend(state.open.get(id).map(|open| (open.row.tenant_id, open.row.project_id)));
            }
            // whatever may end or begin because of these
            Command::Report(..) | Command::Tick | Command::SetNodeState(..) | Command::NodeJoined(_) => {
                owners.extend(state.open.values().map(|open| (open.row.tenant_id, open.row.project_id)));
            }
            Command::Reconsider | Command::Cut(..) | Command::Look => {}
        }
    }
    owners.extend(
        state.queue.values().filter_map(|id| state.open.get(id)).map(|open| (open.row.tenant_id, open.row.project_id)),
    );
    let mut tenants: BTreeSet<TenantId> = owners.iter().map(|(tenant, _)| *tenant).collect();
    tenants.extend(
        commands.iter().filter_map(|(c, _)| if let Command::Cut(tenant, _) = c { Some(*tenant) } else { None }),
    );
    for tenant in tenants {
        if let std::collections::btree_map::Entry::Vacant(unknown) = state.zones.entry(tenant) {
            let row = store::tenant::get(tx, tenant).await?.ok_or(AppError::NotFound("tenant"))?;
            unknown.insert(row.zone);
        }
    }
    let scopes: BTreeSet<QuotaScope> = owners
        .into_iter()
        .flat_map(|(tenant_id, project)| [None, Some(project)].map(|project_id| QuotaScope { tenant_id, project_id }))
        .collect();
    let known = store::request_key::find(tx, &keys).await?;
    let scopes: Vec<QuotaScope> = scopes.into_iter().collect();
    let quotas = store::quota_use::lock(tx, &scopes).await?;
    Ok((quotas, known.into_iter().map(|k| ((k.tenant_id, k.key.clone()), k)).collect()))
}

impl Batch<'_> {
    /// Decides one command at its time.
    pub fn apply(&mut self, command: &Command, at: Instant) -> Result<Answer, AppError> {
        self.state.time = self.state.time.max(at);
        match command {
            Command::Request(new) => self.request(new),
            Command::Confirm(id, by) => self.confirm(*id, by),
            Command::Renew(id, by) => self.renew(*id, by),
            Command::Release(id, by) => self.release(*id, by),
            Command::Cancel(id, by) => self.cancel(*id, by),
            Command::Report(node, report) => self.report(*node, report),
            Command::SetNodeState(node, state, actor) => self.set_node_state(*node, *state, actor),
            Command::NodeJoined(_) => Ok(Answer::Done),
            Command::Look => Ok(Answer::Look(self.state.look())),
            Command::Reconsider => {
                self.freed = true;
                Ok(Answer::Done)
            }
            Command::Tick => {
                self.pass_deadlines()?;
                Ok(Answer::Done)
            }
            Command::Cut(tenant, edge) => self.cut(*tenant, *edge),
        }
    }

    /// An open allocation that the caller may touch; somebody else's does not exist for them.
    pub fn owned(&self, id: AllocationId, by: &Principal) -> Result<Option<&Open>, AppError> {
        let Some(open) = self.state.open.get(&id) else { return Ok(None) };
        let theirs = match by {
            Principal::Platform { .. } => true,
            Principal::Tenant { tenant, .. } => *tenant == open.row.tenant_id,
            Principal::Node { node, .. } => open.parts.iter().any(|part| part.node_id == *node),
        };
        if theirs { Ok(Some(open)) } else { Err(AppError::NotFound("allocation")) }
    }

    /// The answer that shows an allocation as it stands, open or ended by this batch.
    pub fn show(&self, id: AllocationId, made: bool) -> Answer {
        match self.state.open.get(&id) {
            Some(open) => Answer::Allocation(Box::new(self.state.view(open)), made),
            None => match self.ended.get(&id) {
                Some(view) => Answer::Allocation(Box::new(view.clone()), made),
                None => Answer::Stored(id),
            },
        }
    }

    /// The quota levels of an owner, from the tenant down.
    pub fn accounts(&self, tenant_id: TenantId, project_id: ProjectId) -> Vec<Account> {
        [None, Some(project_id)]
            .into_iter()
            .filter_map(|project_id| self.quotas.get(&QuotaScope { tenant_id, project_id }))
            .map(|q| Account { level: q.level, limits: q.limits, used: q.used })
            .collect()
    }

    /// Counts granted memory against its owner's quotas.
    pub fn take_quota(&mut self, tenant_id: TenantId, project_id: ProjectId, ask: Ask) {
        for project_id in [None, Some(project_id)] {
            let scope = QuotaScope { tenant_id, project_id };
            if let Some(quota) = self.quotas.get_mut(&scope) {
                quota.used.take(ask);
                self.writes.quota.insert(scope, quota.used);
            }
        }
    }

    /// Gives memory back to its owner's quotas.
    ///
    /// # Errors
    /// When more would be given back than is in use: the stored state is wrong, and the batch must not go on.
    pub fn give_back_quota(
        &mut self,
        tenant_id: TenantId,
        project_id: ProjectId,
        bytes: Bytes,
    ) -> Result<(), AppError> {
        for project_id in [None, Some(project_id)] {
            let scope = QuotaScope { tenant_id, project_id };
            let quota = self
                .quotas
                .get_mut(&scope)
                .ok_or_else(|| AppError::Internal(format!("the quota of {scope:?} is not locked")))?;
            quota.used.give_back(bytes).map_err(|e| AppError::Internal(format!("quota of {scope:?}: {e}")))?;
            self.writes.quota.insert(scope, quota.used);
        }
        Ok(())
    }

    /// Ten bytes for an id: a counter first, so that ids made within one millisecond keep their order.
    fn id_bytes(&mut self) -> [u8; 10] {
        self.state.id_counter = (self.state.id_counter + 1) & 0x0fff;
        let mut bytes = self.random.bytes::<10>();
        bytes[..2].copy_from_slice(&self.state.id_counter.to_be_bytes());
        bytes
    }

    /// A new id at the pool's time.
    pub fn id<T>(&mut self, make: impl FnOnce(Instant, [u8; 10]) -> T) -> T {
        let bytes = self.id_bytes();
        make(self.state.time, bytes)
    }

    /// Records a change of an allocation.
    pub fn record(
        &mut self,
        open: &Open,
        from_state: Option<AllocationState>,
        cause: Cause,
        actor: &str,
        detail: serde_json::Value,
    ) {
        let history_id = self.id(HistoryId::new);
        self.changed.insert(open.row.allocation_id);
        self.writes.history.push(HistoryRow {
            tenant_id: open.row.tenant_id,
            history_id,
            allocation_id: open.row.allocation_id,
            at: self.state.time,
            from_state,
            to_state: open.row.state,
            cause,
            actor: actor.to_owned(),
            detail,
        });
    }

    /// Makes a span of a part final, cut where its tenant's periods end.
    pub fn meter(&mut self, part: &PartRow, span: Span, attested: bool) -> Result<(), AppError> {
        if span.is_empty() {
            return Ok(());
        }
        let zone = self.state.zones.get(&part.tenant_id).cloned().ok_or_else(|| zone_missing(part.tenant_id))?;
        for span in span.cut_at(billing::period::edges(span, &zone)) {
            let period = billing::period::month_of(span.start(), &zone);
            self.writes.periods.push(PeriodRow { tenant_id: part.tenant_id, label: period.label, span: period.span });
            let interval_id = self.id(IntervalId::new);
            self.writes.intervals.push(IntervalRow {
                tenant_id: part.tenant_id,
                interval_id,
                allocation_id: part.allocation_id,
                part_id: part.part_id,
                project_id: part.project_id,
                gpu_id: part.gpu_id,
                model: part.model.clone(),
                bytes: part.bytes,
                span,
                attested,
            });
        }
        Ok(())
    }

    /// Records that a part kept memory without being billed.
    pub fn leave_unbilled(&mut self, part: &PartRow, kind: UnbilledKind, span: Span) {
        if span.is_empty() {
            return;
        }
        let unbilled_span_id = self.id(UnbilledSpanId::new);
        self.writes.unbilled.push(UnbilledSpan {
            tenant_id: part.tenant_id,
            unbilled_span_id,
            allocation_id: part.allocation_id,
            part_id: part.part_id,
            gpu_id: part.gpu_id,
            kind,
            bytes: part.bytes,
            span,
        });
    }

    /// Journals a card's bytes as they are from now on.
    pub fn journal_occupancy(&mut self, gpu: GpuId) {
        let (Some(card), Some(seen)) = (self.state.cards.get_mut(&gpu), self.state.inventory.gpu(gpu)) else { return };
        let total = seen.granted();
        card.occupancy_sequence += 1;
        card.row.granted = total;
        self.writes.granted.insert(gpu, total);
        self.writes.occupancy.push(Occupancy {
            gpu_id: gpu,
            sequence: card.occupancy_sequence,
            at: self.state.time,
            held: card.held,
            granted: total.less(card.held),
            slack: Bytes::ZERO,
            free: card.row.allocatable.less(total),
        });
    }

    /// Journals what a card can give, and whether it is in service, from now on.
    pub fn journal_capacity(&mut self, gpu: GpuId, in_service: bool) {
        let Some(card) = self.state.cards.get_mut(&gpu) else { return };
        card.capacity_sequence += 1;
        card.in_service = in_service;
        self.writes.capacity.push(Capacity {
            gpu_id: gpu,
            sequence: card.capacity_sequence,
            at: self.state.time,
            allocatable: card.row.allocatable,
            in_service,
        });
    }

    /// Tells placement what became of a node's cards, and journals those that went out of or into service. Silence is
    /// not journalled here: the presence journal has it.
    pub fn refresh_service(&mut self, node: NodeId) -> Result<(), AppError> {
        let gpus: Vec<GpuId> =
            self.state.cards.values().filter(|c| c.row.node_id == node).map(|c| c.row.gpu_id).collect();
        for gpu in gpus {
            let Some(card) = self.state.cards.get(&gpu) else { continue };
            let service = self.state.service(card);
            let in_service = self.state.in_service(card);
            let changed = in_service != card.in_service;
            if self.state.inventory.gpu(gpu).is_none() {
                let gpu = gpu_of(card, service);
                self.state.inventory.upsert_gpu(gpu).map_err(super::loading::inconsistent)?;
            }
            self.state.inventory.set_service(gpu, service).map_err(super::loading::inconsistent)?;
            if changed {
                self.journal_capacity(gpu, in_service);
            }
            self.freed |= service == Service::InService;
        }
        Ok(())
    }
}

fn zone_missing(tenant: TenantId) -> AppError {
    AppError::Internal(format!("the zone of tenant {tenant} was not read"))
}

/// The scope under which a leader's transactions run: its batches touch whichever tenants they must.
pub(super) const fn scope() -> Scope {
    Scope::Operator
}
