//! People as token issuers know them.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, TenantId, UserId};

/// That a subject of an issuer is a person here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipRow {
    /// Claim `iss`, character for character.
    pub issuer: String,
    /// Claim `sub`, which the issuer gives to nobody else.
    pub subject: String,
    /// The person's; absent for people of the platform.
    pub tenant_id: Option<TenantId>,
    pub user_id: UserId,
    pub created_at: Instant,
}

/// A new membership.
///
/// # Errors
/// The rules `membership_key`, when the subject is somebody here already, and `membership_of_user`.
pub async fn insert(tx: &mut Tx, row: &MembershipRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into membership (issuer, subject, tenant_id, user_id, created_at) values ($1, $2, $3, $4, $5)",
        row.issuer,
        row.subject,
        row.tenant_id.map(TenantId::uuid),
        row.user_id.uuid(),
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Who a subject of an issuer is here, disabled or not.
///
/// # Errors
/// What the database says.
pub async fn user_of(tx: &mut Tx, issuer: &str, subject: &str) -> Result<Option<UserId>, StoreError> {
    let found =
        sqlx::query_scalar!("select user_id from membership where issuer = $1 and subject = $2", issuer, subject)
            .fetch_optional(tx.connection())
            .await?;
    Ok(found.map(UserId::from))
}
