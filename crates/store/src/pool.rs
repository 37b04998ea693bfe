//! Pools: nodes with one scheduler, and their graces.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, Name, PoolId};
use uuid::Uuid;

/// How long a pool waits before it acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Graces {
    /// Seconds that a hold waits for confirmation; more than 0.
    pub hold_grace_s: u32,
    /// Seconds without a word after which a node is silent; more than 0.
    pub silence_grace_s: u32,
    /// Seconds of silence after which what ran on a node is lost; not less than `silence_grace_s`.
    pub lost_after_s: u32,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    pub pool_id: PoolId,
    /// Unique among pools.
    pub name: Name,
    pub graces: Graces,
    pub created_at: Instant,
}

struct Raw {
    pool_id: Uuid,
    name: String,
    hold_grace_s: i32,
    silence_grace_s: i32,
    lost_after_s: i32,
    created_at: At,
}

impl Raw {
    fn parse(self) -> Result<PoolRow, StoreError> {
        let seconds = |column, n: i32| u32::try_from(n).map_err(|_| StoreError::corrupt("pool", column, n));
        Ok(PoolRow {
            pool_id: self.pool_id.into(),
            name: self.name.parse().map_err(|_| StoreError::corrupt("pool", "name", &self.name))?,
            graces: Graces {
                hold_grace_s: seconds("hold_grace_s", self.hold_grace_s)?,
                silence_grace_s: seconds("silence_grace_s", self.silence_grace_s)?,
                lost_after_s: seconds("lost_after_s", self.lost_after_s)?,
            },
            created_at: self.created_at.0,
        })
    }
}

fn column(seconds: u32) -> i32 {
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// A new pool.
///
/// # Errors
/// The rules `pool_name_is_unique` and `pool_graces_are_positive`.
pub async fn insert(tx: &mut Tx, row: &PoolRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into pool (pool_id, name, hold_grace_s, silence_grace_s, lost_after_s, created_at)
         values ($1, $2, $3, $4, $5, $6)",
        row.pool_id.uuid(),
        row.name.as_str(),
        column(row.graces.hold_grace_s),
        column(row.graces.silence_grace_s),
        column(row.graces.lost_after_s),
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One pool.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, pool: PoolId) -> Result<Option<PoolRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select pool_id, name, hold_grace_s, silence_grace_s, lost_after_s, created_at from pool where pool_id = $1",
        pool.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of pools in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(tx: &mut Tx, after: Option<PoolId>, limit: i64) -> Result<Vec<PoolRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select pool_id, name, hold_grace_s, silence_grace_s, lost_after_s, created_at from pool
          where $1::uuid is null or pool_id > $1 order by pool_id limit $2",
        after.map(PoolId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Locks a pool's row until the transaction ends, so that two changes of its graces follow one another.
///
/// # Errors
/// What the database says.
pub async fn lock(tx: &mut Tx, pool: PoolId) -> Result<Option<PoolRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select pool_id, name, hold_grace_s, silence_grace_s, lost_after_s, created_at from pool
          where pool_id = $1 for no key update",
        pool.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// Sets a pool's graces.
///
/// # Errors
/// The rule `pool_graces_are_positive`; [`StoreError::RowCount`] when there is no such pool.
pub async fn set_graces(tx: &mut Tx, pool: PoolId, graces: Graces) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update pool set hold_grace_s = $2, silence_grace_s = $3, lost_after_s = $4 where pool_id = $1",
        pool.uuid(),
        column(graces.hold_grace_s),
        column(graces.silence_grace_s),
        column(graces.lost_after_s),
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("pool graces", 1, done.rows_affected())
}
