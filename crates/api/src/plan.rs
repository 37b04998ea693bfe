//! `/v1/plans`

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Page, Paging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    plan::{self, PlanRow, PlanVersionRow},
};
use axum::{extract::State, http::StatusCode};
use billing::Rates;
use serde::{Deserialize, Serialize};
use types::{BillingUnit, Currency, Instant, Name, PlanId, PlanVersionId};

/// A price list, without its prices.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PlanSummary {
    plan_id: PlanId,
    name: Name,
    currency: Currency,
    created_at: Instant,
}

impl From<PlanRow> for PlanSummary {
    fn from(row: PlanRow) -> Self {
        Self { plan_id: row.plan_id, name: row.name, currency: row.currency, created_at: row.created_at }
    }
}

/// Frozen prices.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PricedVersion)]
pub struct Version {
    plan_version_id: PlanVersionId,
    /// From 1 within the plan.
    version: u32,
    /// What the prices are prices of.
    unit: BillingUnit,
    rates: Rates,
    /// From when it is in force; until the next version is.
    valid_from: Instant,
    created_at: Instant,
}

impl From<PlanVersionRow> for Version {
    fn from(row: PlanVersionRow) -> Self {
        Self {
            plan_version_id: row.version.plan_version_id,
            version: row.version.version,
            unit: row.version.unit,
            rates: row.version.rates,
            valid_from: row.valid_from,
            created_at: row.created_at,
        }
    }
}

/// A price list with every version, in order.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Plan {
    plan_id: PlanId,
    name: Name,
    currency: Currency,
    created_at: Instant,
    versions: Vec<Version>,
}

impl From<plan::Plan> for Plan {
    fn from(plan: plan::Plan) -> Self {
        Self {
            plan_id: plan.row.plan_id,
            name: plan.row.name,
            currency: plan.row.currency,
            created_at: plan.row.created_at,
            versions: plan.versions.into_iter().map(Version::from).collect(),
        }
    }
}

/// What a plan is made from: its name and its first version.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPlan {
    name: Name,
    currency: Currency,
    unit: BillingUnit,
    rates: Rates,
    /// A whole minute; this one where absent.
    valid_from: Option<Instant>,
}

/// Prices from a minute on.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVersion {
    unit: BillingUnit,
    rates: Rates,
    /// A whole minute, not in the past and later than the last version's; the next minute where absent.
    valid_from: Option<Instant>,
}

/// Which plan.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct PlanPath {
    plan_id: PlanId,
}

/// Make a plan
#[utoipa::path(
    post, path = "/v1/plans", tag = "plans", security(("bearer" = [])),
    responses((status = 201, body = Plan), WriteErrors)
)]
pub(crate) async fn create_plan(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewPlan>,
) -> Result<(StatusCode, Json<Plan>), Problem> {
    let first = plan::NewVersion { unit: new.unit, rates: new.rates, valid_from: new.valid_from };
    let made = plan::create(&state.app, &caller, new.name, new.currency, first).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// List plans
///
/// All for the platform's callers; for a tenant's, those which it is or was on.
#[utoipa::path(
    get, path = "/v1/plans", tag = "plans", security(("bearer" = [])),
    params(Paging),
    responses((status = 200, body = Page<PlanSummary>), ReadErrors)
)]
pub(crate) async fn list_plans(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<PlanSummary>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = plan::list(&state.app, &caller, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.plan_id.uuid())))
}

/// Show a plan with every version
#[utoipa::path(
    get, path = "/v1/plans/{plan_id}", tag = "plans", security(("bearer" = [])),
    params(PlanPath),
    responses((status = 200, body = Plan), ReadErrors)
)]
pub(crate) async fn get_plan(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<PlanPath>,
) -> Result<Json<Plan>, Problem> {
    Ok(Json(plan::get(&state.app, &caller, path.plan_id).await?.into()))
}

/// Change a plan's prices from a minute on
///
/// Adds a version; those before stay as they are.
#[utoipa::path(
    post, path = "/v1/plans/{plan_id}/versions", tag = "plans", security(("bearer" = [])),
    params(PlanPath),
    responses((status = 201, body = Plan), WriteErrors)
)]
pub(crate) async fn create_plan_version(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<PlanPath>,
    Json(new): Json<NewVersion>,
) -> Result<(StatusCode, Json<Plan>), Problem> {
    let new = plan::NewVersion { unit: new.unit, rates: new.rates, valid_from: new.valid_from };
    let plan = plan::add_version(&state.app, &caller, path.plan_id, new).await?;
    Ok((StatusCode::CREATED, Json(plan.into())))
}
