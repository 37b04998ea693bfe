//! Quotas as people see and set them; admission decides by the same rows.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    tenant,
};
use quota::Limits;
use serde_json::json;
use store::{Scope, Tx, project, quota as rows, quota_use::QuotaScope};
use types::{ProjectId, Role, TenantId};

pub use store::quota::QuotaRow;

/// The most allocations that a limit can name.
const MOST_ALLOCATIONS: u32 = i32::MAX.unsigned_abs();

/// A page of a tenant's levels: the tenant itself, then its projects. `after` is the project that the page before
/// ended with.
///
/// # Errors
/// [`AppError::NotFound`] for an unknown or foreign tenant, [`AppError::Forbidden`] for a node.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<ProjectId>,
    limit: i64,
) -> Result<Vec<QuotaRow>, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(tenant)?;
    let mut tx = app.store.begin("quota.list", Scope::Tenant(tenant_id)).await?;
    tenant::known(&mut tx, tenant_id).await?;
    Ok(rows::page(&mut tx, tenant_id, after, limit).await?)
}

/// Sets all limits of a tenant; an absent one is lifted. A limit below what is in use takes nothing away.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`].
pub async fn set_tenant(app: &App, caller: &Caller, tenant_id: TenantId, limits: Limits) -> Result<(), AppError> {
    caller.require(&[Role::Operator])?;
    check(&limits)?;
    let mut tx = app.store.begin("quota.set_tenant", Scope::Tenant(tenant_id)).await?;
    set(app, &mut tx, caller, QuotaScope { tenant_id, project_id: None }, &limits).await?;
    tx.commit().await?;
    app.reconsider_queues().await;
    Ok(())
}

/// Sets all limits of a project; an absent one is lifted.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`].
pub async fn set_project(app: &App, caller: &Caller, project_id: ProjectId, limits: Limits) -> Result<(), AppError> {
    caller.require(&[Role::Operator, Role::TenantAdmin])?;
    check(&limits)?;
    let mut tx = app.store.begin("quota.set_project", caller.scope()?).await?;
    let tenant_id = project::tenant_of(&mut tx, project_id).await?.ok_or(AppError::NotFound("project"))?;
    set(app, &mut tx, caller, QuotaScope { tenant_id, project_id: Some(project_id) }, &limits).await?;
    tx.commit().await?;
    app.reconsider_queues().await;
    Ok(())
}

async fn set(app: &App, tx: &mut Tx, caller: &Caller, scope: QuotaScope, limits: &Limits) -> Result<(), AppError> {
    let noun = if scope.project_id.is_some() { "project" } else { "tenant" };
    if !rows::set(tx, &scope, limits, app.clock.now()).await? {
        return Err(AppError::NotFound(noun));
    }
    let object = scope.project_id.map_or_else(|| scope.tenant_id.to_string(), |id| id.to_string());
    let detail = json!({"level": noun, "limits": limits});
    let change = Change { tenant: Some(scope.tenant_id), action: "quota.set", object, detail };
    audit::record(app, tx, caller, change).await
}

fn check(limits: &Limits) -> Result<(), AppError> {
    match limits.allocations {
        Some(n) if n > MOST_ALLOCATIONS => {
            Err(AppError::invalid("allocations", format!("must be at most {MOST_ALLOCATIONS}")))
        }
        _ => Ok(()),
    }
}
