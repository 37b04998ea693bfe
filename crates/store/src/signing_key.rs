//! Key pairs of the built-in token issuer.

use crate::{error::StoreError, time::At, tx::Tx};
use types::Instant;

/// A key pair: ES256.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKeyRow {
    /// Names the pair in a token's header.
    pub kid: String,
    /// PKCS#8.
    pub private_key: Vec<u8>,
    /// The uncompressed point.
    pub public_key: Vec<u8>,
    pub created_at: Instant,
}

impl std::fmt::Debug for SigningKeyRow {
    /// Without the private key, so that no log carries it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKeyRow")
            .field("kid", &self.kid)
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// A new pair.
///
/// # Errors
/// What the database says.
pub async fn insert(tx: &mut Tx, row: &SigningKeyRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into signing_key (kid, private_key, public_key, created_at) values ($1, $2, $3, $4)",
        row.kid,
        row.private_key,
        row.public_key,
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The pairs that are not retired, the newest first.
///
/// # Errors
/// What the database says.
pub async fn current(tx: &mut Tx) -> Result<Vec<SigningKeyRow>, StoreError> {
    let rows = sqlx::query!(
        "select kid, private_key, public_key, created_at from signing_key
          where retired_at is null order by created_at desc, kid limit 16"
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| SigningKeyRow {
            kid: r.kid,
            private_key: r.private_key,
            public_key: r.public_key,
            created_at: r.created_at.0,
        })
        .collect())
}
