//! Subscriptions: which plan a tenant is on, over which time.

use crate::{
    App, Caller, Invalid,
    audit::{self, Change},
    error::AppError,
    tenant,
};
use serde_json::json;
use store::{Scope, plan, subscription};
use types::{Instant, PlanId, Role, SubscriptionId, TenantId};

pub use store::subscription::SubscriptionRow;

/// What a new subscription is made from.
#[derive(Debug, Clone, Copy)]
pub struct NewSubscription {
    pub tenant_id: TenantId,
    pub plan_id: PlanId,
    /// A whole minute. Absent: this minute, or the end of the last issued period where that is later.
    pub starts_at: Option<Instant>,
}

/// Puts a tenant on a plan from a minute on. A subscription that runs then ends there, so a change never reaches back
/// behind the present minute. Where none runs then, the new one fills the hole up to the next: it may begin earlier, for
/// use that nothing has priced yet. What is invoiced keeps its price.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Invalid`], [`AppError::Conflict`] `subscription_overlaps`
/// where another begins at that minute, or one that runs then is to be followed by another.
pub async fn create(app: &App, caller: &Caller, new: NewSubscription) -> Result<SubscriptionRow, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    let tenant_id = new.tenant_id;
    let now = app.clock.now();
    let mut tx = app.store.begin("subscription.create", Scope::Tenant(tenant_id)).await?;
    let tenant = tenant::known(&mut tx, tenant_id).await?;
    let plan = plan::get(&mut tx, new.plan_id, None).await?.ok_or(AppError::NotFound("plan"))?;
    let issued_until = subscription::lock_issued_until(&mut tx, tenant_id).await?.unwrap_or(Instant::EPOCH);
    let others = subscription::lock_all(&mut tx, tenant_id).await?;
    let starts_at = new.starts_at.unwrap_or_else(|| now.minute_start().max(issued_until));
    let running = others.iter().find(|s| s.starts_at <= starts_at && s.ends_at.is_none_or(|end| starts_at < end));
    let next = others.iter().find(|s| s.starts_at > starts_at);

    let mut faults = Vec::new();
    let mut fault = |field: &str, rule: String| faults.push(Invalid { field: field.to_owned(), rule });
    if starts_at.minute_start() != starts_at {
        fault("starts_at", "must be a whole minute".to_owned());
    }
    if starts_at < issued_until {
        fault("starts_at", format!("lies in a period that is invoiced already: not before {issued_until}"));
    }
    if running.is_some() && starts_at < now.minute_start() {
        fault("starts_at", "would change the plan of time that has passed: a subscription ran then".to_owned());
    }
    if plan.currency != tenant.currency {
        fault("plan_id", format!("is priced in {}, but the tenant is billed in {}", plan.currency, tenant.currency));
    }
    let versions = plan::versions(&mut tx, new.plan_id).await?;
    if versions.iter().all(|version| version.valid_from > starts_at) {
        fault("plan_id", format!("has no prices yet at {starts_at}"));
    }
    if !faults.is_empty() {
        return Err(AppError::Invalid(faults));
    }

    if let Some(running) = running {
        if running.starts_at == starts_at || running.ends_at.is_some() {
            return Err(overlaps());
        }
        subscription::end(&mut tx, tenant_id, running.subscription_id, starts_at).await?;
    }
    let row = SubscriptionRow {
        tenant_id,
        subscription_id: app.id(SubscriptionId::new),
        plan_id: new.plan_id,
        starts_at,
        ends_at: next.map(|next| next.starts_at),
        created_at: now,
    };
    subscription::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("subscription_has_no_overlap") => overlaps(),
        e => e.into(),
    })?;
    let change = Change {
        tenant: Some(tenant_id),
        action: "subscription.create",
        object: row.subscription_id.to_string(),
        detail: json!({"plan_id": row.plan_id, "plan": plan.name, "starts_at": starts_at, "ends_at": row.ends_at}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(row)
}

fn overlaps() -> AppError {
    AppError::conflict(
        "subscription_overlaps",
        "another subscription of the tenant begins at that minute, or after the one that runs then",
    )
}

/// A page of a tenant's subscriptions.
///
/// # Errors
/// [`AppError::NotFound`] for an unknown or foreign tenant, [`AppError::Forbidden`] for a node.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<SubscriptionId>,
    limit: i64,
) -> Result<Vec<SubscriptionRow>, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(tenant)?;
    let mut tx = app.store.begin("subscription.list", Scope::Tenant(tenant_id)).await?;
    tenant::known(&mut tx, tenant_id).await?;
    Ok(subscription::page(&mut tx, tenant_id, after, limit).await?)
}
