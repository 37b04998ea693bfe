//! Projects: subdivisions of a tenant.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, Name, ProjectId, TenantId};
use uuid::Uuid;

/// A project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRow {
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    /// Unique within its tenant.
    pub name: Name,
    pub created_at: Instant,
}

struct Raw {
    tenant_id: Uuid,
    project_id: Uuid,
    name: String,
    created_at: At,
}

impl Raw {
    fn parse(self) -> Result<ProjectRow, StoreError> {
        Ok(ProjectRow {
            tenant_id: self.tenant_id.into(),
            project_id: self.project_id.into(),
            name: self.name.parse().map_err(|_| StoreError::corrupt("project", "name", &self.name))?,
            created_at: self.created_at.0,
        })
    }
}

/// A new project.
///
/// # Errors
/// The rules `project_name_is_unique` and `project_of_tenant`.
pub async fn insert(tx: &mut Tx, row: &ProjectRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into project (tenant_id, project_id, name, created_at) values ($1, $2, $3, $4)",
        row.tenant_id.uuid(),
        row.project_id.uuid(),
        row.name.as_str(),
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One project of a tenant.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, tenant: TenantId, project: ProjectId) -> Result<Option<ProjectRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, project_id, name, created_at from project where tenant_id = $1 and project_id = $2",
        tenant.uuid(),
        project.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// The tenant of a project that the scope shows.
///
/// # Errors
/// What the database says.
pub async fn tenant_of(tx: &mut Tx, project: ProjectId) -> Result<Option<TenantId>, StoreError> {
    let tenant = sqlx::query_scalar!("select tenant_id from project where project_id = $1", project.uuid())
        .fetch_optional(tx.connection())
        .await?;
    Ok(tenant.map(TenantId::from))
}

/// The project of this name.
///
/// # Errors
/// What the database says.
pub async fn by_name(tx: &mut Tx, tenant: TenantId, name: &Name) -> Result<Option<ProjectRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, project_id, name, created_at from project where tenant_id = $1 and name = $2",
        tenant.uuid(),
        name.as_str()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of a tenant's projects in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: TenantId,
    after: Option<ProjectId>,
    limit: i64,
) -> Result<Vec<ProjectRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, project_id, name, created_at from project
          where tenant_id = $1 and ($2::uuid is null or project_id > $2) order by project_id limit $3",
        tenant.uuid(),
        after.map(ProjectId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}
