//! The server's settings: whether what it acknowledges lasts, how many may connect, whether its log is archived.

use crate::{error::StoreError, tx::Tx};
use types::Instant;

/// Settings without which an acknowledged change may be gone after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    pub fsync: bool,
    pub full_page_writes: bool,
    /// As the service's own connections have it, such as `on`.
    pub synchronous_commit: String,
}

/// Reads them.
///
/// # Errors
/// What the database says.
pub async fn durability(tx: &mut Tx) -> Result<Durability, StoreError> {
    let row = sqlx::query!(
        r#"select current_setting('fsync') = 'on' as "fsync!", current_setting('full_page_writes') = 'on' as "full_page_writes!",
            current_setting('synchronous_commit') as "synchronous_commit!""#
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(Durability {
        fsync: row.fsync,
        full_page_writes: row.full_page_writes,
        synchronous_commit: row.synchronous_commit,
    })
}

/// How many may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// `max_connections`.
    pub most: i32,
    /// Those of them that are kept for superusers and other roles.
    pub reserved: i32,
    /// In use now, by whomever.
    pub used: i32,
}

/// Counts connections to the whole server.
///
/// # Errors
/// What the database says.
pub async fn connections(tx: &mut Tx) -> Result<Connections, StoreError> {
    let row = sqlx::query!(
        r#"select current_setting('max_connections')::integer as "most!",
            current_setting('superuser_reserved_connections')::integer
              + coalesce(current_setting('reserved_connections', true), '0')::integer as "reserved!",
            (select coalesce(sum(numbackends), 0)::integer from pg_stat_database) as "used!""#
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(Connections { most: row.most, reserved: row.reserved, used: row.used })
}

/// How the server's log is archived, without which there is no restore to a point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Whether `archive_mode` is on.
    pub is_on: bool,
    pub last_archived_at: Option<Instant>,
    /// Failed tries since the statistics were begun.
    pub failures: i64,
    pub last_failed_at: Option<Instant>,
    pub last_failed_file: Option<String>,
}

/// Reads the archiver's statistics.
///
/// # Errors
/// What the database says.
pub async fn archive(tx: &mut Tx) -> Result<Archive, StoreError> {
    let row = sqlx::query!(
        r#"select current_setting('archive_mode') <> 'off' as "is_on!", last_archived_time, failed_count as "failures!",
            last_failed_time, last_failed_wal
           from pg_stat_archiver"#
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(Archive {
        is_on: row.is_on,
        last_archived_at: row.last_archived_time.map(|t| t.0),
        failures: row.failures,
        last_failed_at: row.last_failed_time.map(|t| t.0),
        last_failed_file: row.last_failed_wal,
    })
}
