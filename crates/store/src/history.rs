//! What happened to allocations: one row for each change, with its cause.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{AllocationId, AllocationState, Cause, HistoryId, Instant, TenantId};
use uuid::Uuid;

/// One change in the life of an allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRow {
    pub tenant_id: TenantId,
    pub history_id: HistoryId,
    pub allocation_id: AllocationId,
    pub at: Instant,
    pub from_state: Option<AllocationState>,
    pub to_state: AllocationState,
    pub cause: Cause,
    /// Who caused it, as `app::Actor` names itself.
    pub actor: String,
    pub detail: serde_json::Value,
}

/// Appends changes.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[HistoryRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.history_id.uuid()).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.allocation_id.uuid()).collect();
    let at: Vec<At> = rows.iter().map(|r| At(r.at)).collect();
    let from: Vec<Option<String>> = rows.iter().map(|r| r.from_state.map(|s| s.name().to_owned())).collect();
    let to: Vec<String> = rows.iter().map(|r| r.to_state.name().to_owned()).collect();
    let cause: Vec<String> = rows.iter().map(|r| r.cause.name().to_owned()).collect();
    let actor: Vec<String> = rows.iter().map(|r| r.actor.clone()).collect();
    let detail: Vec<serde_json::Value> = rows.iter().map(|r| r.detail.clone()).collect();
    let done = sqlx::query!(
        "insert into history (tenant_id, history_id, allocation_id, at, from_state, to_state, cause, actor, detail)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::text[], $6::text[], $7::text[],
            $8::text[], $9::jsonb[])",
        &tenant,
        &id,
        &allocation,
        &at as _,
        &from as &[Option<String>],
        &to,
        &cause,
        &actor,
        &detail
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("history", rows.len(), done.rows_affected())
}

/// The changes of one allocation, in order.
///
/// # Errors
/// What the database says.
pub async fn of_allocation(
    tx: &mut Tx,
    tenant: TenantId,
    allocation: AllocationId,
) -> Result<Vec<HistoryRow>, StoreError> {
    let rows = sqlx::query!(
        "select history_id, at, from_state, to_state, cause, actor, detail from history
          where tenant_id = $1 and allocation_id = $2 order by at, history_id",
        tenant.uuid(),
        allocation.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    let state =
        |name: &str| AllocationState::from_name(name).ok_or_else(|| StoreError::corrupt("history", "to_state", name));
    rows.into_iter()
        .map(|r| {
            Ok(HistoryRow {
                tenant_id: tenant,
                history_id: r.history_id.into(),
                allocation_id: allocation,
                at: r.at.0,
                from_state: r.from_state.as_deref().map(state).transpose()?,
                to_state: state(&r.to_state)?,
                cause: Cause::from_name(&r.cause).ok_or_else(|| StoreError::corrupt("history", "cause", &r.cause))?,
                actor: r.actor,
                detail: r.detail,
            })
        })
        .collect()
}
