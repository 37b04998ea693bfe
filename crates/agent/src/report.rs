//! Signs of life: a report every few seconds and at once after each change, answered with the node's orders.

use crate::{Shared, client::ServerClient};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use types::wire::{NodeOrders, NodeReport};

/// Between two reports, however much changes.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// While another agent speaks for the node: the host may have rebooted so fast that its former boot seems to live still.
const WHILE_ANOTHER_SPEAKS: Duration = Duration::from_secs(2);

/// Why a report was not taken.
struct Untaken {
    text: String,
    is_anothers: bool,
}

impl From<String> for Untaken {
    fn from(text: String) -> Self {
        Self { text, is_anothers: false }
    }
}

/// Reports until `stop`. What fails is logged when it begins, when it changes and when it ends.
pub(crate) async fn run(shared: Arc<Shared>, client: ServerClient, interval: Duration, stop: CancellationToken) {
    let mut last_error: Option<String> = None;
    loop {
        let mut pause = interval;
        tokio::select! {
            () = stop.cancelled() => return,
            result = report(&shared, &client) => match result {
                Ok(()) => {
                    shared.heard.store(true, Ordering::Relaxed);
                    if last_error.take().is_some() {
                        tracing::info!("the server answers reports again");
                    }
                }
                Err(Untaken { text, is_anothers }) => {
                    shared.heard.store(false, Ordering::Relaxed);
                    if is_anothers {
                        pause = pause.min(WHILE_ANOTHER_SPEAKS);
                    }
                    if last_error.as_ref() == Some(&text) {
                        tracing::debug!(error = text, "the server does not take reports");
                    } else {
                        tracing::warn!(error = text, "the server does not take reports");
                        last_error = Some(text);
                    }
                }
            },
        }
        shared.spool_readings().await;
        tokio::time::sleep(MIN_INTERVAL.min(pause)).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause.saturating_sub(MIN_INTERVAL)) => {}
            () = shared.report_now.notified() => {}
        }
    }
}

async fn report(shared: &Shared, client: &ServerClient) -> Result<(), Untaken> {
    let report = NodeReport { run: Some(shared.run), ..shared.node().report(shared.clock.now()) };
    let sent_ms = shared.clock.boot_millis();
    let answer = client.post("/v1/node-reports", &report).await.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        let is_anothers = answer.is_anothers();
        let remedy = if answer.status == 401 {
            "; to let this host speak for its node, let it join anew with a token of an operator, `gpuledger node join`, \
             and start the agent again"
        } else if is_anothers {
            "; if this host rebooted a moment ago, this ends by itself. If it is a copy of another host, give it a \
             machine id and a state folder of its own, and let it join: `gpuledger node join`"
        } else {
            ""
        };
        let text = format!("status {}: {}{remedy}", answer.status, answer.detail());
        return Err(Untaken { text, is_anothers });
    }
    let orders: NodeOrders = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    shared.clock.observe(sent_ms, orders.server_time, &shared.state);
    if orders.rotate_credential {
        shared.rotate_now.notify_one();
    }
    let changed = shared.node().take_orders(&report, orders, shared.clock.now());
    if changed {
        // so that a short workload is seen at all
        shared.sample_now.notify_one();
    }
    shared.orders_seen.send_modify(|count| *count += 1);
    Ok(())
}
