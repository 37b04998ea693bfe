//! The life of a session: begun by whoever proved who they are, listed, ended, forgotten.

use super::{Session, SessionRow, UserRow, token_of};
use crate::{
    App, Caller,
    audit::{self, Change},
    caller::scope_of,
    error::AppError,
    principal::{Actor, Principal},
};
use serde_json::json;
use std::net::IpAddr;
use store::{Scope, Tx, session, user};
use types::{Role, SessionId, UserId};

/// Where a login came from, as far as known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    pub address: Option<IpAddr>,
    /// What the client called itself; cut to 200 bytes.
    pub user_agent: Option<String>,
}

/// Whose sessions are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The caller's own; a machine has none.
    Own,
    /// One person's.
    User(UserId),
    /// Everybody's that the caller manages.
    All,
}

const MANAGERS: [Role; 2] = [Role::Operator, Role::TenantAdmin];
/// The longest name of a client that is kept, in bytes.
const USER_AGENT: usize = 200;
/// Expired sessions stay listed so long, in seconds.
const REMEMBERED_S: i64 = 86_400;
/// Sessions forgotten in one transaction.
const FORGOTTEN: i64 = 5_000;

/// Begins a session for a person who has just proved who they are, as `user` was then.
///
/// # Errors
/// [`AppError::Unauthenticated`] when the account was disabled or got another password since.
pub async fn begin(app: &App, user: UserRow, origin: Origin) -> Result<Session, AppError> {
    let now = app.clock.now();
    let row = SessionRow {
        session_id: app.id(SessionId::new),
        tenant_id: user.tenant_id,
        user_id: user.user_id,
        address: origin.address.map(|address| address.to_string()),
        user_agent: origin.user_agent.map(|name| name[..name.floor_char_boundary(USER_AGENT)].to_owned()),
        created_at: now,
        expires_at: now.plus_secs(i64::from(app.sessions.0.settings.lifetime.0)),
        revoked_at: None,
    };
    let token = token_of(app, &row).await?;
    let mut tx = app.store.begin("session.begin", scope_of(user.tenant_id)).await?;
    // whoever changes the password waits for this transaction and ends the session, or this one waits and sees the change
    let is_as_proved = user::hold(&mut tx, user.user_id)
        .await?
        .is_some_and(|held| held.disabled_at.is_none() && held.password_hash == user.password_hash);
    if !is_as_proved {
        return Err(AppError::Unauthenticated("the account has changed: log in again"));
    }
    session::insert(&mut tx, &row).await?;
    let principal = match user.tenant_id {
        Some(tenant) => Principal::Tenant { actor: Actor::User(user.user_id), role: user.role, tenant },
        None => Principal::Platform { actor: Actor::User(user.user_id), role: user.role },
    };
    let caller = Caller { principal, request_id: None };
    let change = Change {
        tenant: row.tenant_id,
        action: "session.begin",
        object: row.session_id.to_string(),
        detail: json!({"user_id": row.user_id, "address": row.address, "expires_at": row.expires_at}),
    };
    audit::record(app, &mut tx, &caller, change).await?;
    tx.commit().await?;
    Ok(Session { token, row, user })
}

/// A page of sessions that have not been forgotten yet: one's own, a tenant's admin its people's, an operator everybody's.
///
/// # Errors
/// [`AppError::Forbidden`] for others' sessions where the caller manages nobody; [`AppError::NotFound`] for a person that
/// the caller does not see.
pub async fn list(
    app: &App,
    caller: &Caller,
    whose: Whose,
    after: Option<SessionId>,
    limit: i64,
) -> Result<Vec<SessionRow>, AppError> {
    let scope = caller.scope()?;
    let user_id = match (whose, caller.actor()) {
        (Whose::Own, Actor::User(own)) => Some(own),
        (Whose::Own, _) => return Ok(Vec::new()),
        (Whose::User(user), Actor::User(own)) if user == own => Some(own),
        (Whose::User(user), _) => {
            caller.require(&MANAGERS)?;
            Some(user)
        }
        (Whose::All, _) => {
            caller.require(&MANAGERS)?;
            None
        }
    };
    let mut tx = app.store.begin("session.list", scope).await?;
    if let Whose::User(user) = whose {
        user::get(&mut tx, user).await?.ok_or(AppError::NotFound("user"))?;
    }
    Ok(session::page(&mut tx, user_id, after, limit).await?)
}

