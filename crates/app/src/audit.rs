//! Every change by a person or key, written in the transaction that makes it.

use crate::{App, Caller, audit_chain, error::AppError};
use serde_json::Value;
use store::{
    Tx,
    audit::{self, Place},
};
use types::{AuditId, Role, TenantId};

pub use store::audit::AuditRow;

/// What was changed.
#[derive(Debug)]
pub(crate) struct Change {
    /// Whose it is; absent for what belongs to the platform.
    pub tenant: Option<TenantId>,
    /// Noun and verb, such as `tenant.create`.
    pub action: &'static str,
    /// The id of what was changed.
    pub object: String,
    /// What it is now. Never a secret.
    pub detail: Value,
}

/// Records a change. The caller's transaction makes both durable, or neither. It holds the log's chain until its end, so
/// this comes last in it.
pub(crate) async fn record(app: &App, tx: &mut Tx, caller: &Caller, change: Change) -> Result<(), AppError> {
    let (last, head) = audit::lock_chain(tx, change.tenant).await?;
    let mut row = AuditRow {
        tenant_id: change.tenant,
        audit_id: app.id(AuditId::new),
        at: app.clock.now(),
        actor: caller.actor().to_string(),
        action: change.action.to_owned(),
        object: change.object,
        detail: change.detail,
        request_id: caller.request_id.clone(),
        place: None,
    };
    let sequence = last + 1;
    row.place = Some(Place { sequence, hash: audit_chain::hash(&head, sequence, &row) });
    Ok(audit::insert(tx, &row).await?)
}

/// A page of the log, the newest first: one tenant's, or everything for the platform where no tenant is named.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`] for another tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<AuditRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk, Role::TenantAdmin])?;
    let tenant = caller.tenant_or_platform(tenant)?;
    let mut tx = app.store.begin("audit.list", crate::caller::scope_of(tenant)).await?;
    Ok(audit::page(&mut tx, tenant, before, limit).await?)
}
