//! Signs of life: a report every few seconds and at once after each change, answered with the node's orders.

use crate::{Shared, client::ServerClient};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use types::wire::NodeOrders;

/// Between two reports, however much changes.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Reports until `stop`. What fails is logged when it begins and when it ends.
pub(crate) async fn run(shared: Arc<Shared>, client: ServerClient, interval: Duration, stop: CancellationToken) {
    let mut failing = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            result = report(&shared, &client) => match result {
                Ok(()) if failing => {
                    tracing::info!("the server answers reports again");
                    failing = false;
                }
                Ok(()) => {}
                Err(error) if !failing => {
                    tracing::warn!(error, "the server does not answer reports");
                    failing = true;
                }
                Err(error) => tracing::debug!(error, "the server does not answer reports"),
            },
        }
        shared.spool_readings().await;
        tokio::time::sleep(MIN_INTERVAL.min(interval)).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval.saturating_sub(MIN_INTERVAL)) => {}
            () = shared.report_now.notified() => {}
        }
    }
}

async fn report(shared: &Shared, client: &ServerClient) -> Result<(), String> {
    let report = shared.node().report(shared.clock.now());
    let sent_ms = shared.clock.boot_millis();
    let answer = client.post("/v1/node-reports", &report).await.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        return Err(format!("status {}: {}", answer.status, answer.detail()));
    }
    let orders: NodeOrders = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    shared.clock.observe(sent_ms, orders.server_time, &shared.state);
    let changed = shared.node().take_orders(&report, orders, shared.clock.now());
    if changed {
        // so that a short workload is seen at all
        shared.sample_now.notify_one();
    }
    shared.orders_seen.send_modify(|count| *count += 1);
    Ok(())
}
