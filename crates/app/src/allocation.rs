//! Allocations: asking for memory, looking at it, and giving it back.

use crate::{
    App, Caller,
    error::AppError,
    principal::Principal,
    scheduler::{Answer, Command, DryRun, NewRequest},
};
use placement::NoRoom;
use quota::Violation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};
use store::{Scope, gpu, history, interval, part, part::PartRow};
use types::{AllocationId, AllocationState, GpuUuid, PoolId, ProjectId, Request, Role, TenantId};

pub use store::{
    allocation::{AllocationRow, Filter},
    history::HistoryRow,
    interval::IntervalRow,
};

/// Who may ask for memory and give it back.
const MAY_USE: [Role; 3] = [Role::Operator, Role::TenantAdmin, Role::Member];

/// An allocation as it stands, with its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllocationView {
    pub row: AllocationRow,
    pub parts: Vec<PartView>,
    /// How many requests wait in front of it; absent unless it is queued.
    pub ahead: Option<usize>,
    /// Its pool's `silence_grace_s`: an active one whose node does not see its workload is renewed more often than that.
    pub renew_within_s: u32,
}

/// Why an allocation waits in the queue, as the scheduler last saw it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum WaitsFor {
    /// Limits of its tenant or project.
    Quota { quota: Vec<Violation> },
    /// A GPU with room.
    Room(NoRoom),
}

impl AllocationView {
    /// Why it waits; absent unless it is queued.
    #[must_use]
    pub fn waits_for(&self) -> Option<WaitsFor> {
        // written anew at each look at the queue, so that a form unknown to this version does not last
        self.row.queue_reasons.as_ref().and_then(|reasons| WaitsFor::deserialize(reasons).ok())
    }
}

/// A part with its card's own name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    pub row: PartRow,
    pub gpu_uuid: GpuUuid,
}

/// What is asked, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Needed from the platform alone.
    pub tenant_id: Option<TenantId>,
    /// The tenant's project `default` where absent.
    pub project_id: Option<ProjectId>,
    /// May be absent while there is only one pool.
    pub pool_id: Option<PoolId>,
    pub request: Request,
}

/// Asks for memory under a key. A repeat with the same key gets the allocation as it stands (`false`), or the stored
/// refusal.
///
/// # Errors
/// [`AppError::Refused`] with every reason, [`AppError::Invalid`], [`AppError::NotFound`] for a foreign or unknown project,
/// [`AppError::KeyReused`], [`AppError::Unavailable`] when it cannot be decided: then nothing was stored.
pub async fn request(app: &App, caller: &Caller, ask: Ask, key: &str) -> Result<(AllocationView, bool), AppError> {
    if key.is_empty() || key.len() > 200 || key.chars().any(char::is_control) {
        return Err(AppError::invalid("Idempotency-Key", "must be 1 to 200 bytes without control characters"));
    }
    let (pool, mut new) = resolve(app, caller, ask).await?;
    let asked = serde_json::json!([new.project_id, pool, new.request]);
    new.key = Some((key.to_owned(), Sha256::digest(asked.to_string()).into()));
    let answer = app.ask(pool, Command::Request(Box::new(new))).await?;
    shown(app, caller, answer).await
}

/// What a request would get now. Holds nothing and stores nothing.
///
/// # Errors
/// As [`request`], but a refusal is an answer here.
pub async fn dry_run(app: &App, caller: &Caller, ask: Ask) -> Result<DryRun, AppError> {
    let (pool, new) = resolve(app, caller, ask).await?;
    match app.ask(pool, Command::Request(Box::new(new))).await? {
        Answer::DryRun(outcome) => Ok(outcome),
        other => Err(unexpected(&other)),
    }
}

/// Whose project and which pool a request names.
pub(crate) type Asked = (TenantId, Option<ProjectId>, Option<PoolId>);
/// What is meant by it.
pub(crate) type Resolved = (ProjectId, PoolId);

/// Finds project and pool, which must be the tenant's and exist.
async fn resolve(app: &App, caller: &Caller, ask: Ask) -> Result<(PoolId, NewRequest), AppError> {
    caller.require(&MAY_USE)?;
    let tenant_id = caller.tenant(ask.tenant_id)?;
    let asked = (tenant_id, ask.project_id, ask.pool_id);
    // projects and pools stay for ever once they are there
    let (project_id, pool_id) = match app.resolved.get(&asked) {
        Some(known) => known,
        None => {
            let found = look_up(app, asked).await?;
            app.resolved.put(asked, found);
            found
        }
    };
    let new = NewRequest { tenant_id, project_id, actor: caller.actor(), request: ask.request, key: None };
    Ok((pool_id, new))
}

