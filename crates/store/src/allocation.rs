//! Allocations as they stand.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{AllocationId, AllocationState, Bytes, Cause, Instant, NodeId, PoolId, ProjectId, Request, TenantId};
use uuid::Uuid;

/// An allocation as it stands.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllocationRow {
    pub tenant_id: TenantId,
    pub allocation_id: AllocationId,
    pub project_id: ProjectId,
    pub pool_id: PoolId,
    pub state: AllocationState,
    pub request: Request,
    pub requested_by: String,
    pub requested_at: Instant,
    /// Order of arrival in its pool.
    pub queue_number: i64,
    /// Why it waits; absent unless queued.
    pub queue_reasons: Option<serde_json::Value>,
    pub hold_until: Option<Instant>,
    pub active_since: Option<Instant>,
    pub ends_by: Option<Instant>,
    /// The last renewal, or report of its node that saw it living.
    pub last_sign: Option<Instant>,
    pub unconfirmed_since: Option<Instant>,
    /// When it is lost unless its silent node comes back; present exactly while it is unconfirmed.
    pub lost_by: Option<Instant>,
    pub ended_at: Option<Instant>,
    pub cause: Cause,
}

struct Raw {
    tenant_id: Uuid,
    allocation_id: Uuid,
    project_id: Uuid,
    pool_id: Uuid,
    state: String,
    memory: i64,
    gpus: i32,
    model: Option<String>,
    on_node: Option<Uuid>,
    max_duration_s: Option<i32>,
    requested_by: String,
    requested_at: At,
    queue_number: i64,
    queue_reasons: Option<serde_json::Value>,
    hold_until: Option<At>,
    active_since: Option<At>,
    ends_by: Option<At>,
    last_sign: Option<At>,
    unconfirmed_since: Option<At>,
    lost_by: Option<At>,
    ended_at: Option<At>,
    cause: String,
}

impl Raw {
    fn parse(self) -> Result<AllocationRow, StoreError> {
        let state = AllocationState::from_name(&self.state)
            .ok_or_else(|| StoreError::corrupt("allocation", "state", &self.state))?;
        let cause =
            Cause::from_name(&self.cause).ok_or_else(|| StoreError::corrupt("allocation", "cause", &self.cause))?;
        let model =
            self.model.map(|m| m.parse().map_err(|_| StoreError::corrupt("allocation", "model", &m))).transpose()?;
        Ok(AllocationRow {
            tenant_id: self.tenant_id.into(),
            allocation_id: self.allocation_id.into(),
            project_id: self.project_id.into(),
            pool_id: self.pool_id.into(),
            state,
            request: Request {
                memory: Bytes::from_i64(self.memory),
                gpus: u32::try_from(self.gpus).unwrap_or(0),
                model,
                node_id: self.on_node.map(NodeId::from),
                max_duration_s: self.max_duration_s.and_then(|s| u32::try_from(s).ok()),
            },
            requested_by: self.requested_by,
            requested_at: self.requested_at.0,
            queue_number: self.queue_number,
            queue_reasons: self.queue_reasons,
            hold_until: self.hold_until.map(|t| t.0),
            active_since: self.active_since.map(|t| t.0),
            ends_by: self.ends_by.map(|t| t.0),
            last_sign: self.last_sign.map(|t| t.0),
            unconfirmed_since: self.unconfirmed_since.map(|t| t.0),
            lost_by: self.lost_by.map(|t| t.0),
            ended_at: self.ended_at.map(|t| t.0),
            cause,
        })
    }
}

