//! API keys: how machines of a tenant or of the platform prove themselves.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, KeyId, Name, Role, TenantId};
use uuid::Uuid;

/// A key. Its secret is nowhere, only the secret's SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyRow {
    pub key_id: KeyId,
    /// Absent for keys of the platform.
    pub tenant_id: Option<TenantId>,
    pub name: Name,
    pub role: Role,
    /// The part of the key that is no secret: it finds the row.
    pub prefix: String,
    pub hash: [u8; 32],
    pub created_at: Instant,
    /// Until when it is good; absent where it does not end by itself.
    pub expires_at: Option<Instant>,
    /// When it was last used, to within some minutes; absent where it never was.
    pub last_used_at: Option<Instant>,
    pub revoked_at: Option<Instant>,
}

struct Raw {
    key_id: Uuid,
    tenant_id: Option<Uuid>,
    name: String,
    role: String,
    prefix: String,
    hash: Vec<u8>,
    created_at: At,
    expires_at: Option<At>,
    last_used_at: Option<At>,
    revoked_at: Option<At>,
}

impl Raw {
    fn parse(self) -> Result<ApiKeyRow, StoreError> {
        Ok(ApiKeyRow {
            key_id: self.key_id.into(),
            tenant_id: self.tenant_id.map(TenantId::from),
            name: self.name.parse().map_err(|_| StoreError::corrupt("api_key", "name", &self.name))?,
            role: self.role.parse().map_err(|_| StoreError::corrupt("api_key", "role", &self.role))?,
            hash: self.hash.try_into().map_err(|_| StoreError::corrupt("api_key", "hash", &self.prefix))?,
            prefix: self.prefix,
            created_at: self.created_at.0,
            expires_at: self.expires_at.map(|t| t.0),
            last_used_at: self.last_used_at.map(|t| t.0),
            revoked_at: self.revoked_at.map(|t| t.0),
        })
    }
}

/// A new key.
///
/// # Errors
/// The rules `api_key_prefix_is_unique`, `api_key_of_tenant` and `api_key_role_fits_tenant`.
pub async fn insert(tx: &mut Tx, row: &ApiKeyRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into api_key (key_id, tenant_id, name, role, prefix, hash, created_at, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        row.key_id.uuid(),
        row.tenant_id.map(TenantId::uuid),
        row.name.as_str(),
        row.role.name(),
        row.prefix,
        &row.hash[..],
        At(row.created_at) as _,
        row.expires_at.map(At) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One key that the scope shows.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, key: KeyId) -> Result<Option<ApiKeyRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select key_id, tenant_id, name, role, prefix, hash, created_at, expires_at, last_used_at, revoked_at
           from api_key where key_id = $1",
        key.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// The key with this prefix, revoked or not.
///
/// # Errors
/// What the database says.
pub async fn by_prefix(tx: &mut Tx, prefix: &str) -> Result<Option<ApiKeyRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select key_id, tenant_id, name, role, prefix, hash, created_at, expires_at, last_used_at, revoked_at
           from api_key where prefix = $1",
        prefix
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of one tenant's keys, or of the platform's where no tenant is given, in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    after: Option<KeyId>,
    limit: i64,
) -> Result<Vec<ApiKeyRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select key_id, tenant_id, name, role, prefix, hash, created_at, expires_at, last_used_at, revoked_at
           from api_key
          where tenant_id is not distinct from $1 and ($2::uuid is null or key_id > $2) order by key_id limit $3",
        tenant.map(TenantId::uuid),
        after.map(KeyId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Notes that a key is used.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such key.
pub async fn set_last_used(tx: &mut Tx, key: KeyId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!("update api_key set last_used_at = $2 where key_id = $1", key.uuid(), At(now) as _)
        .execute(tx.connection())
        .await?;
    StoreError::expect_rows("key used", 1, done.rows_affected())
}

/// Revokes a key; one that is revoked already keeps the first instant.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such key.
pub async fn revoke(tx: &mut Tx, key: KeyId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update api_key set revoked_at = coalesce(revoked_at, $2) where key_id = $1",
        key.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("key revoked", 1, done.rows_affected())
}
