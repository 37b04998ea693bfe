//! Recurring work: no input, harmless when repeated, shared by all servers.

use crate::{App, balance, error::AppError, scheduler::Command, server};
use std::{future::Future, time::Duration};
use store::{Scope, task};
use types::Span;

const MINUTE_S: i64 = 60;
/// A task that failed is due again so soon, in seconds: most often Postgres was away for a moment.
const RETRY_S: i64 = 10;

/// Runs the recurring tasks until `stop` ends: each when it is due, on whichever server comes first.
pub async fn run(app: App, every: Duration, stop: impl Future<Output = ()>) {
    let mut timer = tokio::time::interval(every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return,
            _ = timer.tick() => run_due(&app).await,
        }
    }
}

/// Runs each task that is due now.
pub async fn run_due(app: &App) {
    once(app, "make_months", 3600, make_months(app)).await;
    once(app, "end_periods", MINUTE_S, end_periods(app)).await;
    once(app, "forget_keys", 3600, forget_keys(app)).await;
    once(app, "forget_sessions", 3600, crate::session::forget_expired(app)).await;
    once(app, "forget_servers", 3600, server::forget_unseen(app)).await;
    once(app, "check_balance", 3600, check_balance(app)).await;
}

/// Runs a task when it is due, and says how it went.
async fn once(app: &App, task: &'static str, every_s: i64, work: impl Future<Output = Result<(), AppError>>) {
    let begun = std::time::Instant::now();
    let (outcome, ran) = match run_when_due(app, task, every_s, work).await {
        Ok(false) => return,
        Ok(true) => ("succeeded", true),
        Err(error) => {
            tracing::warn!(task, %error, "the recurring task failed and is tried again when next due");
            ("failed", false)
        }
    };
    metrics::counter!("gpuledger_task_runs_total", "task" => task, "outcome" => outcome).increment(1);
    metrics::histogram!("gpuledger_task_seconds", "task" => task).record(begun.elapsed());
    if ran {
        let at = u32::try_from(app.clock.now().as_millis() / 1000).unwrap_or(u32::MAX);
        metrics::gauge!("gpuledger_task_last_success_timestamp_seconds", "task" => task).set(at);
        tracing::debug!(task, "the recurring task ran");
    }
}

/// Whether it was due and ran. It is put off before it runs, so that no other server runs it meanwhile and no transaction
/// stays open all the time; by a minute only, so that one whose server dies in it is not left for an hour.
async fn run_when_due(
    app: &App,
    name: &'static str,
    every_s: i64,
    work: impl Future<Output = Result<(), AppError>>,
) -> Result<bool, AppError> {
    let now = app.clock.now();
    let mut tx = app.store.begin("claim_task", Scope::Operator).await?;
    if !task::claim(&mut tx, name, now).await? {
        return Ok(false);
    }
    task::finish(&mut tx, name, now, now.plus_secs(every_s.min(MINUTE_S)), None).await?;
    tx.commit().await?;
    let result = work.await;
    let (due_in_s, error) = match &result {
        Ok(()) => (every_s, None),
        Err(error) => (every_s.min(RETRY_S), Some(error.to_string())),
    };
    let mut tx = app.store.begin("finish_task", Scope::Operator).await?;
    task::finish(&mut tx, name, now, now.plus_secs(due_in_s), error.as_deref()).await?;
    tx.commit().await?;
    result.map(|()| true)
}

/// This month's and the next month's tables of readings.
async fn make_months(app: &App) -> Result<(), AppError> {
    let now = app.clock.now();
    app.make_reading_month(now).await?;
    app.make_reading_month(now.plus_secs(31 * 86_400)).await
}

/// Makes open meters final up to the start of each tenant's present period.
async fn end_periods(app: &App) -> Result<(), AppError> {
    let now = app.clock.now();
    let mut tx = app.store.begin("end_periods", Scope::Operator).await?;
    let tenants = store::tenant::page(&mut tx, None, i64::MAX).await?;
    drop(tx);
    let pools = app.pools().await?;
    // one pool's trouble is no other's
    let mut failed = None;
    for tenant in tenants {
        let edge = billing::period::month_of(now, &tenant.zone).span.start();
        for pool in &pools {
            if let Err(error) = app.ask(*pool, Command::Cut(tenant.tenant_id, edge)).await {
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Keys are good for seven days.
async fn forget_keys(app: &App) -> Result<(), AppError> {
    let mut tx = app.store.begin("forget_keys", Scope::Operator).await?;
    store::request_key::forget_before(&mut tx, app.clock.now().plus_secs(-7 * 86_400)).await?;
    tx.commit().await?;
    Ok(())
}

/// Says at once, not only at the end of the month, when the last day's hours do not balance.
async fn check_balance(app: &App) -> Result<(), AppError> {
    let now = app.clock.now();
    let day = Span::clamped(now.plus_secs(-86_400), now);
    let mut tx = app.store.begin_snapshot("check_balance", Scope::Operator).await?;
    let gpus: Vec<_> =
        store::gpu::page(&mut tx, None, None, None, i64::MAX).await?.into_iter().map(|gpu| gpu.gpu_id).collect();
    let wrong = balance::imbalances(&balance::of_gpus(&mut tx, &gpus, day, now).await?);
    metrics::gauge!("gpuledger_balance_differences").set(u32::try_from(wrong.len()).unwrap_or(u32::MAX));
    for imbalance in wrong.iter().take(20) {
        let crate::error::Imbalance { gpu_id, hour, difference } = imbalance;
        tracing::error!(%gpu_id, %hour, %difference, "a GPU's hour does not balance");
    }
    Ok(())
}
