//! The append-only log of every change by a person or key.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{AuditId, Instant, TenantId};
use uuid::Uuid;

/// One change. What concerns no tenant stands under the nil id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Absent for what concerns the platform.
    pub tenant_id: Option<TenantId>,
    pub audit_id: AuditId,
    pub at: Instant,
    /// Who: `user:`, `key:` or `node:` and an id, or `system`.
    pub actor: String,
    /// What was done, such as `tenant.create`.
    pub action: String,
    /// The id of what it was done to.
    pub object: String,
    /// What changed, without secrets.
    pub detail: serde_json::Value,
    pub request_id: Option<String>,
}

fn column(tenant: Option<TenantId>) -> Uuid {
    tenant.map_or(Uuid::nil(), TenantId::uuid)
}

/// Appends one change, in the transaction that makes it.
///
/// # Errors
/// What the database says.
pub async fn insert(tx: &mut Tx, row: &AuditRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into audit (tenant_id, audit_id, at, actor, action, object, detail, request_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        column(row.tenant_id),
        row.audit_id.uuid(),
        At(row.at) as _,
        row.actor,
        row.action,
        row.object,
        row.detail,
        row.request_id,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A page of one tenant's log, or of all that the scope shows where no tenant is given; the newest first. `before` is
/// the entry that the page before ended with.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<AuditRow>, StoreError> {
    let rows = sqlx::query!(
        "select tenant_id, audit_id, at, actor, action, object, detail, request_id from audit
          where ($1::uuid is null or tenant_id = $1) and ($2::uuid is null or audit_id < $2)
          order by audit_id desc limit $3",
        tenant.map(TenantId::uuid),
        before.map(AuditId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| AuditRow {
            tenant_id: (!r.tenant_id.is_nil()).then(|| r.tenant_id.into()),
            audit_id: r.audit_id.into(),
            at: r.at.0,
            actor: r.actor,
            action: r.action,
            object: r.object,
            detail: r.detail,
            request_id: r.request_id,
        })
        .collect())
}
