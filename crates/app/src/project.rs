//! Projects: subdivisions of a tenant, each with a quota of its own.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    tenant,
};
use quota::Limits;
use serde_json::json;
use store::{Scope, StoreError, Tx, project, quota_use::QuotaScope};
use types::{Name, ProjectId, Role, TenantId};

pub use store::project::ProjectRow;

/// The name of the project that every tenant begins with.
pub(crate) fn default_name() -> Name {
    #[expect(clippy::unwrap_used, reason = "the text keeps every rule of names; a test holds that")]
    "default".parse().unwrap()
}

/// Makes a project, with an unlimited quota of its own. `tenant` is needed from the platform alone.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`] for an unknown or foreign tenant, [`AppError::Conflict`] `name_taken`.
pub async fn create(app: &App, caller: &Caller, tenant: Option<TenantId>, name: Name) -> Result<ProjectRow, AppError> {
    caller.require(&[Role::Operator, Role::TenantAdmin])?;
    let tenant_id = caller.tenant(tenant)?;
    let mut tx = app.store.begin("project.create", Scope::Tenant(tenant_id)).await?;
    let row = add(app, &mut tx, caller, tenant_id, name).await?;
    tx.commit().await?;
    Ok(row)
}

/// Adds a project inside the caller's transaction.
pub(crate) async fn add(
    app: &App,
    tx: &mut Tx,
    caller: &Caller,
    tenant_id: TenantId,
    name: Name,
) -> Result<ProjectRow, AppError> {
    let row = ProjectRow { tenant_id, project_id: app.id(ProjectId::new), name, created_at: app.clock.now() };
    project::insert(tx, &row).await.map_err(|error| match error {
        e if e.is_rule("project_name_is_unique") => {
            AppError::conflict("name_taken", format!("the tenant has a project named {} already", row.name))
        }
        e if e.is_rule("project_of_tenant") => AppError::NotFound("tenant"),
        e => StoreError::into(e),
    })?;
    let scope = QuotaScope { tenant_id, project_id: Some(row.project_id) };
    store::quota::insert(tx, &scope, &Limits::default(), row.created_at).await?;
    let change = Change {
        tenant: Some(tenant_id),
        action: "project.create",
        object: row.project_id.to_string(),
        detail: json!({"name": row.name}),
    };
    audit::record(app, tx, caller, change).await?;
    Ok(row)
}

/// A page of a tenant's projects.
///
/// # Errors
/// [`AppError::NotFound`] for an unknown or foreign tenant, [`AppError::Forbidden`] for a node.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<ProjectId>,
    limit: i64,
) -> Result<Vec<ProjectRow>, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(tenant)?;
    let mut tx = app.store.begin("project.list", Scope::Tenant(tenant_id)).await?;
    tenant::known(&mut tx, tenant_id).await?;
    Ok(project::page(&mut tx, tenant_id, after, limit).await?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_project_has_a_name() {
        assert_eq!(super::default_name().as_str(), "default");
    }
}
