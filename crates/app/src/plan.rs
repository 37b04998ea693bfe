//! Plans: price lists whose versions are frozen.

use crate::{
    App, Caller, Invalid,
    audit::{self, Change},
    error::AppError,
    principal::Principal,
};
use billing::{PlanVersion, Rates};
use serde_json::json;
use store::{Scope, StoreError, Tx, plan};
use types::{BillingUnit, Currency, Instant, Name, PlanId, PlanVersionId, Role, TenantId};

pub use store::plan::{PlanRow, PlanVersionRow};

/// The most models that one version may name.
const MOST_MODELS: usize = 1000;
const MANAGERS: [Role; 2] = [Role::Operator, Role::BillingClerk];

/// Prices from an instant on.
#[derive(Debug, Clone)]
pub struct NewVersion {
    /// What the prices are prices of.
    pub unit: BillingUnit,
    pub rates: Rates,
    /// A whole minute. Absent: this minute for a plan's first version, the next one for others.
    pub valid_from: Option<Instant>,
}

/// A plan with every version, in order.
#[derive(Debug, Clone)]
pub struct Plan {
    pub row: PlanRow,
    pub versions: Vec<PlanVersionRow>,
}

/// Makes a plan with its first version. Nobody is on it yet, so that version may begin at any minute.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::Conflict`] `name_taken`.
pub async fn create(
    app: &App,
    caller: &Caller,
    name: Name,
    currency: Currency,
    first: NewVersion,
) -> Result<Plan, AppError> {
    caller.require(&MANAGERS)?;
    let now = app.clock.now();
    let valid_from = first.valid_from.unwrap_or_else(|| now.minute_start());
    refuse_faults(version_faults(&first.rates, valid_from))?;
    let row = PlanRow { plan_id: app.id(PlanId::new), name, currency, created_at: now };
    let mut tx = app.store.begin("plan.create", Scope::Operator).await?;
    plan::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("plan_name_is_unique") => {
            AppError::conflict("name_taken", format!("there is a plan named {} already", row.name))
        }
        e => e.into(),
    })?;
    let version = insert_version(app, &mut tx, caller, &row, 1, valid_from, first).await?;
    tx.commit().await?;
    Ok(Plan { row, versions: vec![version] })
}

/// Adds a version to a plan, in force from its first minute on. It must not begin in the past, nor before the last
/// version does, so that no price changes behind anybody's back.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Invalid`], [`AppError::Conflict`] `version_raced` when
/// another was added at the same time.
pub async fn add_version(app: &App, caller: &Caller, plan_id: PlanId, new: NewVersion) -> Result<Plan, AppError> {
    caller.require(&MANAGERS)?;
    let now = app.clock.now();
    let valid_from = new.valid_from.unwrap_or_else(|| now.minute_start().plus_secs(60));
    let mut tx = app.store.begin("plan.add_version", Scope::Operator).await?;
    let row = plan::get(&mut tx, plan_id, None).await?.ok_or(AppError::NotFound("plan"))?;
    let mut versions = plan::versions(&mut tx, plan_id).await?;
    let mut faults = version_faults(&new.rates, valid_from);
    let mut fault = |rule: String| faults.push(Invalid { field: "valid_from".to_owned(), rule });
    if valid_from < now {
        fault(format!("lies in the past: it is {now}"));
    }
    if let Some(last) = versions.last().filter(|last| valid_from <= last.valid_from) {
        fault(format!("must be later than version {} begins: {}", last.version.version, last.valid_from));
    }
    refuse_faults(faults)?;
    let number = versions.last().map_or(1, |last| last.version.version + 1);
    versions.push(insert_version(app, &mut tx, caller, &row, number, valid_from, new).await?);
    tx.commit().await?;
    Ok(Plan { row, versions })
}

async fn insert_version(
    app: &App,
    tx: &mut Tx,
    caller: &Caller,
    plan: &PlanRow,
    number: u32,
    valid_from: Instant,
    new: NewVersion,
) -> Result<PlanVersionRow, AppError> {
    let row = PlanVersionRow {
        version: PlanVersion {
            plan_version_id: app.id(PlanVersionId::new),
            plan_id: plan.plan_id,
            version: number,
            currency: plan.currency,
            unit: new.unit,
            rates: new.rates,
        },
        valid_from,
        created_at: app.clock.now(),
    };
    plan::insert_version(tx, &row).await.map_err(|error: StoreError| match error {
        e if e.is_rule("plan_version_number_is_unique") || e.is_rule("plan_version_starts_once") => {
            AppError::conflict("version_raced", "another version was added at the same time")
        }
        e => e.into(),
    })?;
    let change = Change {
        tenant: None,
        action: "plan.add_version",
        object: plan.plan_id.to_string(),
        detail: json!({"name": plan.name, "valid_from": valid_from, "version": row.version}),
    };
    audit::record(app, tx, caller, change).await?;
    Ok(row)
}

fn version_faults(rates: &Rates, valid_from: Instant) -> Vec<Invalid> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, rule: String| faults.push(Invalid { field: field.to_owned(), rule });
    if valid_from.minute_start() != valid_from {
        fault("valid_from", "must be a whole minute".to_owned());
    }
    if rates.models.len() > MOST_MODELS {
        fault("rates.models", format!("names {} models; at most {MOST_MODELS} are allowed", rates.models.len()));
    }
    faults
}

fn refuse_faults(faults: Vec<Invalid>) -> Result<(), AppError> {
    if faults.is_empty() { Ok(()) } else { Err(AppError::Invalid(faults)) }
}

/// Prices are nobody's business but the platform's and the tenants' who are or were on the plan.
fn subscriber(caller: &Caller) -> Option<TenantId> {
    match caller.principal {
        Principal::Tenant { tenant, .. } => Some(tenant),
        _ => None,
    }
}

/// A page of plans: all for the platform, for a tenant's callers those which it is or was on.
///
/// # Errors
/// [`AppError::Forbidden`] for a node.
pub async fn list(app: &App, caller: &Caller, after: Option<PlanId>, limit: i64) -> Result<Vec<PlanRow>, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("plan.list", caller.scope()?).await?;
    Ok(plan::page(&mut tx, subscriber(caller), after, limit).await?)
}

/// One plan with every version.
///
/// # Errors
/// [`AppError::NotFound`] when there is none, or the caller's tenant never was on it.
pub async fn get(app: &App, caller: &Caller, plan_id: PlanId) -> Result<Plan, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("plan.get", caller.scope()?).await?;
    let row = plan::get(&mut tx, plan_id, subscriber(caller)).await?.ok_or(AppError::NotFound("plan"))?;
    let versions = plan::versions(&mut tx, plan_id).await?;
    Ok(Plan { row, versions })
}
