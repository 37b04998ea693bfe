//! The balance of GPUs' hours, from the ledger's journals.

use crate::{
    App, Caller,
    error::{AppError, Imbalance},
};
use metering::balance::{CapacityStep, HourBalance, Journals, Kept, OccupancyStep, PresenceStep, balance};
use std::collections::BTreeMap;
use store::{Scope, Tx, gpu, interval, interval::UnbilledKind, node, part};
use types::{Clock, GpuId, Instant, NodeId, Role, Span};

/// The hours of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuHours {
    pub gpu_id: GpuId,
    pub hours: Vec<HourBalance>,
}

/// Everything about one GPU that its balance is made of.
#[derive(Debug, Default)]
struct Facts {
    capacity: Vec<CapacityStep>,
    presence: Vec<PresenceStep>,
    occupancy: Vec<OccupancyStep>,
    metered: Vec<Kept>,
    held: Vec<Kept>,
    unconfirmed: Vec<Kept>,
}

/// The longest span whose hours are balanced at once.
const LONGEST_MS: i64 = 400 * 86_400_000;
/// The same for a page of GPUs.
const LONGEST_OF_PAGE_MS: i64 = 2 * 86_400_000;

/// The hours of a GPU, or of every GPU, over a span.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants, [`AppError::NotFound`] for an unknown GPU, [`AppError::Invalid`] for a span over
/// 400 days.
pub async fn of(app: &App, caller: &Caller, only: Option<GpuId>, span: Span) -> Result<Vec<GpuHours>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    if span.millis() > LONGEST_MS {
        return Err(AppError::invalid("to", "must be at most 400 days after from"));
    }
    let mut tx = app.store.begin_snapshot("balance", Scope::Operator).await?;
    let gpus = match only {
        Some(gpu) if gpu::by_ids(&mut tx, &[gpu]).await?.is_empty() => return Err(AppError::NotFound("GPU")),
        Some(gpu) => vec![gpu],
        None => gpu::page(&mut tx, None, None, None, i64::MAX).await?.into_iter().map(|g| g.gpu_id).collect(),
    };
    of_gpus(&mut tx, &gpus, span, app.clock.now()).await
}

/// The hours of a page of GPUs over a span, in the order of their ids.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants, [`AppError::Invalid`] for a span over two days.
pub async fn page(
    app: &App,
    caller: &Caller,
    span: Span,
    after: Option<GpuId>,
    limit: i64,
) -> Result<Vec<GpuHours>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    if span.millis() > LONGEST_OF_PAGE_MS {
        return Err(AppError::invalid("to", "must be at most 2 days after from, unless gpu_id is given"));
    }
    let mut tx = app.store.begin_snapshot("balance.page", Scope::Operator).await?;
    let gpus: Vec<GpuId> =
        gpu::page(&mut tx, None, None, after, limit).await?.into_iter().map(|gpu| gpu.gpu_id).collect();
    of_gpus(&mut tx, &gpus, span, app.clock.now()).await
}

/// The whole hours, ended before `now`, that share time with the span. The transaction must see one instant's state.
pub(crate) async fn of_gpus(tx: &mut Tx, gpus: &[GpuId], span: Span, now: Instant) -> Result<Vec<GpuHours>, AppError> {
    let start = span.start().hour_start();
    let end = span.end().plus_millis(3_599_999).hour_start().min(now.hour_start());
    let whole = Span::clamped(start, end);
    if whole.is_empty() || gpus.is_empty() {
        return Ok(Vec::new());
    }
    let facts = facts(tx, gpus, whole, now).await?;
    Ok(facts
        .into_iter()
        .map(|(gpu_id, f)| {
            let journals = Journals {
                capacity: &f.capacity,
                presence: &f.presence,
                occupancy: &f.occupancy,
                metered: &f.metered,
                held: &f.held,
                unconfirmed: &f.unconfirmed,
            };
            GpuHours { gpu_id, hours: balance(whole, &journals) }
        })
        .collect())
}

