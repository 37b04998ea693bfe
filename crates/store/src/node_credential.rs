//! What nodes prove themselves with: one speaks for its node alone. A new one waits until it is first used; that use
//! supersedes all others of its node.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{CredentialId, Instant, NodeId, PoolId};

/// A credential as it is stored: without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCredentialRow {
    pub credential_id: CredentialId,
    pub node_id: NodeId,
    pub prefix: String,
    pub hash: [u8; 32],
    pub created_at: Instant,
}

/// A credential that is presented, with what it would speak for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCredential {
    pub credential_id: CredentialId,
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub hash: [u8; 32],
    /// Neither it nor its node is withdrawn.
    pub is_valid: bool,
    /// Absent while it waits.
    pub first_used_at: Option<Instant>,
    /// Since when another one of the node is used.
    pub superseded_at: Option<Instant>,
}

/// A new credential, which waits until it is first used.
///
/// # Errors
/// The rules `node_credential_prefix_is_unique` and `node_credential_of_node`.
pub async fn insert(tx: &mut Tx, row: &NodeCredentialRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into node_credential (credential_id, node_id, prefix, hash, created_at) values ($1, $2, $3, $4, $5)",
        row.credential_id.uuid(),
        row.node_id.uuid(),
        row.prefix,
        &row.hash[..],
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The credential with this prefix.
///
/// # Errors
/// What the database says.
pub async fn by_prefix(tx: &mut Tx, prefix: &str) -> Result<Option<KnownCredential>, StoreError> {
    let row = sqlx::query!(
        r#"select c.credential_id, c.node_id, n.pool_id, c.hash, c.first_used_at,
                  c.superseded_at,
                  (c.revoked_at is null and n.state <> 'removed') as "is_valid!"
             from node_credential c join node n using (node_id) where c.prefix = $1"#,
        prefix
    )
    .fetch_optional(tx.connection())
    .await?;
    row.map(|r| {
        Ok(KnownCredential {
            credential_id: r.credential_id.into(),
            node_id: r.node_id.into(),
            pool_id: r.pool_id.into(),
            hash: r.hash.try_into().map_err(|_| StoreError::corrupt("node_credential", "hash", prefix))?,
            is_valid: r.is_valid,
            first_used_at: r.first_used_at.map(|t| t.0),
            superseded_at: r.superseded_at.map(|t| t.0),
        })
    })
    .transpose()
}

/// Notes that a credential is used: if it is the first time, all others of its node are superseded. Returns whether it
/// was.
///
/// # Errors
/// What the database says.
pub async fn use_first(tx: &mut Tx, credential: CredentialId, node: NodeId, now: Instant) -> Result<bool, StoreError> {
    let first = sqlx::query!(
        "update node_credential set first_used_at = $2
          where credential_id = $1 and first_used_at is null and revoked_at is null and superseded_at is null",
        credential.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    if first.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        "update node_credential set superseded_at = $3
          where node_id = $1 and credential_id <> $2 and revoked_at is null and superseded_at is null",
        node.uuid(),
        credential.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(true)
}

/// Withdraws the credentials of a node that were made before an instant and wait still; returns how many younger ones do.
///
/// # Errors
/// What the database says.
pub async fn drop_waiting(tx: &mut Tx, node: NodeId, before: Instant, now: Instant) -> Result<i64, StoreError> {
    sqlx::query!(
        "update node_credential set revoked_at = $3
          where node_id = $1 and created_at < $2 and first_used_at is null and revoked_at is null
            and superseded_at is null",
        node.uuid(),
        At(before) as _,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    let waiting = sqlx::query_scalar!(
        r#"select count(*) as "count!" from node_credential
            where node_id = $1 and first_used_at is null and revoked_at is null and superseded_at is null"#,
        node.uuid()
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(waiting)
}

/// Revokes every credential of a node; returns their prefixes.
///
/// # Errors
/// What the database says.
pub async fn revoke_all(tx: &mut Tx, node: NodeId, now: Instant) -> Result<Vec<String>, StoreError> {
    let prefixes = sqlx::query_scalar!(
        "update node_credential set revoked_at = $2 where node_id = $1 and revoked_at is null returning prefix",
        node.uuid(),
        At(now) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(prefixes)
}
