//! People who log in.

use crate::{
    App, Caller, Invalid,
    audit::{self, Change},
    caller::{role_fault, scope_of},
    error::AppError,
    password::Password,
    principal::Actor,
    session, tenant,
};
use serde_json::json;
use store::{Scope, Tx, invitation, tenant::TenantRow, user};
use types::{Name, Role, SessionId, TenantId, UserId};

pub use store::user::UserRow;

/// What a new account is made from.
#[derive(Debug, Clone)]
pub struct NewUser {
    /// Absent for people of the platform. A tenant's caller need not name its own.
    pub tenant_id: Option<TenantId>,
    /// Compared without regard to case.
    pub email: String,
    pub name: Name,
    pub role: Role,
    pub password: Password,
}

/// Who calls, for the caller itself.
#[derive(Debug)]
pub struct Me {
    pub actor: Actor,
    /// Absent for a node.
    pub role: Option<Role>,
    /// Absent for the platform's callers.
    pub tenant: Option<TenantRow>,
    /// Absent for machines.
    pub user: Option<UserRow>,
}

const MANAGERS: [Role; 2] = [Role::Operator, Role::TenantAdmin];

/// Makes an account: an operator for any tenant or for the platform, a tenant's admin for its own tenant.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`] for an unknown or foreign tenant,
/// [`AppError::Conflict`] `email_taken`.
pub async fn create(app: &App, caller: &Caller, new: NewUser) -> Result<UserRow, AppError> {
    caller.require(&MANAGERS)?;
    let tenant_id = caller.tenant_or_platform(new.tenant_id)?;
    let row = prepare(app, NewUser { tenant_id, ..new }).await?;
    let mut tx = app.store.begin("user.create", scope_of(tenant_id)).await?;
    insert(app, &mut tx, caller, &row).await?;
    tx.commit().await?;
    Ok(row)
}

/// Makes the first operator; refused as soon as there is one.
///
/// # Errors
/// [`AppError::Invalid`]; [`AppError::Conflict`] `operator_exists`.
pub async fn init_operator(app: &App, email: String, name: Name, password: Password) -> Result<UserRow, AppError> {
    let new = NewUser { tenant_id: None, email, name, role: Role::Operator, password };
    let row = prepare(app, new).await?;
    let mut tx = app.store.begin("user.init_operator", Scope::Operator).await?;
    if user::has_operator(&mut tx).await? {
        return Err(AppError::conflict("operator_exists", "there is an operator already; ask them for an account"));
    }
    insert(app, &mut tx, &Caller::system(), &row).await?;
    tx.commit().await?;
    Ok(row)
}

async fn prepare(app: &App, new: NewUser) -> Result<UserRow, AppError> {
    let email = new.email.to_lowercase();
    let faults: Vec<Invalid> = [
        ("email", email_fault(&email).map(str::to_owned)),
        ("role", role_fault(new.tenant_id, new.role).map(str::to_owned)),
        ("password", new.password.fault()),
    ]
    .into_iter()
    .filter_map(|(field, rule)| rule.map(|rule| Invalid { field: field.to_owned(), rule }))
    .collect();
    if !faults.is_empty() {
        return Err(AppError::Invalid(faults));
    }
    Ok(UserRow {
        user_id: app.id(UserId::new),
        tenant_id: new.tenant_id,
        email,
        name: new.name,
        role: new.role,
        password_hash: Some(new.password.hash().await?),
        created_at: app.clock.now(),
        disabled_at: None,
    })
}

/// Writes an account, and who made it.
pub(crate) async fn insert(app: &App, tx: &mut Tx, caller: &Caller, row: &UserRow) -> Result<(), AppError> {
    user::insert(tx, row).await.map_err(|error| match error {
        e if e.is_rule("user_email_is_unique") => {
            AppError::conflict("email_taken", "there is an account with this email address already")
        }
        e if e.is_rule("user_account_of_tenant") => AppError::NotFound("tenant"),
        e => e.into(),
    })?;
    let change = Change {
        tenant: row.tenant_id,
        action: "user.create",
        object: row.user_id.to_string(),
        detail: json!({"email": row.email, "name": row.name, "role": row.role}),
    };
    audit::record(app, tx, caller, change).await
}

/// A page of a tenant's people; for the platform without a tenant, of its own.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`] for an unknown or foreign tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<UserId>,
    limit: i64,
) -> Result<Vec<UserRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk, Role::TenantAdmin])?;
    let tenant_id = caller.tenant_or_platform(tenant)?;
    let mut tx = app.store.begin("user.list", scope_of(tenant_id)).await?;
    if let Some(tenant_id) = tenant_id {
        tenant::known(&mut tx, tenant_id).await?;
    }
    Ok(user::page(&mut tx, tenant_id, after, limit).await?)
}

