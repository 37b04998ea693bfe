//! `/v1/projects`

use crate::{
    extract::{Json, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    project::{self, ProjectRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, Name, ProjectId, TenantId};

/// A subdivision of a tenant.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Project {
    tenant_id: TenantId,
    project_id: ProjectId,
    name: Name,
    created_at: Instant,
}

impl From<ProjectRow> for Project {
    fn from(row: ProjectRow) -> Self {
        Self { tenant_id: row.tenant_id, project_id: row.project_id, name: row.name, created_at: row.created_at }
    }
}

/// What a project is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    /// Whose; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    name: Name,
}

/// Make a project
///
/// With an unlimited quota of its own.
#[utoipa::path(
    post, path = "/v1/projects", tag = "projects", security(("bearer" = [])),
    responses((status = 201, body = Project), WriteErrors)
)]
pub(crate) async fn create_project(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewProject>,
) -> Result<(StatusCode, Json<Project>), Problem> {
    let row = project::create(&state.app, &caller, new.tenant_id, new.name).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// List a tenant's projects
#[utoipa::path(
    get, path = "/v1/projects", tag = "projects", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<Project>), ReadErrors)
)]
pub(crate) async fn list_projects(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<Project>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = project::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.project_id.uuid())))
}