async fn facts(tx: &mut Tx, gpus: &[GpuId], whole: Span, now: Instant) -> Result<BTreeMap<GpuId, Facts>, AppError> {
    let mut facts: BTreeMap<GpuId, Facts> = gpus.iter().map(|gpu| (*gpu, Facts::default())).collect();
    let rows = gpu::by_ids(tx, gpus).await?;
    let mut nodes: Vec<NodeId> = rows.iter().map(|gpu| gpu.node_id).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for step in node::presence_of(tx, &nodes).await? {
        for gpu in rows.iter().filter(|gpu| gpu.node_id == step.node_id) {
            if let Some(f) = facts.get_mut(&gpu.gpu_id) {
                f.presence.push(PresenceStep { at: step.at, present: step.present });
            }
        }
    }
    for step in gpu::capacity_of(tx, gpus).await? {
        if let Some(f) = facts.get_mut(&step.gpu_id) {
            f.capacity.push(CapacityStep { at: step.at, allocatable: step.allocatable, in_service: step.in_service });
        }
    }
    for step in gpu::occupancy_of(tx, gpus, whole).await? {
        if let Some(f) = facts.get_mut(&step.gpu_id) {
            f.occupancy.push(OccupancyStep {
                at: step.at,
                held: step.held,
                granted: step.granted,
                slack: step.slack,
                free: step.free,
            });
        }
    }
    for row in interval::on_gpus(tx, gpus, whole).await? {
        if let Some(f) = facts.get_mut(&row.gpu_id) {
            f.metered.push(Kept { bytes: row.bytes, span: row.span });
        }
    }
    for (gpu, kind, bytes, span) in interval::unbilled_on_gpus(tx, gpus, whole).await? {
        if let Some(f) = facts.get_mut(&gpu) {
            match kind {
                UnbilledKind::Held => f.held.push(Kept { bytes, span }),
                UnbilledKind::Unconfirmed => f.unconfirmed.push(Kept { bytes, span }),
            }
        }
    }
    // what is open now has no final span yet
    for row in part::open_on_gpus(tx, gpus, whole.end()).await? {
        let Some(f) = facts.get_mut(&row.gpu_id) else { continue };
        match (row.metered_to, row.unconfirmed_since) {
            (None, _) => f.held.push(Kept { bytes: row.bytes, span: Span::clamped(row.held_from, now) }),
            (Some(to), None) => f.metered.push(Kept { bytes: row.bytes, span: Span::clamped(to, now) }),
            (Some(to), Some(since)) => {
                f.metered.push(Kept { bytes: row.bytes, span: Span::clamped(to, since) });
                f.unconfirmed.push(Kept { bytes: row.bytes, span: Span::clamped(since, now) });
            }
        }
    }
    Ok(facts)
}

/// The hours of these GPUs over a span that do not balance. A GPU whose hours were all found to balance within five
/// seconds is not looked at again: where a month is closed, tenant after tenant asks for the same GPUs.
pub(crate) async fn imbalances_of(
    app: &App,
    tx: &mut Tx,
    gpus: &[GpuId],
    span: Span,
) -> Result<Vec<Imbalance>, AppError> {
    // a ledger whose clock is moved by hand may see months in five seconds
    let keeps = matches!(app.clock, Clock::System);
    let unknown: Vec<GpuId> =
        gpus.iter().copied().filter(|gpu| !keeps || app.balanced.get(&(*gpu, span)).is_none()).collect();
    let hours = of_gpus(tx, &unknown, span, app.clock.now()).await?;
    if keeps {
        for gpu in hours.iter().filter(|gpu| gpu.hours.iter().all(HourBalance::balances)) {
            app.balanced.put((gpu.gpu_id, span), ());
        }
    }
    Ok(imbalances(&hours))
}

/// The hours that do not balance.
#[must_use]
pub fn imbalances(hours: &[GpuHours]) -> Vec<Imbalance> {
    hours
        .iter()
        .flat_map(|gpu| gpu.hours.iter().map(move |hour| (gpu.gpu_id, hour)))
        .filter(|(_, hour)| !hour.balances())
        .map(|(gpu_id, hour)| Imbalance { gpu_id, hour: hour.hour, difference: hour.difference() })
        .collect()
}
