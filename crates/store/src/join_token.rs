//! One-time tokens with which nodes join a pool.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, JoinTokenId, PoolId};

/// A token as it is stored: without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTokenRow {
    pub join_token_id: JoinTokenId,
    pub pool_id: PoolId,
    pub prefix: String,
    pub hash: [u8; 32],
    pub created_at: Instant,
    pub expires_at: Instant,
}

/// A new token.
///
/// # Errors
/// The rules `join_token_prefix_is_unique` and `join_token_of_pool`.
pub async fn insert(tx: &mut Tx, row: &JoinTokenRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into join_token (join_token_id, pool_id, prefix, hash, created_at, expires_at)
         values ($1, $2, $3, $4, $5, $6)",
        row.join_token_id.uuid(),
        row.pool_id.uuid(),
        row.prefix,
        &row.hash[..],
        At(row.created_at) as _,
        At(row.expires_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The token with this prefix, if it is neither used nor expired; its row stays locked, so that of two joins with one
/// token the second waits and then finds it used.
///
/// # Errors
/// What the database says.
pub async fn lock_usable(tx: &mut Tx, prefix: &str, now: Instant) -> Result<Option<JoinTokenRow>, StoreError> {
    let row = sqlx::query!(
        "select join_token_id, pool_id, prefix, hash, created_at, expires_at from join_token
          where prefix = $1 and used_at is null and expires_at > $2 for no key update",
        prefix,
        At(now) as _
    )
    .fetch_optional(tx.connection())
    .await?;
    row.map(|r| {
        Ok(JoinTokenRow {
            join_token_id: r.join_token_id.into(),
            pool_id: r.pool_id.into(),
            hash: r.hash.try_into().map_err(|_| StoreError::corrupt("join_token", "hash", prefix))?,
            prefix: r.prefix,
            created_at: r.created_at.0,
            expires_at: r.expires_at.0,
        })
    })
    .transpose()
}

/// Marks a token as used.
///
/// # Errors
/// [`StoreError::RowCount`] when it was used before.
pub async fn set_used(tx: &mut Tx, token: JoinTokenId, now: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update join_token set used_at = $2 where join_token_id = $1 and used_at is null",
        token.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("join token used", 1, done.rows_affected())
}