/// Disables an account and ends its sessions: at once on this server, within five seconds on others. Doing it again
/// changes nothing.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Conflict`] `own_account`, so that no tenant and no
/// platform locks itself out.
pub async fn disable(app: &App, caller: &Caller, user_id: UserId) -> Result<UserRow, AppError> {
    caller.require(&MANAGERS)?;
    if caller.actor() == Actor::User(user_id) {
        return Err(AppError::conflict("own_account", "nobody disables their own account"));
    }
    let mut tx = app.store.begin("user.disable", caller.scope()?).await?;
    let row = user::get(&mut tx, user_id).await?.ok_or(AppError::NotFound("user"))?;
    let now = app.clock.now();
    user::disable(&mut tx, user_id, now).await?;
    let ended = session::revoke_all(app, &mut tx, user_id, None).await?;
    // nor does anybody come in by them any more
    let revoked = invitation::revoke_all_by(&mut tx, &Actor::User(user_id).to_string(), now).await?;
    let change = Change {
        tenant: row.tenant_id,
        action: "user.disable",
        object: user_id.to_string(),
        detail: json!({"email": row.email, "sessions": ended.count(), "invitations": revoked}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    ended.forget(app);
    app.sessions.users().forget(&user_id);
    Ok(UserRow { disabled_at: row.disabled_at.or(Some(now)), ..row })
}

/// Sets another password: one's own with the current one, or that of an account one manages. The person's sessions end,
/// but for the `present` one that changes its own.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Invalid`] for a password that breaks a rule or a
/// current one that is wrong.
pub async fn set_password(
    app: &App,
    caller: &Caller,
    user_id: UserId,
    password: Password,
    current: Option<Password>,
    present: Option<SessionId>,
) -> Result<(), AppError> {
    let is_own = caller.actor() == Actor::User(user_id);
    if !is_own {
        caller.require(&MANAGERS)?;
    }
    if let Some(rule) = password.fault() {
        return Err(AppError::invalid("password", rule));
    }
    let scope = caller.scope()?;
    let mut tx = app.store.begin("user.read", scope.clone()).await?;
    let row = user::get(&mut tx, user_id).await?.ok_or(AppError::NotFound("user"))?;
    drop(tx); // no connection is kept while passwords are hashed
    if is_own {
        let current =
            current.ok_or_else(|| AppError::invalid("current_password", "is needed for one's own account"))?;
        if !current.verify(row.password_hash).await? {
            return Err(AppError::invalid("current_password", "is wrong"));
        }
    }
    let hash = password.hash().await?;
    let mut tx = app.store.begin("user.set_password", scope).await?;
    user::set_password_hash(&mut tx, user_id, &hash).await?;
    let ended = session::revoke_all(app, &mut tx, user_id, present.filter(|_| is_own)).await?;
    let change = Change {
        tenant: row.tenant_id,
        action: "user.set_password",
        object: user_id.to_string(),
        detail: json!({"email": row.email, "sessions": ended.count()}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    ended.forget(app);
    Ok(())
}

/// Sets another password for the account of an address: for whoever has the machine, where nobody can log in any more.
///
/// # Errors
/// [`AppError::NotFound`] for an unknown address, [`AppError::Invalid`] for a password that breaks a rule.
pub async fn reset_password(app: &App, email: &str, password: Password) -> Result<UserRow, AppError> {
    let mut tx = app.store.begin("user.by_email", Scope::Operator).await?;
    let row = user::by_email(&mut tx, &email.to_lowercase()).await?.ok_or(AppError::NotFound("account"))?;
    drop(tx);
    set_password(app, &Caller::system(), row.user_id, password, None, None).await?;
    Ok(row)
}

/// Who calls.
///
/// # Errors
/// What the database says.
pub async fn me(app: &App, caller: &Caller) -> Result<Me, AppError> {
    let mut me = Me { actor: caller.actor(), role: caller.role(), tenant: None, user: None };
    let Ok(scope) = caller.scope() else { return Ok(me) };
    let mut tx = app.store.begin("user.me", scope).await?;
    if let Actor::User(user_id) = me.actor {
        me.user = user::get(&mut tx, user_id).await?;
    }
    if let Some(tenant_id) = caller.tenant_or_platform(None)? {
        me.tenant = Some(tenant::known(&mut tx, tenant_id).await?);
    }
    Ok(me)
}

/// The rule that an address in lower case breaks. Whether mail arrives is not asked.
pub(crate) fn email_fault(email: &str) -> Option<&'static str> {
    if !(3..=254).contains(&email.len()) {
        return Some("must have 3 to 254 bytes");
    }
    if email.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Some("contains white space or a control character");
    }
    match email.split_once('@') {
        Some((local, domain)) if !local.is_empty() && !domain.is_empty() && !domain.contains('@') => None,
        _ => Some("is not an email address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_at_between_two_parts() {
        for good in ["a@b", "김@예.kr", "a+b@c.d"] {
            assert_eq!(email_fault(good), None, "{good}");
        }
        for bad in ["", "a@", "@b", "a@b@c", "ab", "a b@c", "a@b\n", &"x".repeat(255)] {
            assert!(email_fault(bad).is_some(), "{bad:?} was accepted");
        }
    }
}
