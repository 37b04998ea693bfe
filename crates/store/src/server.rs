//! The servers that work on this database.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, ServerId};

/// A server, and where the others reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRow {
    pub server_id: ServerId,
    /// Such as `http://10.0.0.5:7070`.
    pub url: String,
    pub version: String,
    pub started_at: Instant,
}

/// Says where a server is reached, and that it lives. Postgres' own time is kept with it.
///
/// # Errors
/// What the database says.
pub async fn announce(tx: &mut Tx, server: &ServerRow) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "insert into server (server_id, url, version, started_at, seen_at) values ($1, $2, $3, $4, clock_timestamp())
         on conflict (server_id) do update set url = excluded.url, seen_at = excluded.seen_at",
        server.server_id.uuid(),
        server.url,
        server.version,
        At(server.started_at) as _,
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("server", 1, done.rows_affected())
}

/// A server that ends.
///
/// # Errors
/// What the database says.
pub async fn forget(tx: &mut Tx, server: ServerId) -> Result<(), StoreError> {
    sqlx::query!("delete from server where server_id = $1", server.uuid()).execute(tx.connection()).await?;
    Ok(())
}

/// Servers that were not seen for so many seconds, and ended without saying so. Says how many.
///
/// # Errors
/// What the database says.
pub async fn forget_unseen(tx: &mut Tx, seconds: f64) -> Result<u64, StoreError> {
    let done =
        sqlx::query!("delete from server where seen_at < clock_timestamp() - make_interval(secs => $1)", seconds,)
            .execute(tx.connection())
            .await?;
    Ok(done.rows_affected())
}
