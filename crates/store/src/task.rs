//! When recurring work is due, shared by all servers.

use crate::{error::StoreError, time::At, tx::Tx};
use types::Instant;

/// Claims a task that is due, until the end of the transaction; another server that asks meanwhile gets `false`.
///
/// # Errors
/// What the database says.
pub async fn claim(tx: &mut Tx, name: &str, now: Instant) -> Result<bool, StoreError> {
    sqlx::query!("insert into task (name, due_at) values ($1, $2) on conflict do nothing", name, At(now) as _)
        .execute(tx.connection())
        .await?;
    let due = sqlx::query_scalar!(
        "select name from task where name = $1 and due_at <= $2 for update skip locked",
        name,
        At(now) as _
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(due.is_some())
}

/// Records how a claimed task went and when it is due next.
///
/// # Errors
/// [`StoreError::RowCount`] when it was not claimed.
pub async fn finish(
    tx: &mut Tx,
    name: &str,
    now: Instant,
    next: Instant,
    error: Option<&str>,
) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update task set due_at = $2, last_run_at = $3, last_error = $4 where name = $1",
        name,
        At(next) as _,
        At(now) as _,
        error
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("task", 1, done.rows_affected())
}
