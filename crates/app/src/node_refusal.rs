//! What is refused although it holds a node's credential: each time it is counted, now and then it is stored, so that
//! operators see that a node was copied.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    principal::Principal,
};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant as RealTime},
};
use store::{
    Scope,
    node_refusal::{self, NodeRefusalRow},
};
use types::{NodeId, PoolId};

pub use store::node_refusal::RefusalReason;

/// A copy reports every few seconds; it is stored at most this often.
const STORED_EVERY: Duration = Duration::from_secs(60);
/// When nothing was refused for so long, the next time is told anew in the audit log, in milliseconds.
const EPISODE_MS: i64 = 3_600_000;

/// What was refused since it was last stored; shared by all clones of an [`App`]. One entry for each node and reason.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<HashMap<(NodeId, RefusalReason), Unstored>>>);

#[derive(Debug)]
struct Unstored {
    times: i64,
    stored_at: Option<RealTime>,
}

impl Refusals {
    /// Counts one more. Returns how many are to be stored now, if any.
    fn count(&self, node: NodeId, reason: RefusalReason, now: RealTime) -> Option<i64> {
        // a panic while holding the lock leaves a map that is still good
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = all.entry((node, reason)).or_insert(Unstored { times: 0, stored_at: None });
        entry.times += 1;
        if entry.stored_at.is_some_and(|at| now.duration_since(at) < STORED_EVERY) {
            return None;
        }
        entry.stored_at = Some(now);
        Some(std::mem::take(&mut entry.times))
    }
}

/// Notes the error that a node's call got, where it is a refusal.
pub(crate) async fn note_error(app: &App, node: NodeId, pool: PoolId, error: &AppError) {
    if let AppError::Conflict { code, .. } = error
        && let Some(reason) = RefusalReason::from_name(code)
    {
        note(app, node, pool, reason).await;
    }
}

/// Notes a refusal. That it cannot be stored changes no answer.
pub(crate) async fn note(app: &App, node: NodeId, pool: PoolId, reason: RefusalReason) {
    metrics::counter!("gpuledger_node_refusals_total", "reason" => reason.name()).increment(1);
    let Some(times) = app.refusals.count(node, reason, RealTime::now()) else { return };
    tracing::warn!(%node, %pool, reason = reason.name(), times, "refused what holds this node's credential: it may be copied");
    if let Err(error) = store(app, node, pool, reason, times).await {
        tracing::warn!(%node, %error, "the refusal could not be stored");
    }
}

async fn store(app: &App, node: NodeId, pool: PoolId, reason: RefusalReason, times: i64) -> Result<(), AppError> {
    let now = app.clock.now();
    let mut tx = app.store.begin("node.refuse", Scope::Operator).await?;
    let before = node_refusal::add(&mut tx, node, reason, times, now).await?;
    if before.is_none_or(|last| now.since(last) >= EPISODE_MS) {
        let caller = Caller { principal: Principal::Node { node, pool }, request_id: None };
        let detail = json!({ "reason": reason.name() });
        let change = Change { tenant: None, action: "node.refuse", object: node.to_string(), detail };
        audit::record(app, &mut tx, &caller, change).await?;
    }
    Ok(tx.commit().await?)
}

/// What was refused of some nodes, the latest first.
pub(crate) async fn of(app: &App, nodes: &[NodeId]) -> Result<BTreeMap<NodeId, Vec<NodeRefusalRow>>, AppError> {
    let mut tx = app.store.begin("node.refusals", Scope::Operator).await?;
    let mut of: BTreeMap<NodeId, Vec<NodeRefusalRow>> = BTreeMap::new();
    for row in node_refusal::of_nodes(&mut tx, nodes).await? {
        of.entry(row.node_id).or_default().push(row);
    }
    Ok(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_stored_once_a_minute_and_none_is_lost() {
        let refusals = Refusals::default();
        let (node, reason) = (NodeId(uuid::Uuid::nil()), RefusalReason::FormerBoot);
        let begun = RealTime::now();
        let at = |s| refusals.count(node, reason, begun + Duration::from_secs(s));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(1), at(59)), (None, None));
        assert_eq!(at(60), Some(3));
        assert_eq!(refusals.count(node, RefusalReason::AnotherAgentReports, begun), Some(1));
    }
}