/// Ends a session: at once on this server, within five seconds on others. Doing it again changes nothing.
///
/// # Errors
/// [`AppError::NotFound`] for one that is neither the caller's own nor that of somebody whom the caller manages.
pub async fn revoke(app: &App, caller: &Caller, session_id: SessionId) -> Result<SessionRow, AppError> {
    let mut tx = app.store.begin("session.revoke", caller.scope()?).await?;
    let is_manager = caller.require(&MANAGERS).is_ok();
    let row = session::get(&mut tx, session_id)
        .await?
        .filter(|row| is_manager || caller.actor() == Actor::User(row.user_id))
        .ok_or(AppError::NotFound("session"))?;
    if row.revoked_at.is_some() {
        return Ok(row);
    }
    let now = app.clock.now();
    session::revoke(&mut tx, session_id, now).await?;
    let change = Change {
        tenant: row.tenant_id,
        action: "session.revoke",
        object: session_id.to_string(),
        detail: json!({"user_id": row.user_id}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    forget(app, &[session_id]);
    Ok(SessionRow { revoked_at: Some(now), ..row })
}

/// Ends all of the caller's own sessions but the `present` one; returns how many. A machine has none.
///
/// # Errors
/// [`AppError::Forbidden`] for a node.
pub async fn revoke_others(app: &App, caller: &Caller, present: Option<SessionId>) -> Result<usize, AppError> {
    let scope = caller.scope()?;
    let Actor::User(user_id) = caller.actor() else { return Ok(0) };
    let mut tx = app.store.begin("session.revoke_others", scope).await?;
    let ended = session::revoke_of_user(&mut tx, user_id, present, app.clock.now()).await?;
    if ended.is_empty() {
        return Ok(0);
    }
    let change = Change {
        tenant: caller.tenant_or_platform(None)?,
        action: "session.revoke_others",
        object: user_id.to_string(),
        detail: json!({"sessions": ended.len()}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    forget(app, &ended);
    Ok(ended.len())
}

/// Ends every session of a person but one inside the caller's transaction. Once that is committed, [`Ended::forget`]
/// makes it known on this server.
pub(crate) async fn revoke_all(
    app: &App,
    tx: &mut Tx,
    user_id: UserId,
    but: Option<SessionId>,
) -> Result<Ended, AppError> {
    Ok(Ended(session::revoke_of_user(tx, user_id, but, app.clock.now()).await?))
}

/// Sessions that a transaction ended, which this server may still take for good.
#[must_use = "without `forget` they hold on this server for five seconds more"]
pub(crate) struct Ended(Vec<SessionId>);

impl Ended {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Makes it known on this server, after the transaction.
    pub fn forget(self, app: &App) {
        forget(app, &self.0);
    }
}

fn forget(app: &App, ended: &[SessionId]) {
    for session in ended {
        app.sessions.holders().put(*session, None);
    }
}

/// Forgets sessions a day after they expired.
pub(crate) async fn forget_expired(app: &App) -> Result<(), AppError> {
    let before = app.clock.now().plus_secs(-REMEMBERED_S);
    loop {
        let mut tx = app.store.begin("session.forget", Scope::Operator).await?;
        let forgotten = session::forget_expired(&mut tx, before, FORGOTTEN).await?;
        tx.commit().await?;
        if forgotten < FORGOTTEN.unsigned_abs() {
            return Ok(());
        }
    }
}
