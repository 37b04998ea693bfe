//! Tenants: who is billed and sees only itself.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    project,
};
use billing::Zone;
use quota::Limits;
use serde_json::json;
use store::{Scope, Tx, quota_use::QuotaScope, tenant};
use types::{Currency, Name, Role, TenantId};

pub use store::tenant::TenantRow;

/// What a new tenant is made from.
#[derive(Debug, Clone)]
pub struct NewTenant {
    pub name: Name,
    /// Decides where its billing months begin.
    pub zone: Zone,
    pub currency: Currency,
}

/// Makes a tenant, with an unlimited quota and a first project named `default`.
///
/// # Errors
/// [`AppError::Forbidden`]; [`AppError::Conflict`] `name_taken`.
pub async fn create(app: &App, caller: &Caller, new: NewTenant) -> Result<TenantRow, AppError> {
    caller.require(&[Role::Operator])?;
    let row = TenantRow {
        tenant_id: app.id(TenantId::new),
        name: new.name,
        zone: new.zone,
        currency: new.currency,
        created_at: app.clock.now(),
    };
    let mut tx = app.store.begin("tenant.create", Scope::Tenant(row.tenant_id)).await?;
    tenant::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("tenant_name_is_unique") => {
            AppError::conflict("name_taken", format!("there is a tenant named {} already", row.name))
        }
        e => e.into(),
    })?;
    let scope = QuotaScope { tenant_id: row.tenant_id, project_id: None };
    store::quota::insert(&mut tx, &scope, &Limits::default(), row.created_at).await?;
    let change = Change {
        tenant: Some(row.tenant_id),
        action: "tenant.create",
        object: row.tenant_id.to_string(),
        detail: json!({"name": row.name, "zone": row.zone, "currency": row.currency}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    project::add(app, &mut tx, caller, row.tenant_id, project::default_name()).await?;
    tx.commit().await?;
    Ok(row)
}

/// A page of the tenants that the caller sees: all for the platform, its own for a tenant's.
///
/// # Errors
/// [`AppError::Forbidden`] for a node.
pub async fn list(app: &App, caller: &Caller, after: Option<TenantId>, limit: i64) -> Result<Vec<TenantRow>, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("tenant.list", caller.scope()?).await?;
    Ok(tenant::page(&mut tx, after, limit).await?)
}

/// One tenant.
///
/// # Errors
/// [`AppError::NotFound`] when there is none, or it is not the caller's.
pub async fn get(app: &App, caller: &Caller, tenant_id: TenantId) -> Result<TenantRow, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(Some(tenant_id))?;
    let mut tx = app.store.begin("tenant.get", Scope::Tenant(tenant_id)).await?;
    known(&mut tx, tenant_id).await
}

/// The tenant's row, or "not found": the platform may name one that does not exist.
pub(crate) async fn known(tx: &mut Tx, tenant_id: TenantId) -> Result<TenantRow, AppError> {
    tenant::get(tx, tenant_id).await?.ok_or(AppError::NotFound("tenant"))
}