async fn look_up(app: &App, (tenant_id, project_id, pool_id): Asked) -> Result<Resolved, AppError> {
    let mut tx = app.store.begin("allocation.resolve", Scope::Tenant(tenant_id)).await?;
    let project_id = match project_id {
        Some(id) => {
            let known = store::project::get(&mut tx, tenant_id, id).await?;
            known.ok_or(AppError::NotFound("project"))?.project_id
        }
        None => {
            let first = store::project::by_name(&mut tx, tenant_id, &crate::project::default_name()).await?;
            first
                .ok_or_else(|| AppError::invalid("project_id", "is needed: the tenant has no project named default"))?
                .project_id
        }
    };
    let pool_id = match pool_id {
        Some(id) => store::pool::get(&mut tx, id).await?.ok_or(AppError::NotFound("pool"))?.pool_id,
        None => match store::pool::page(&mut tx, None, 2).await?.as_slice() {
            [only] => only.pool_id,
            [] => return Err(AppError::invalid("pool_id", "there is no pool yet")),
            _ => return Err(AppError::invalid("pool_id", "is needed: there are several pools")),
        },
    };
    Ok((project_id, pool_id))
}

/// An allocation with its parts.
///
/// # Errors
/// [`AppError::NotFound`], also for somebody else's.
pub async fn get(app: &App, caller: &Caller, id: AllocationId) -> Result<AllocationView, AppError> {
    let scope = match &caller.principal {
        Principal::Node { .. } => Scope::Operator,
        _ => caller.scope()?,
    };
    let mut tx = app.store.begin("allocation.get", scope).await?;
    let row = store::allocation::get(&mut tx, id).await?.ok_or(AppError::NotFound("allocation"))?;
    let mut views = with_parts(&mut tx, vec![row]).await?;
    let mut view = views.pop().ok_or(AppError::NotFound("allocation"))?;
    if let Principal::Node { node, .. } = &caller.principal
        && view.parts.iter().all(|part| part.row.node_id != *node)
    {
        return Err(AppError::NotFound("allocation"));
    }
    if view.row.state == AllocationState::Queued {
        let ahead = store::allocation::ahead_in_queue(&mut tx, view.row.pool_id, view.row.queue_number).await?;
        // a tenant sees only its own rows, so the count of all that wait needs the operator's eyes
        view.ahead = match caller.principal {
            Principal::Tenant { .. } => Some(count_ahead(app, &view.row).await?),
            _ => usize::try_from(ahead).ok(),
        };
    }
    Ok(view)
}

async fn count_ahead(app: &App, row: &AllocationRow) -> Result<usize, AppError> {
    let mut tx = app.store.begin("allocation.ahead", Scope::Operator).await?;
    let ahead = store::allocation::ahead_in_queue(&mut tx, row.pool_id, row.queue_number).await?;
    Ok(usize::try_from(ahead).unwrap_or(0))
}

/// Waits until a queued allocation is no longer queued, at most for `longest`.
///
/// # Errors
/// As [`get`].
pub async fn wait(app: &App, caller: &Caller, id: AllocationId, longest: Duration) -> Result<AllocationView, AppError> {
    let deadline = tokio::time::Instant::now() + longest;
    let mut changes = app.schedulers.changes();
    loop {
        let view = get(app, caller, id).await?;
        if view.row.state != AllocationState::Queued || tokio::time::Instant::now() >= deadline {
            return Ok(view);
        }
        // another server may lead the pool, and its changes are not heard here: so look again each second
        let look_again = deadline.min(tokio::time::Instant::now() + Duration::from_secs(1));
        let changed = async { while changes.recv().await.is_ok_and(|changed| changed != id) {} };
        let _ = tokio::time::timeout_at(look_again, changed).await;
    }
}

/// A page of allocations, newest first.
///
/// # Errors
/// [`AppError::NotFound`] for another tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    mut filter: Filter,
    before: Option<AllocationId>,
    limit: i64,
) -> Result<Vec<AllocationView>, AppError> {
    caller.require(&Role::ALL)?;
    filter.tenant_id = caller.tenant_or_platform(filter.tenant_id)?;
    let mut tx = app.store.begin("allocation.list", crate::caller::scope_of(filter.tenant_id)).await?;
    let rows = store::allocation::page(&mut tx, &filter, before, limit).await?;
    with_parts(&mut tx, rows).await
}