/// New allocations.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[AllocationRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let column = Columns::of(rows);
    let project: Vec<Uuid> = rows.iter().map(|r| r.project_id.uuid()).collect();
    let pool: Vec<Uuid> = rows.iter().map(|r| r.pool_id.uuid()).collect();
    let memory: Vec<i64> = rows.iter().map(|r| r.request.memory.as_i64()).collect();
    let gpus: Vec<i32> = rows.iter().map(|r| i32::try_from(r.request.gpus).unwrap_or(i32::MAX)).collect();
    let model: Vec<Option<String>> =
        rows.iter().map(|r| r.request.model.as_ref().map(|m| m.as_str().to_owned())).collect();
    let node: Vec<Option<Uuid>> = rows.iter().map(|r| r.request.node_id.map(NodeId::uuid)).collect();
    let longest: Vec<Option<i32>> =
        rows.iter().map(|r| r.request.max_duration_s.and_then(|s| i32::try_from(s).ok())).collect();
    let by: Vec<String> = rows.iter().map(|r| r.requested_by.clone()).collect();
    let at: Vec<At> = rows.iter().map(|r| At(r.requested_at)).collect();
    let number: Vec<i64> = rows.iter().map(|r| r.queue_number).collect();
    let done = sqlx::query!(
        "insert into allocation (tenant_id, allocation_id, state, queue_reasons, hold_until, active_since, ends_by, last_sign,
            unconfirmed_since, lost_by, ended_at, cause, project_id, pool_id, memory, gpus, model, on_node, max_duration_s,
            requested_by, requested_at, queue_number)
         select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::timestamptz[], $6::timestamptz[],
            $7::timestamptz[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::text[],
            $13::uuid[], $14::uuid[], $15::bigint[], $16::integer[], $17::text[], $18::uuid[], $19::integer[], $20::text[],
            $21::timestamptz[], $22::bigint[])",
        &column.tenant,
        &column.id,
        &column.state,
        &column.reasons as &[Option<serde_json::Value>],
        &column.hold_until as _,
        &column.active_since as _,
        &column.ends_by as _,
        &column.last_sign as _,
        &column.unconfirmed_since as _,
        &column.lost_by as _,
        &column.ended_at as _,
        &column.cause,
        &project,
        &pool,
        &memory,
        &gpus,
        &model as &[Option<String>],
        &node as &[Option<Uuid>],
        &longest as &[Option<i32>],
        &by,
        &at as _,
        &number
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("allocations", rows.len(), done.rows_affected())
}

