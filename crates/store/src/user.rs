//! People who log in.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, Name, Role, TenantId, UserId};
use uuid::Uuid;

/// A person.
#[derive(Clone, PartialEq, Eq)]
pub struct UserRow {
    pub user_id: UserId,
    /// Absent for people of the platform.
    pub tenant_id: Option<TenantId>,
    /// In lower case; unique over all tenants, because one logs in with it.
    pub email: String,
    pub name: Name,
    pub role: Role,
    /// Argon2id in PHC form; absent for who comes in through a token issuer alone.
    pub password_hash: Option<String>,
    pub created_at: Instant,
    /// Since when the person may no longer do anything.
    pub disabled_at: Option<Instant>,
}

impl std::fmt::Debug for UserRow {
    /// Without the hash, so that no log carries it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserRow")
            .field("user_id", &self.user_id)
            .field("tenant_id", &self.tenant_id)
            .field("role", &self.role)
            .field("disabled_at", &self.disabled_at)
            .finish_non_exhaustive()
    }
}

struct Raw {
    user_id: Uuid,
    tenant_id: Option<Uuid>,
    email: String,
    name: String,
    role: String,
    password_hash: Option<String>,
    created_at: At,
    disabled_at: Option<At>,
}

impl Raw {
    fn parse(self) -> Result<UserRow, StoreError> {
        Ok(UserRow {
            user_id: self.user_id.into(),
            tenant_id: self.tenant_id.map(TenantId::from),
            email: self.email,
            name: self.name.parse().map_err(|_| StoreError::corrupt("user_account", "name", &self.name))?,
            role: self.role.parse().map_err(|_| StoreError::corrupt("user_account", "role", &self.role))?,
            password_hash: self.password_hash,
            created_at: self.created_at.0,
            disabled_at: self.disabled_at.map(|t| t.0),
        })
    }
}

/// A new person.
///
/// # Errors
/// The rules `user_email_is_unique`, `user_account_of_tenant` and `user_role_fits_tenant`.
pub async fn insert(tx: &mut Tx, row: &UserRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into user_account (user_id, tenant_id, email, name, role, password_hash, created_at)
         values ($1, $2, $3, $4, $5, $6, $7)",
        row.user_id.uuid(),
        row.tenant_id.map(TenantId::uuid),
        row.email,
        row.name.as_str(),
        row.role.name(),
        row.password_hash,
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One person that the scope shows.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, user: UserId) -> Result<Option<UserRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select user_id, tenant_id, email, name, role, password_hash, created_at, disabled_at
           from user_account where user_id = $1",
        user.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// One person that the scope shows, kept as it is until the transaction ends.
///
/// # Errors
/// What the database says.
pub async fn hold(tx: &mut Tx, user: UserId) -> Result<Option<UserRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select user_id, tenant_id, email, name, role, password_hash, created_at, disabled_at
           from user_account where user_id = $1 for share",
        user.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// The person who logs in with this address, given in lower case.
///
/// # Errors
/// What the database says.
pub async fn by_email(tx: &mut Tx, email: &str) -> Result<Option<UserRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select user_id, tenant_id, email, name, role, password_hash, created_at, disabled_at
           from user_account where email = $1",
        email
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// Whether the platform has an operator who is not disabled.
///
/// # Errors
/// What the database says.
pub async fn has_operator(tx: &mut Tx) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar!(
        r#"select exists (select from user_account where role = 'operator' and disabled_at is null) as "found!""#
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(found)
}

/// A page of one tenant's people, or of the platform's where no tenant is given, in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    after: Option<UserId>,
    limit: i64,
) -> Result<Vec<UserRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select user_id, tenant_id, email, name, role, password_hash, created_at, disabled_at from user_account
          where tenant_id is not distinct from $1 and ($2::uuid is null or user_id > $2) order by user_id limit $3",
        tenant.map(TenantId::uuid),
        after.map(UserId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Disables a person; one who is disabled already keeps the first instant.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such person.
pub async fn disable(tx: &mut Tx, user: UserId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update user_account set disabled_at = coalesce(disabled_at, $2) where user_id = $1",
        user.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("user disabled", 1, done.rows_affected())
}

/// Sets another password's hash.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such person.
pub async fn set_password_hash(tx: &mut Tx, user: UserId, hash: &str) -> Result<(), StoreError> {
    let done = sqlx::query!("update user_account set password_hash = $2 where user_id = $1", user.uuid(), hash)
        .execute(tx.connection())
        .await?;
    StoreError::expect_rows("password", 1, done.rows_affected())
}
