//! API keys of machines.

use crate::{
    App, Caller,
    audit::{self, Change},
    authenticate::known_as,
    caller::{role_fault, scope_of},
    credential::{self, CredentialKind},
    error::AppError,
    principal::Actor,
    tenant,
};
use serde_json::json;
use store::{api_key, invitation};
use types::{Instant, KeyId, Name, Role, TenantId};

pub use store::api_key::ApiKeyRow;

const MANAGERS: [Role; 2] = [Role::Operator, Role::TenantAdmin];

/// A key and its secret, which is shown this once.
#[derive(Debug)]
pub struct NewKey {
    pub row: ApiKeyRow,
    pub secret: String,
}

/// Makes a key: an operator for any tenant or for the platform, a tenant's admin for its own tenant.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`] for an unknown or foreign tenant.
pub async fn create(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    name: Name,
    role: Role,
    expires_at: Option<Instant>,
) -> Result<NewKey, AppError> {
    caller.require(&MANAGERS)?;
    let tenant_id = caller.tenant_or_platform(tenant)?;
    if let Some(rule) = role_fault(tenant_id, role) {
        return Err(AppError::invalid("role", rule));
    }
    let now = app.clock.now();
    if expires_at.is_some_and(|end| end <= now) {
        return Err(AppError::invalid("expires_at", "must lie in the future"));
    }
    let minted = credential::mint(CredentialKind::ApiKey);
    let row = ApiKeyRow {
        key_id: app.id(KeyId::new),
        tenant_id,
        name,
        role,
        prefix: minted.prefix,
        hash: minted.hash,
        created_at: now,
        expires_at,
        last_used_at: None,
        revoked_at: None,
    };
    let mut tx = app.store.begin("api_key.create", scope_of(tenant_id)).await?;
    api_key::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("api_key_of_tenant") => AppError::NotFound("tenant"),
        e => e.into(),
    })?;
    let change = Change {
        tenant: tenant_id,
        action: "key.create",
        object: row.key_id.to_string(),
        detail: json!({"name": row.name, "role": row.role, "prefix": row.prefix, "expires_at": row.expires_at}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(NewKey { row, secret: minted.text })
}

/// A page of a tenant's keys; for the platform without a tenant, of its own.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`] for an unknown or foreign tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<KeyId>,
    limit: i64,
) -> Result<Vec<ApiKeyRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk, Role::TenantAdmin])?;
    let tenant_id = caller.tenant_or_platform(tenant)?;
    let mut tx = app.store.begin("api_key.list", scope_of(tenant_id)).await?;
    if let Some(tenant_id) = tenant_id {
        tenant::known(&mut tx, tenant_id).await?;
    }
    Ok(api_key::page(&mut tx, tenant_id, after, limit).await?)
}

/// Revokes a key: at once on this server, within five seconds on others. Doing it again changes nothing.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`].
pub async fn revoke(app: &App, caller: &Caller, key_id: KeyId) -> Result<ApiKeyRow, AppError> {
    caller.require(&MANAGERS)?;
    let mut tx = app.store.begin("api_key.revoke", caller.scope()?).await?;
    let row = api_key::get(&mut tx, key_id).await?.ok_or(AppError::NotFound("key"))?;
    let now = app.clock.now();
    api_key::revoke(&mut tx, key_id, now).await?;
    // nor does anybody come in by it any more
    let revoked = invitation::revoke_all_by(&mut tx, &Actor::Key(key_id).to_string(), now).await?;
    let change = Change {
        tenant: row.tenant_id,
        action: "key.revoke",
        object: key_id.to_string(),
        detail: json!({"name": row.name, "prefix": row.prefix, "invitations": revoked}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    app.sessions.credentials().put(known_as(CredentialKind::ApiKey, &row.prefix), None);
    Ok(ApiKeyRow { revoked_at: row.revoked_at.or(Some(now)), ..row })
}
