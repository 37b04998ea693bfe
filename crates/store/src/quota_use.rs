//! What tenants and projects use of their quotas, in the rows that admission locks.

use crate::{
    error::StoreError,
    time::At,
    tx::{Tx, waited},
};
use quota::{Level, Limits, Use};
use std::{collections::BTreeMap, time::Instant};
use types::{Bytes, ProjectId, TenantId};
use uuid::Uuid;

/// A level of a tenant's quota: the tenant itself, or one project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaScope {
    pub tenant_id: TenantId,
    /// Absent for the tenant itself.
    pub project_id: Option<ProjectId>,
}

impl QuotaScope {
    fn scope_id(&self) -> Uuid {
        self.project_id.map_or(self.tenant_id.uuid(), ProjectId::uuid)
    }
}

/// Limits and use of one level, locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    pub level: Level,
    pub limits: Limits,
    pub used: Use,
}

/// Locks the rows of all these levels, always in the same order, so that two batches never wait for each other in a
/// circle.
///
/// # Errors
/// [`StoreError::RowCount`] when a level has no row.
pub async fn lock(tx: &mut Tx, scopes: &[QuotaScope]) -> Result<BTreeMap<QuotaScope, QuotaUse>, StoreError> {
    if scopes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let tenants: Vec<Uuid> = scopes.iter().map(|s| s.tenant_id.uuid()).collect();
    let ids: Vec<Uuid> = scopes.iter().map(QuotaScope::scope_id).collect();
    let asked = Instant::now();
    let rows = sqlx::query!(
        "select tenant_id, scope_id, level, limit_bytes, limit_workload_bytes, limit_allocations, used_bytes, used_allocations
           from quota where (tenant_id, scope_id) in (select * from unnest($1::uuid[], $2::uuid[]))
          order by tenant_id, scope_id for update",
        &tenants,
        &ids
    )
    .fetch_all(tx.connection())
    .await?;
    waited("quota", asked);
    StoreError::expect_rows("quota rows", scopes.len(), rows.len() as u64)?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let is_tenant = r.level == "tenant";
            let scope =
                QuotaScope { tenant_id: r.tenant_id.into(), project_id: (!is_tenant).then(|| r.scope_id.into()) };
            let limits = Limits {
                bytes: r.limit_bytes.map(Bytes::from_i64),
                workload_bytes: r.limit_workload_bytes.map(Bytes::from_i64),
                allocations: r.limit_allocations.map(|n| u32::try_from(n).unwrap_or(0)),
            };
            let used = Use {
                bytes: Bytes::from_i64(r.used_bytes),
                allocations: u32::try_from(r.used_allocations).unwrap_or(0),
            };
            let level = if is_tenant { Level::Tenant } else { Level::Project };
            (scope, QuotaUse { level, limits, used })
        })
        .collect())
}

/// Writes what is used now at each of these levels.
///
/// # Errors
/// The rule `quota_use_is_not_negative`; [`StoreError::RowCount`] when a level has no row.
pub async fn set(tx: &mut Tx, rows: &[(QuotaScope, Use)], now: types::Instant) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = rows.iter().map(|r| r.0.tenant_id.uuid()).collect();
    let ids: Vec<Uuid> = rows.iter().map(|r| r.0.scope_id()).collect();
    let bytes: Vec<i64> = rows.iter().map(|r| r.1.bytes.as_i64()).collect();
    let allocations: Vec<i32> = rows.iter().map(|r| i32::try_from(r.1.allocations).unwrap_or(i32::MAX)).collect();
    let done = sqlx::query!(
        "update quota q set used_bytes = r.bytes, used_allocations = r.allocations, updated_at = $5
           from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::integer[]) as r (tenant_id, scope_id, bytes, allocations)
          where q.tenant_id = r.tenant_id and q.scope_id = r.scope_id",
        &tenants,
        &ids,
        &bytes,
        &allocations,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("quota use", rows.len(), done.rows_affected())
}
