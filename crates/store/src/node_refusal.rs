//! What was refused although it held a node's credential.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, NodeId};
use uuid::Uuid;

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// It reports from another boot or another run of the agent, while the one that speaks for the node still reports.
    AnotherAgentReports,
    /// It reports from a boot that is over.
    FormerBoot,
    /// It uses a credential whose successor is in use.
    SupersededCredential,
}

impl RefusalReason {
    const ALL: [Self; 3] = [Self::AnotherAgentReports, Self::FormerBoot, Self::SupersededCredential];

    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnotherAgentReports => "another_agent_reports",
            Self::FormerBoot => "former_boot",
            Self::SupersededCredential => "superseded_credential",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// How often it was refused, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRefusalRow {
    pub node_id: NodeId,
    pub reason: RefusalReason,
    pub first_at: Instant,
    pub last_at: Instant,
    pub times: i64,
}

/// Adds to what was refused. Returns when it was last refused for this reason before.
///
/// # Errors
/// What the database says.
pub async fn add(
    tx: &mut Tx,
    node: NodeId,
    reason: RefusalReason,
    times: i64,
    now: Instant,
) -> Result<Option<Instant>, StoreError> {
    let before = sqlx::query_scalar!(
        r#"select last_at from node_refusal where node_id = $1 and reason = $2 for update"#,
        node.uuid(),
        reason.name()
    )
    .fetch_optional(tx.connection())
    .await?;
    sqlx::query!(
        "insert into node_refusal (node_id, reason, first_at, last_at, times) values ($1, $2, $3, $3, $4)
         on conflict (node_id, reason) do update
            set last_at = greatest(node_refusal.last_at, excluded.last_at), times = node_refusal.times + excluded.times",
        node.uuid(),
        reason.name(),
        At(now) as _,
        times
    )
    .execute(tx.connection())
    .await?;
    Ok(before.map(|t| t.0))
}

/// What was refused of some nodes, the latest first.
///
/// # Errors
/// What the database says.
pub async fn of_nodes(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<NodeRefusalRow>, StoreError> {
    let ids: Vec<Uuid> = nodes.iter().map(|n| n.uuid()).collect();
    let rows = sqlx::query!(
        r#"select node_id, reason, first_at, last_at, times from node_refusal
            where node_id = any($1) order by last_at desc, reason"#,
        &ids
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let reason = RefusalReason::from_name(&r.reason)
                .ok_or_else(|| StoreError::corrupt("node_refusal", "reason", &r.reason))?;
            let (first_at, last_at) = (r.first_at.0, r.last_at.0);
            Ok(NodeRefusalRow { node_id: r.node_id.into(), reason, first_at, last_at, times: r.times })
        })
        .collect()
}
