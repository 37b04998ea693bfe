//! Recurring work of the server.

use crate::world::World;
use sqlx::AssertSqlSafe;

/// Whether the task failed when it ran last, and in how many seconds from then it is due.
async fn state(world: &World, name: &str) -> (bool, i64) {
    sqlx::query_as(
        "select last_error is not null, extract(epoch from due_at - last_run_at)::bigint from task where name = $1",
    )
    .bind(name)
    .fetch_one(&mut world.owner().await)
    .await
    .unwrap()
}

async fn rename(world: &World, from: &str, to: &str) {
    let rename = AssertSqlSafe(format!("alter table {from} rename to {to}"));
    sqlx::raw_sql(rename).execute(&mut world.owner().await).await.unwrap();
}

#[tokio::test]
async fn a_task_that_failed_is_tried_again_shortly() {
    let world = World::new("2026-11-10T10:00:00Z").await;
    rename(&world, "request_key", "away").await;
    app::tasks::run_due(&world.app).await;
    assert_eq!(state(&world, "forget_keys").await, (true, 10));
    rename(&world, "away", "request_key").await;
    world.pass(10);
    app::tasks::run_due(&world.app).await;
    assert_eq!(state(&world, "forget_keys").await, (false, 3600));
}
