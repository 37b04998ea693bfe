//! Invitations: each lets one person make one account.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, InvitationId, Role, TenantId};
use uuid::Uuid;

/// An invitation as it is stored: without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvitationRow {
    pub invitation_id: InvitationId,
    /// Absent for people of the platform.
    pub tenant_id: Option<TenantId>,
    /// In lower case; the account gets it.
    pub email: String,
    pub role: Role,
    /// The part of the secret that is none: it finds the row.
    pub prefix: String,
    pub hash: [u8; 32],
    pub created_at: Instant,
    /// Who invites, as audit names it.
    pub created_by: String,
    pub expires_at: Instant,
    pub accepted_at: Option<Instant>,
    pub revoked_at: Option<Instant>,
}

struct Raw {
    invitation_id: Uuid,
    tenant_id: Option<Uuid>,
    email: String,
    role: String,
    prefix: String,
    hash: Vec<u8>,
    created_at: At,
    created_by: String,
    expires_at: At,
    accepted_at: Option<At>,
    revoked_at: Option<At>,
}

impl Raw {
    fn parse(self) -> Result<InvitationRow, StoreError> {
        Ok(InvitationRow {
            invitation_id: self.invitation_id.into(),
            tenant_id: self.tenant_id.map(TenantId::from),
            email: self.email,
            role: self.role.parse().map_err(|_| StoreError::corrupt("invitation", "role", &self.role))?,
            hash: self.hash.try_into().map_err(|_| StoreError::corrupt("invitation", "hash", &self.prefix))?,
            prefix: self.prefix,
            created_at: self.created_at.0,
            created_by: self.created_by,
            expires_at: self.expires_at.0,
            accepted_at: self.accepted_at.map(|t| t.0),
            revoked_at: self.revoked_at.map(|t| t.0),
        })
    }
}

/// A new invitation.
///
/// # Errors
/// The rules `invitation_prefix_is_unique`, `invitation_of_tenant` and `invitation_role_fits_tenant`.
pub async fn insert(tx: &mut Tx, row: &InvitationRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into invitation (invitation_id, tenant_id, email, role, prefix, hash, created_at, created_by, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        row.invitation_id.uuid(),
        row.tenant_id.map(TenantId::uuid),
        row.email,
        row.role.name(),
        row.prefix,
        &row.hash[..],
        At(row.created_at) as _,
        row.created_by,
        At(row.expires_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The invitation with this prefix, if it is neither accepted nor revoked nor expired.
///
/// # Errors
/// What the database says.
pub async fn usable(tx: &mut Tx, prefix: &str, now: Instant) -> Result<Option<InvitationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select invitation_id, tenant_id, email, role, prefix, hash, created_at, created_by, expires_at, accepted_at,
                revoked_at from invitation
          where prefix = $1 and accepted_at is null and revoked_at is null and expires_at > $2",
        prefix,
        At(now) as _
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// Marks an invitation as accepted. Of two that accept at once, the second waits for the first and then changes nothing:
/// whether this one was the first.
///
/// # Errors
/// What the database says.
pub async fn set_accepted(tx: &mut Tx, invitation: InvitationId, now: Instant) -> Result<bool, StoreError> {
    let done = sqlx::query!(
        "update invitation set accepted_at = $2
          where invitation_id = $1 and accepted_at is null and revoked_at is null and expires_at > $2",
        invitation.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// One invitation that the scope shows; its row stays locked, so that it is not accepted meanwhile.
///
/// # Errors
/// What the database says.
pub async fn lock(tx: &mut Tx, invitation: InvitationId) -> Result<Option<InvitationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select invitation_id, tenant_id, email, role, prefix, hash, created_at, created_by, expires_at, accepted_at,
                revoked_at from invitation where invitation_id = $1 for no key update",
        invitation.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of one tenant's invitations, or of the platform's where no tenant is given, in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    after: Option<InvitationId>,
    limit: i64,
) -> Result<Vec<InvitationRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select invitation_id, tenant_id, email, role, prefix, hash, created_at, created_by, expires_at, accepted_at,
                revoked_at from invitation
          where tenant_id is not distinct from $1 and ($2::uuid is null or invitation_id > $2)
          order by invitation_id limit $3",
        tenant.map(TenantId::uuid),
        after.map(InvitationId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Revokes an invitation; one that is revoked already keeps the first instant.
///
/// # Errors
/// [`StoreError::RowCount`] when there is none that is not accepted.
pub async fn revoke(tx: &mut Tx, invitation: InvitationId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update invitation set revoked_at = coalesce(revoked_at, $2) where invitation_id = $1 and accepted_at is null",
        invitation.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("invitation revoked", 1, done.rows_affected())
}

/// Revokes whatever somebody's invitations have not let in yet, and says how many.
///
/// # Errors
/// What the database says.
pub async fn revoke_all_by(tx: &mut Tx, created_by: &str, now: Instant) -> Result<u64, StoreError> {
    let done = sqlx::query!(
        "update invitation set revoked_at = $2
          where created_by = $1 and accepted_at is null and revoked_at is null and expires_at > $2",
        created_by,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(done.rows_affected())
}
