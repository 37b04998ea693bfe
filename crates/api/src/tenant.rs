//! `/v1/tenants`. The handlers of every other noun look like these.

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Page, Paging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    tenant::{self, TenantRow},
};
use axum::{extract::State, http::StatusCode};
use billing::Zone;
use serde::{Deserialize, Serialize};
use types::{Currency, Instant, Name, TenantId};

/// Who is billed.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Tenant {
    tenant_id: TenantId,
    name: Name,
    /// Decides where its billing months begin.
    zone: Zone,
    /// Of its plans and invoices.
    currency: Currency,
    created_at: Instant,
}

impl From<TenantRow> for Tenant {
    fn from(row: TenantRow) -> Self {
        Self {
            tenant_id: row.tenant_id,
            name: row.name,
            zone: row.zone,
            currency: row.currency,
            created_at: row.created_at,
        }
    }
}

/// What a tenant is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    name: Name,
    zone: Zone,
    currency: Currency,
}

/// Which tenant.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TenantPath {
    tenant_id: TenantId,
}

/// Make a tenant
///
/// With an unlimited quota and a first project named `default`.
#[utoipa::path(
    post, path = "/v1/tenants", tag = "tenants", security(("bearer" = [])),
    responses((status = 201, body = Tenant), WriteErrors)
)]
pub(crate) async fn create_tenant(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewTenant>,
) -> Result<(StatusCode, Json<Tenant>), Problem> {
    let new = tenant::NewTenant { name: new.name, zone: new.zone, currency: new.currency };
    let row = tenant::create(&state.app, &caller, new).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// List tenants
///
/// All for the platform's callers, their own for a tenant's.
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants", security(("bearer" = [])),
    params(Paging),
    responses((status = 200, body = Page<Tenant>), ReadErrors)
)]
pub(crate) async fn list_tenants(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Tenant>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = tenant::list(&state.app, &caller, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.tenant_id.uuid())))
}

/// Show a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{tenant_id}", tag = "tenants", security(("bearer" = [])),
    params(TenantPath),
    responses((status = 200, body = Tenant), ReadErrors)
)]
pub(crate) async fn get_tenant(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<TenantPath>,
) -> Result<Json<Tenant>, Problem> {
    Ok(Json(tenant::get(&state.app, &caller, path.tenant_id).await?.into()))
}
