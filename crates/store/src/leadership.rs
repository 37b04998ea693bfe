//! The lease of a pool's leader.

use crate::{
    error::StoreError,
    time::At,
    tx::{Tx, waited},
};
use types::{Instant, PoolId, ServerId};

/// A lease that was obtained or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Counts the leaderships of the pool.
    pub term: i64,
    /// The pool's time as the last leader left it.
    pub pool_time: Instant,
}

/// Takes the pool's lease for `seconds` when nobody holds it; the term is one more than the last. Waits for the
/// transactions of the former leader that still hold the row. Lease times are Postgres' own, so servers need not agree
/// on the time.
///
/// # Errors
/// What the database says.
pub async fn take(
    tx: &mut Tx,
    pool: PoolId,
    server: ServerId,
    now: Instant,
    seconds: f64,
) -> Result<Option<Lease>, StoreError> {
    let row = sqlx::query!(
        "insert into pool_leadership (pool_id, term, holder, expires_at, pool_time)
         values ($1, 1, $2, clock_timestamp() + make_interval(secs => $3), $4)
         on conflict (pool_id) do update
            set term = pool_leadership.term + 1, holder = excluded.holder, expires_at = excluded.expires_at
            where pool_leadership.expires_at < clock_timestamp()
         returning term, pool_time",
        pool.uuid(),
        server.uuid(),
        seconds,
        At(now) as _,
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(row.map(|r| Lease { term: r.term, pool_time: r.pool_time.0 }))
}

/// Holds the lease on for `seconds` more and keeps the pool's time with it.
///
/// # Errors
/// [`StoreError::LeaseLost`] when another term has begun.
pub async fn renew(tx: &mut Tx, pool: PoolId, term: i64, pool_time: Instant, seconds: f64) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update pool_leadership
            set expires_at = clock_timestamp() + make_interval(secs => $3), pool_time = greatest(pool_time, $4)
          where pool_id = $1 and term = $2",
        pool.uuid(),
        term,
        seconds,
        At(pool_time) as _,
    )
    .execute(tx.connection())
    .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::LeaseLost) }
}

/// Keeps the pool's time with its leadership: what is written at that time is never followed by an earlier time.
///
/// # Errors
/// [`StoreError::LeaseLost`] when another term has begun.
pub async fn keep_time(tx: &mut Tx, pool: PoolId, term: i64, pool_time: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update pool_leadership set pool_time = greatest(pool_time, $3) where pool_id = $1 and term = $2",
        pool.uuid(),
        term,
        At(pool_time) as _,
    )
    .execute(tx.connection())
    .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::LeaseLost) }
}

/// Gives the lease up, so that another server need not wait for its end.
///
/// # Errors
/// What the database says.
pub async fn give_up(tx: &mut Tx, pool: PoolId, term: i64, pool_time: Instant) -> Result<(), StoreError> {
    sqlx::query!(
        "update pool_leadership set expires_at = '-infinity', pool_time = greatest(pool_time, $3)
          where pool_id = $1 and term = $2",
        pool.uuid(),
        term,
        At(pool_time) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Every transaction of a leader begins here: while it holds the row, no other term can begin.
///
/// # Errors
/// [`StoreError::LeaseLost`] when another term has begun.
pub async fn hold(tx: &mut Tx, pool: PoolId, term: i64) -> Result<(), StoreError> {
    let asked = std::time::Instant::now();
    let held = sqlx::query!(
        "select term from pool_leadership where pool_id = $1 and term = $2 for key share",
        pool.uuid(),
        term
    )
    .fetch_optional(tx.connection())
    .await?;
    waited("lease", asked);
    held.map(|_| ()).ok_or(StoreError::LeaseLost)
}

/// Who leads a pool now, and where the others reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    pub server_id: ServerId,
    pub term: i64,
    pub url: String,
}

/// The server that holds the pool's lease now; `None` while nobody does, or the holder said nowhere where it is.
///
/// # Errors
/// What the database says.
pub async fn leader(tx: &mut Tx, pool: PoolId) -> Result<Option<Leader>, StoreError> {
    let row = sqlx::query!(
        "select server_id, term, url from pool_leadership join server on server_id = holder
          where pool_id = $1 and expires_at >= clock_timestamp()",
        pool.uuid(),
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(row.map(|r| Leader { server_id: r.server_id.into(), term: r.term, url: r.url }))
}
