//! `/v1/subscriptions`

use crate::{
    extract::{Json, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    subscription::{self, SubscriptionRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, PlanId, SubscriptionId, TenantId};

/// A tenant's use of a plan over a span of time.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Subscription {
    tenant_id: TenantId,
    subscription_id: SubscriptionId,
    plan_id: PlanId,
    starts_at: Instant,
    /// Absent while no end is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<Instant>,
    created_at: Instant,
}

impl From<SubscriptionRow> for Subscription {
    fn from(row: SubscriptionRow) -> Self {
        Self {
            tenant_id: row.tenant_id,
            subscription_id: row.subscription_id,
            plan_id: row.plan_id,
            starts_at: row.starts_at,
            ends_at: row.ends_at,
            created_at: row.created_at,
        }
    }
}

/// What a subscription is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSubscription {
    tenant_id: TenantId,
    plan_id: PlanId,
    /// A whole minute; this one where absent. It may have passed where no subscription runs then and nothing is invoiced.
    starts_at: Option<Instant>,
}

/// Put a tenant on a plan
///
/// A subscription that runs at that minute ends there. Where none runs, the new one lasts until the next begins.
#[utoipa::path(
    post, path = "/v1/subscriptions", tag = "subscriptions", security(("bearer" = [])),
    responses((status = 201, body = Subscription), WriteErrors)
)]
pub(crate) async fn create_subscription(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewSubscription>,
) -> Result<(StatusCode, Json<Subscription>), Problem> {
    let new =
        subscription::NewSubscription { tenant_id: new.tenant_id, plan_id: new.plan_id, starts_at: new.starts_at };
    let row = subscription::create(&state.app, &caller, new).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// List a tenant's subscriptions
#[utoipa::path(
    get, path = "/v1/subscriptions", tag = "subscriptions", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<Subscription>), ReadErrors)
)]
pub(crate) async fn list_subscriptions(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<Subscription>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = subscription::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.subscription_id.uuid())))
}
