//! `/v1/quotas`

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use ::quota::Level;
use app::{
    Caller,
    quota::{self, QuotaRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Bytes, BytesGiven, Instant, ProjectId, TenantId};
use uuid::Uuid;

/// What a tenant or project may hold at once. Absent is unlimited; 0 is nothing at all.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes at once, over all workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BytesGiven>)]
    bytes: Option<Bytes>,
    /// Bytes of one workload, over all of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BytesGiven>)]
    workload_bytes: Option<Bytes>,
    /// Allocations at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_147_483_647)]
    allocations: Option<u32>,
}

impl From<Limits> for ::quota::Limits {
    fn from(limits: Limits) -> Self {
        Self { bytes: limits.bytes, workload_bytes: limits.workload_bytes, allocations: limits.allocations }
    }
}

/// One level of a tenant's quota, and what it holds now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Quota {
    tenant_id: TenantId,
    /// Absent for the tenant's own level.
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<ProjectId>,
    level: Level,
    limits: Limits,
    /// Bytes held and active, over all GPUs.
    used_bytes: Bytes,
    /// Allocations held and active.
    used_allocations: u32,
    /// When limits or use last changed.
    updated_at: Instant,
}

impl From<QuotaRow> for Quota {
    fn from(row: QuotaRow) -> Self {
        let limits = row.quota.limits;
        Self {
            tenant_id: row.scope.tenant_id,
            project_id: row.scope.project_id,
            level: row.quota.level,
            limits: Limits {
                bytes: limits.bytes,
                workload_bytes: limits.workload_bytes,
                allocations: limits.allocations,
            },
            used_bytes: row.quota.used.bytes,
            used_allocations: row.quota.used.allocations,
            updated_at: row.updated_at,
        }
    }
}

/// All limits of a tenant.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantQuota {
    tenant_id: TenantId,
    limits: Limits,
}

/// Which project.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ProjectPath {
    project_id: ProjectId,
}

/// List a tenant's quotas
///
/// The tenant's own level first, then its projects.
#[utoipa::path(
    get, path = "/v1/quotas", tag = "quotas", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<Quota>), ReadErrors)
)]
pub(crate) async fn list_quotas(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<Quota>>, Problem> {
    // the nil id stands for the tenant's level, which comes before every project
    let after = paging.cursor.map(Cursor::id);
    let rows = quota::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    let id = |row: &QuotaRow| row.scope.project_id.map_or(Uuid::nil(), ProjectId::uuid);
    Ok(Json(Page::from_rows(rows, paging.limit, id)))
}

/// Set a tenant's quota
///
/// All limits at once; an absent one is lifted. A limit below what is in use takes nothing away.
#[utoipa::path(
    put, path = "/v1/quotas/tenant", tag = "quotas", security(("bearer" = [])),
    responses((status = 204), WriteErrors)
)]
pub(crate) async fn set_tenant_quota(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<TenantQuota>,
) -> Result<StatusCode, Problem> {
    quota::set_tenant(&state.app, &caller, new.tenant_id, new.limits.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set a project's quota
///
/// All limits at once; an absent one is lifted.
#[utoipa::path(
    put, path = "/v1/projects/{project_id}/quota", tag = "quotas", security(("bearer" = [])),
    params(ProjectPath),
    responses((status = 204), WriteErrors)
)]
pub(crate) async fn set_project_quota(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<ProjectPath>,
    Json(limits): Json<Limits>,
) -> Result<StatusCode, Problem> {
    quota::set_project(&state.app, &caller, path.project_id, limits.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}