async fn with_parts(tx: &mut store::Tx, rows: Vec<AllocationRow>) -> Result<Vec<AllocationView>, AppError> {
    let ids: Vec<AllocationId> = rows.iter().map(|row| row.allocation_id).collect();
    let parts = part::of_allocations(tx, &ids).await?;
    let mut gpus: Vec<_> = parts.iter().map(|part| part.gpu_id).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let gpus = gpu::by_ids(tx, &gpus).await?;
    let mut graces: BTreeMap<PoolId, u32> = BTreeMap::new();
    for id in rows.iter().map(|row| row.pool_id) {
        if let Entry::Vacant(unknown) = graces.entry(id) {
            let pool = store::pool::get(tx, id).await?.ok_or(AppError::NotFound("pool"))?;
            unknown.insert(pool.graces.silence_grace_s);
        }
    }
    let mut views: Vec<AllocationView> = rows
        .into_iter()
        .map(|row| {
            let renew_within_s = graces.get(&row.pool_id).copied().unwrap_or(0);
            AllocationView { row, parts: Vec::new(), ahead: None, renew_within_s }
        })
        .collect();
    for row in parts {
        let Ok(gpu) = gpus.binary_search_by_key(&row.gpu_id, |gpu| gpu.gpu_id) else { continue };
        let gpu_uuid = gpus[gpu].uuid.clone();
        if let Some(view) = views.iter_mut().find(|view| view.row.allocation_id == row.allocation_id) {
            view.parts.push(PartView { row, gpu_uuid });
        }
    }
    Ok(views)
}

/// What happened to an allocation, and its final intervals.
///
/// # Errors
/// As [`get`].
pub async fn history(
    app: &App,
    caller: &Caller,
    id: AllocationId,
) -> Result<(Vec<HistoryRow>, Vec<IntervalRow>), AppError> {
    let view = get(app, caller, id).await?;
    let mut tx = app.store.begin("allocation.history", Scope::Tenant(view.row.tenant_id)).await?;
    let changes = history::of_allocation(&mut tx, view.row.tenant_id, id).await?;
    let intervals = interval::of_allocation(&mut tx, view.row.tenant_id, id).await?;
    Ok((changes, intervals))
}

/// The workload starts: metering begins. The first confirmation wins, a repeat shows it again.
///
/// # Errors
/// [`AppError::NotFound`], [`AppError::Conflict`] when it is not held.
pub async fn confirm(app: &App, caller: &Caller, id: AllocationId) -> Result<AllocationView, AppError> {
    let view = change(app, caller, id, Command::Confirm).await?;
    if view.row.state == AllocationState::Active {
        return Ok(view);
    }
    Err(AppError::conflict("not_held", format!("the allocation is {}, not held", view.row.state)))
}

/// The workload lives. Must come more often than the pool's `silence_grace_s`, unless its node sees the workload.
///
/// # Errors
/// [`AppError::NotFound`], [`AppError::Conflict`] when it is not active.
pub async fn renew(app: &App, caller: &Caller, id: AllocationId) -> Result<AllocationView, AppError> {
    let view = change(app, caller, id, Command::Renew).await?;
    if view.row.state == AllocationState::Active {
        return Ok(view);
    }
    Err(AppError::conflict("not_active", format!("the allocation is {}, not active", view.row.state)))
}

/// The workload ended; a held or queued allocation is withdrawn. A repeat shows it again.
///
/// # Errors
/// [`AppError::NotFound`].
pub async fn release(app: &App, caller: &Caller, id: AllocationId) -> Result<AllocationView, AppError> {
    change(app, caller, id, Command::Release).await
}

/// The request is withdrawn before its workload started. A repeat shows it again.
///
/// # Errors
/// [`AppError::NotFound`], [`AppError::Conflict`] when it is active: release it instead.
pub async fn cancel(app: &App, caller: &Caller, id: AllocationId) -> Result<AllocationView, AppError> {
    change(app, caller, id, Command::Cancel).await
}

async fn change(
    app: &App,
    caller: &Caller,
    id: AllocationId,
    command: fn(AllocationId, Principal) -> Command,
) -> Result<AllocationView, AppError> {
    if !matches!(caller.principal, Principal::Node { .. }) {
        caller.require(&MAY_USE)?;
    }
    let command = || command(id, caller.principal.clone());
    let mut away = None;
    // the leader of the only pool has all that is open in memory; elsewhere the row says which pool it is
    if let [only] = app.schedulers.pools()[..]
        && app.schedulers.leads(only)
    {
        match app.ask(only, command()).await {
            Ok(Answer::Stored(_)) => {}
            Err(error @ AppError::Unavailable(_)) => away = Some(error),
            answer => return shown(app, caller, answer?).await.map(|(view, _)| view),
        }
    }
    // what has ended is shown also while nobody leads
    let view = get(app, caller, id).await?;
    if view.row.state.is_final() {
        return Ok(view);
    }
    if let Some(error) = away {
        return Err(error);
    }
    let answer = app.ask(view.row.pool_id, command()).await?;
    shown(app, caller, answer).await.map(|(view, _)| view)
}

async fn shown(app: &App, caller: &Caller, answer: Answer) -> Result<(AllocationView, bool), AppError> {
    match answer {
        Answer::Allocation(view, made) => Ok((*view, made)),
        Answer::Stored(id) => Ok((get(app, caller, id).await?, false)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> AppError {
    AppError::Internal(format!("the scheduler answered {answer:?}"))
}