/// The changed state of allocations that had not ended.
///
/// # Errors
/// [`StoreError::RowCount`] when one of them had ended, or is missing.
pub async fn update(tx: &mut Tx, rows: &[AllocationRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let column = Columns::of(rows);
    let done = sqlx::query!(
        "update allocation a set state = r.state, queue_reasons = r.reasons, hold_until = r.hold_until,
            active_since = r.active_since, ends_by = r.ends_by, last_sign = r.last_sign,
            unconfirmed_since = r.unconfirmed_since, lost_by = r.lost_by, ended_at = r.ended_at, cause = r.cause
           from unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::timestamptz[], $6::timestamptz[],
                $7::timestamptz[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::text[])
             as r (tenant_id, allocation_id, state, reasons, hold_until, active_since, ends_by, last_sign,
                unconfirmed_since, lost_by, ended_at, cause)
          where a.tenant_id = r.tenant_id and a.allocation_id = r.allocation_id and a.ended_at is null",
        &column.tenant,
        &column.id,
        &column.state,
        &column.reasons as &[Option<serde_json::Value>],
        &column.hold_until as _,
        &column.active_since as _,
        &column.ends_by as _,
        &column.last_sign as _,
        &column.unconfirmed_since as _,
        &column.lost_by as _,
        &column.ended_at as _,
        &column.cause
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("open allocations", rows.len(), done.rows_affected())
}

/// The columns that change, one array each.
struct Columns {
    tenant: Vec<Uuid>,
    id: Vec<Uuid>,
    state: Vec<String>,
    reasons: Vec<Option<serde_json::Value>>,
    hold_until: Vec<Option<At>>,
    active_since: Vec<Option<At>>,
    ends_by: Vec<Option<At>>,
    last_sign: Vec<Option<At>>,
    unconfirmed_since: Vec<Option<At>>,
    lost_by: Vec<Option<At>>,
    ended_at: Vec<Option<At>>,
    cause: Vec<String>,
}

impl Columns {
    fn of(rows: &[AllocationRow]) -> Self {
        let time = |get: fn(&AllocationRow) -> Option<Instant>| rows.iter().map(|r| get(r).map(At)).collect();
        Self {
            tenant: rows.iter().map(|r| r.tenant_id.uuid()).collect(),
            id: rows.iter().map(|r| r.allocation_id.uuid()).collect(),
            state: rows.iter().map(|r| r.state.name().to_owned()).collect(),
            reasons: rows.iter().map(|r| r.queue_reasons.clone()).collect(),
            hold_until: time(|r| r.hold_until),
            active_since: time(|r| r.active_since),
            ends_by: time(|r| r.ends_by),
            last_sign: time(|r| r.last_sign),
            unconfirmed_since: time(|r| r.unconfirmed_since),
            lost_by: time(|r| r.lost_by),
            ended_at: time(|r| r.ended_at),
            cause: rows.iter().map(|r| r.cause.name().to_owned()).collect(),
        }
    }
}

/// Adds the time in which nobody led the pool to every deadline of its open allocations.
///
/// # Errors
/// What the database says.
pub async fn put_off_deadlines(tx: &mut Tx, pool: PoolId, millis: i64) -> Result<(), StoreError> {
    sqlx::query!(
        "update allocation set hold_until = hold_until + make_interval(secs => $2::bigint / 1000.0),
            ends_by = ends_by + make_interval(secs => $2::bigint / 1000.0),
            lost_by = lost_by + make_interval(secs => $2::bigint / 1000.0)
          where pool_id = $1 and ended_at is null and (hold_until, ends_by, lost_by) is distinct from (null, null, null)",
        pool.uuid(),
        millis
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Keeps the last sign of life of open allocations.
///
/// # Errors
/// What the database says.
pub async fn set_last_sign(tx: &mut Tx, rows: &[(TenantId, AllocationId, Instant)]) -> Result<(), StoreError> {
    let tenants: Vec<Uuid> = rows.iter().map(|r| r.0.uuid()).collect();
    let ids: Vec<Uuid> = rows.iter().map(|r| r.1.uuid()).collect();
    let signs: Vec<At> = rows.iter().map(|r| At(r.2)).collect();
    let done = sqlx::query!(
        "update allocation a set last_sign = r.sign
           from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as r (tenant_id, allocation_id, sign)
          where a.tenant_id = r.tenant_id and a.allocation_id = r.allocation_id and a.ended_at is null",
        &tenants,
        &ids,
        &signs as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("signs of life", rows.len(), done.rows_affected())
}

/// One allocation of the transaction's tenants.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, allocation: AllocationId) -> Result<Option<AllocationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, allocation_id, project_id, pool_id, state, memory, gpus, model, on_node, max_duration_s, requested_by,
            requested_at, queue_number, queue_reasons, hold_until, active_since, ends_by, last_sign, unconfirmed_since,
            lost_by, ended_at, cause
           from allocation where allocation_id = $1",
        allocation.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// Which allocations a page shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub tenant_id: Option<TenantId>,
    pub project_id: Option<ProjectId>,
    pub state: Option<AllocationState>,
    pub open_only: bool,
}

/// A page of allocations, newest first; `before` is the last id of the page before.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    filter: &Filter,
    before: Option<AllocationId>,
    limit: i64,
) -> Result<Vec<AllocationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, allocation_id, project_id, pool_id, state, memory, gpus, model, on_node, max_duration_s, requested_by,
            requested_at, queue_number, queue_reasons, hold_until, active_since, ends_by, last_sign, unconfirmed_since,
            lost_by, ended_at, cause
           from allocation
          where ($1::uuid is null or tenant_id = $1) and ($2::uuid is null or project_id = $2)
            and ($3::text is null or state = $3) and (not $4 or ended_at is null)
            and ($5::uuid is null or allocation_id < $5)
          order by allocation_id desc limit $6",
        filter.tenant_id.map(TenantId::uuid),
        filter.project_id.map(ProjectId::uuid),
        filter.state.map(AllocationState::name),
        filter.open_only,
        before.map(AllocationId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Every allocation of a pool that has not ended, for the scheduler.
///
/// # Errors
/// What the database says.
pub async fn open_of_pool(tx: &mut Tx, pool: PoolId) -> Result<Vec<AllocationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, allocation_id, project_id, pool_id, state, memory, gpus, model, on_node, max_duration_s, requested_by,
            requested_at, queue_number, queue_reasons, hold_until, active_since, ends_by, last_sign, unconfirmed_since,
            lost_by, ended_at, cause
           from allocation where pool_id = $1 and ended_at is null order by queue_number",
        pool.uuid()
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// The highest order of arrival that was given out in a pool.
///
/// # Errors
/// What the database says.
pub async fn last_queue_number(tx: &mut Tx, pool: PoolId) -> Result<i64, StoreError> {
    let last = sqlx::query_scalar!("select max(queue_number) from allocation where pool_id = $1", pool.uuid())
        .fetch_one(tx.connection())
        .await?;
    Ok(last.unwrap_or(0))
}

/// How many requests wait in front of this one in its pool.
///
/// # Errors
/// What the database says.
pub async fn ahead_in_queue(tx: &mut Tx, pool: PoolId, queue_number: i64) -> Result<i64, StoreError> {
    let count = sqlx::query_scalar!(
        "select count(*) from allocation where pool_id = $1 and ended_at is null and state = 'queued' and queue_number < $2",
        pool.uuid(),
        queue_number
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(count.unwrap_or(0))
}
