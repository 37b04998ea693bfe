//! Quotas as people see and set them. Admission locks the same rows through [`crate::quota_use`].

use crate::{
    error::StoreError,
    quota_use::{QuotaScope, QuotaUse},
    time::At,
    tx::Tx,
};
use quota::{Level, Limits, Use};
use types::{Bytes, Instant, ProjectId, TenantId};
use uuid::Uuid;

/// One level of a tenant's quota: its limits, and what is used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRow {
    pub scope: QuotaScope,
    pub quota: QuotaUse,
    pub updated_at: Instant,
}

fn scope_id(scope: &QuotaScope) -> Uuid {
    scope.project_id.map_or(scope.tenant_id.uuid(), ProjectId::uuid)
}

fn count(allocations: Option<u32>) -> Option<i32> {
    allocations.map(|n| i32::try_from(n).unwrap_or(i32::MAX))
}

/// The row of a new tenant or project, with nothing used.
///
/// # Errors
/// The rule `quota_key` when it exists.
pub async fn insert(tx: &mut Tx, scope: &QuotaScope, limits: &Limits, now: Instant) -> Result<(), StoreError> {
    let level = if scope.project_id.is_some() { Level::Project } else { Level::Tenant };
    sqlx::query!(
        "insert into quota (tenant_id, scope_id, level, limit_bytes, limit_workload_bytes, limit_allocations, updated_at)
         values ($1, $2, $3, $4, $5, $6, $7)",
        scope.tenant_id.uuid(),
        scope_id(scope),
        level.name(),
        limits.bytes.map(Bytes::as_i64),
        limits.workload_bytes.map(Bytes::as_i64),
        count(limits.allocations),
        At(now) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Sets the limits of one level; what is used stays as it is. False when there is no such level.
///
/// # Errors
/// The rule `quota_limits_are_not_negative`.
pub async fn set(tx: &mut Tx, scope: &QuotaScope, limits: &Limits, now: Instant) -> Result<bool, StoreError> {
    let done = sqlx::query!(
        "update quota set limit_bytes = $3, limit_workload_bytes = $4, limit_allocations = $5, updated_at = $6
          where tenant_id = $1 and scope_id = $2",
        scope.tenant_id.uuid(),
        scope_id(scope),
        limits.bytes.map(Bytes::as_i64),
        limits.workload_bytes.map(Bytes::as_i64),
        count(limits.allocations),
        At(now) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A page of a tenant's levels: the tenant itself first, then its projects in order of id. `after` is the project that
/// the page before ended with.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: TenantId,
    after: Option<ProjectId>,
    limit: i64,
) -> Result<Vec<QuotaRow>, StoreError> {
    let rows = sqlx::query!(
        "select scope_id, level, limit_bytes, limit_workload_bytes, limit_allocations, used_bytes, used_allocations, updated_at
           from quota where tenant_id = $1 and ($2::uuid is null or (level = 'project' and scope_id > $2))
          order by level = 'project', scope_id limit $3",
        tenant.uuid(),
        after.map(ProjectId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let corrupt = |column, found: i32| StoreError::corrupt("quota", column, found);
            let is_tenant = r.level == Level::Tenant.name();
            Ok(QuotaRow {
                scope: QuotaScope { tenant_id: tenant, project_id: (!is_tenant).then(|| r.scope_id.into()) },
                quota: QuotaUse {
                    level: if is_tenant { Level::Tenant } else { Level::Project },
                    limits: Limits {
                        bytes: r.limit_bytes.map(Bytes::from_i64),
                        workload_bytes: r.limit_workload_bytes.map(Bytes::from_i64),
                        allocations: r
                            .limit_allocations
                            .map(|n| u32::try_from(n).map_err(|_| corrupt("limit_allocations", n)))
                            .transpose()?,
                    },
                    used: Use {
                        bytes: Bytes::from_i64(r.used_bytes),
                        allocations: u32::try_from(r.used_allocations)
                            .map_err(|_| corrupt("used_allocations", r.used_allocations))?,
                    },
                },
                updated_at: r.updated_at.0,
            })
        })
        .collect()
}
