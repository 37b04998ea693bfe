//! What nodes prove themselves with: one speaks for its node alone.

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
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub hash: [u8; 32],
    /// Neither it nor its node is withdrawn.
    pub is_valid: bool,
}

/// A new credential.
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
        r#"select c.node_id, n.pool_id, c.hash, (c.revoked_at is null and n.state <> 'removed') as "is_valid!"
             from node_credential c join node n using (node_id) where c.prefix = $1"#,
        prefix
    )
    .fetch_optional(tx.connection())
    .await?;
    row.map(|r| {
        Ok(KnownCredential {
            node_id: r.node_id.into(),
            pool_id: r.pool_id.into(),
            hash: r.hash.try_into().map_err(|_| StoreError::corrupt("node_credential", "hash", prefix))?,
            is_valid: r.is_valid,
        })
    })
    .transpose()
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
