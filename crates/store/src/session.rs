//! Sessions: what a person's token names, so that it can be listed and ended.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, SessionId, TenantId, UserId};
use uuid::Uuid;

/// A login and how long it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    pub session_id: SessionId,
    /// Of the person; absent for people of the platform.
    pub tenant_id: Option<TenantId>,
    pub user_id: UserId,
    /// The address it was begun from, as far as known.
    pub address: Option<String>,
    /// What the client called itself, as far as known.
    pub user_agent: Option<String>,
    pub created_at: Instant,
    pub expires_at: Instant,
    /// Since when it no longer holds.
    pub revoked_at: Option<Instant>,
}

struct Raw {
    session_id: Uuid,
    tenant_id: Option<Uuid>,
    user_id: Uuid,
    address: Option<String>,
    user_agent: Option<String>,
    created_at: At,
    expires_at: At,
    revoked_at: Option<At>,
}

impl From<Raw> for SessionRow {
    fn from(raw: Raw) -> Self {
        Self {
            session_id: raw.session_id.into(),
            tenant_id: raw.tenant_id.map(TenantId::from),
            user_id: raw.user_id.into(),
            address: raw.address,
            user_agent: raw.user_agent,
            created_at: raw.created_at.0,
            expires_at: raw.expires_at.0,
            revoked_at: raw.revoked_at.map(|t| t.0),
        }
    }
}

/// A new session.
///
/// # Errors
/// The rule `session_of_tenant`.
pub async fn insert(tx: &mut Tx, row: &SessionRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into session (session_id, tenant_id, user_id, address, user_agent, created_at, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7)",
        row.session_id.uuid(),
        row.tenant_id.map(TenantId::uuid),
        row.user_id.uuid(),
        row.address,
        row.user_agent,
        At(row.created_at) as _,
        At(row.expires_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One session that the scope shows.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, session: SessionId) -> Result<Option<SessionRow>, StoreError> {
    let raw = sqlx::query_as!(
        Raw,
        "select session_id, tenant_id, user_id, address, user_agent, created_at, expires_at, revoked_at
           from session where session_id = $1",
        session.uuid()
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(raw.map(SessionRow::from))
}

/// A page of one person's sessions, or of everybody's that the scope shows where nobody is named, in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    user: Option<UserId>,
    after: Option<SessionId>,
    limit: i64,
) -> Result<Vec<SessionRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        "select session_id, tenant_id, user_id, address, user_agent, created_at, expires_at, revoked_at from session
          where ($1::uuid is null or user_id = $1) and ($2::uuid is null or session_id > $2) order by session_id limit $3",
        user.map(UserId::uuid),
        after.map(SessionId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(SessionRow::from).collect())
}

/// Ends a session; one that ended already keeps the first instant.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such session.
pub async fn revoke(tx: &mut Tx, session: SessionId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update session set revoked_at = coalesce(revoked_at, $2) where session_id = $1",
        session.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("session revoked", 1, done.rows_affected())
}

/// Ends every session of a person but one; returns those that it ended.
///
/// # Errors
/// What the database says.
pub async fn revoke_of_user(
    tx: &mut Tx,
    user: UserId,
    but: Option<SessionId>,
    now: Instant,
) -> Result<Vec<SessionId>, StoreError> {
    let ended = sqlx::query_scalar!(
        "update session set revoked_at = $3
          where user_id = $1 and revoked_at is null and session_id is distinct from $2 returning session_id",
        user.uuid(),
        but.map(SessionId::uuid),
        At(now) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(ended.into_iter().map(SessionId::from).collect())
}

/// Forgets at most `limit` sessions that expired before an instant; returns how many.
///
/// # Errors
/// What the database says.
pub async fn forget_expired(tx: &mut Tx, before: Instant, limit: i64) -> Result<u64, StoreError> {
    let done = sqlx::query!(
        "delete from session where session_id in (select session_id from session where expires_at < $1 limit $2)",
        At(before) as _,
        limit
    )
    .execute(tx.connection())
    .await?;
    Ok(done.rows_affected())
}
