//! Nodes, and the journal of when each was heard from.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, NodeId, PoolId, RunId};
use uuid::Uuid;

/// A host as the ledger knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub hostname: String,
    pub machine_id: String,
    /// `active`, `cordoned` or `removed`.
    pub state: NodeState,
    pub boot_id: Option<String>,
    pub last_heard: Option<Instant>,
    pub joined_at: Instant,
    /// Which run of the agent speaks for it; absent since it joined, and for agents that do not say.
    pub run: Option<NodeRun>,
    /// Since when an operator wants its credential renewed.
    pub rotate_asked_at: Option<Instant>,
}

/// A run of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRun {
    pub run_id: RunId,
    /// How long it waits between two reports at most: at least 1.
    pub report_interval_ms: i32,
}

/// What an operator said of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Takes new allocations.
    Active,
    /// Takes no new ones; what runs goes on.
    Cordoned,
    /// Belongs to the past.
    Removed,
}

impl NodeState {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Cordoned => "cordoned",
            Self::Removed => "removed",
        }
    }

    fn parse(name: &str) -> Result<Self, StoreError> {
        [Self::Active, Self::Cordoned, Self::Removed]
            .into_iter()
            .find(|s| s.name() == name)
            .ok_or_else(|| StoreError::corrupt("node", "state", name))
    }
}

struct Raw {
    node_id: Uuid,
    pool_id: Uuid,
    hostname: String,
    machine_id: String,
    state: String,
    boot_id: Option<String>,
    last_heard: Option<At>,
    joined_at: At,
    run_id: Option<Uuid>,
    report_interval_ms: Option<i32>,
    rotate_asked_at: Option<At>,
}

impl Raw {
    fn parse(self) -> Result<NodeRow, StoreError> {
        Ok(NodeRow {
            node_id: self.node_id.into(),
            pool_id: self.pool_id.into(),
            hostname: self.hostname,
            machine_id: self.machine_id,
            state: NodeState::parse(&self.state)?,
            boot_id: self.boot_id,
            last_heard: self.last_heard.map(|t| t.0),
            joined_at: self.joined_at.0,
            run: self
                .run_id
                .zip(self.report_interval_ms)
                .map(|(run, interval)| NodeRun { run_id: run.into(), report_interval_ms: interval }),
            rotate_asked_at: self.rotate_asked_at.map(|t| t.0),
        })
    }
}

/// A node that joined. When the machine was known, its row takes the new host name and comes back; its id stays, so a
/// renamed host is the same node. Whatever run of an agent and boots it had before count no more.
///
/// # Errors
/// What the database says.
pub async fn join(tx: &mut Tx, row: &NodeRow) -> Result<NodeId, StoreError> {
    let id = sqlx::query_scalar!(
        "insert into node (node_id, pool_id, hostname, machine_id, state, joined_at) values ($1, $2, $3, $4, 'active', $5)
         on conflict (machine_id) do update set hostname = excluded.hostname, pool_id = excluded.pool_id,
            state = case when node.state = 'removed' then 'active' else node.state end,
            run_id = null, report_interval_ms = null, rotate_asked_at = null
         returning node_id",
        row.node_id.uuid(),
        row.pool_id.uuid(),
        row.hostname,
        row.machine_id,
        At(row.joined_at) as _,
    )
    .fetch_one(tx.connection())
    .await?;
    sqlx::query!("delete from node_boot where node_id = $1", id).execute(tx.connection()).await?;
    Ok(id.into())
}

/// Sets which run of its agent speaks for a node.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such node.
pub async fn set_run(tx: &mut Tx, node: NodeId, run: Option<NodeRun>) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update node set run_id = $2, report_interval_ms = $3 where node_id = $1",
        node.uuid(),
        run.map(|run| run.run_id.uuid()),
        run.map(|run| run.report_interval_ms)
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("node run", 1, done.rows_affected())
}

/// Remembers boots of nodes; one that is known stays as it is.
///
/// # Errors
/// What the database says.
pub async fn insert_boots(tx: &mut Tx, boots: &[(NodeId, String)], now: Instant) -> Result<(), StoreError> {
    let (nodes, ids): (Vec<Uuid>, Vec<String>) = boots.iter().map(|(node, boot)| (node.uuid(), boot.clone())).unzip();
    sqlx::query!(
        "insert into node_boot (node_id, boot_id, first_heard)
         select r.*, $3 from unnest($1::uuid[], $2::text[]) as r on conflict do nothing",
        &nodes,
        &ids,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Whether a node was ever in this boot since it joined.
///
/// # Errors
/// What the database says.
pub async fn knows_boot(tx: &mut Tx, node: NodeId, boot: &str) -> Result<bool, StoreError> {
    let known = sqlx::query_scalar!(
        r#"select exists (select from node_boot where node_id = $1 and boot_id = $2) as "known!""#,
        node.uuid(),
        boot
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(known)
}

/// Asks a node to renew its credential, or takes that back.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such node.
pub async fn set_rotate_asked(tx: &mut Tx, node: NodeId, since: Option<Instant>) -> Result<(), StoreError> {
    let done = sqlx::query!("update node set rotate_asked_at = $2 where node_id = $1", node.uuid(), since.map(At) as _)
        .execute(tx.connection())
        .await?;
    StoreError::expect_rows("node", 1, done.rows_affected())
}

/// The pool of a machine that has joined before.
///
/// # Errors
/// What the database says.
pub async fn pool_of_machine(tx: &mut Tx, machine_id: &str) -> Result<Option<(PoolId, NodeState)>, StoreError> {
    let row = sqlx::query!("select pool_id, state from node where machine_id = $1", machine_id)
        .fetch_optional(tx.connection())
        .await?;
    row.map(|r| Ok((r.pool_id.into(), NodeState::parse(&r.state)?))).transpose()
}

/// One node.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, node: NodeId) -> Result<Option<NodeRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select node_id, pool_id, hostname, machine_id, state, boot_id, last_heard, joined_at, run_id, report_interval_ms,
                rotate_asked_at from node where node_id = $1",
        node.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of nodes in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    pool: Option<PoolId>,
    after: Option<NodeId>,
    limit: i64,
) -> Result<Vec<NodeRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select node_id, pool_id, hostname, machine_id, state, boot_id, last_heard, joined_at, run_id, report_interval_ms,
                rotate_asked_at from node
          where ($1::uuid is null or pool_id = $1) and ($2::uuid is null or node_id > $2) order by node_id limit $3",
        pool.map(PoolId::uuid),
        after.map(NodeId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Every node of a pool, for the scheduler.
///
/// # Errors
/// What the database says.
pub async fn of_pool(tx: &mut Tx, pool: PoolId) -> Result<Vec<NodeRow>, StoreError> {
    page(tx, Some(pool), None, i64::MAX).await
}

/// Sets what an operator said.
///
/// # Errors
/// [`StoreError::RowCount`] when there is no such node.
pub async fn set_state(tx: &mut Tx, node: NodeId, state: NodeState) -> Result<(), StoreError> {
    let done = sqlx::query!("update node set state = $2 where node_id = $1", node.uuid(), state.name())
        .execute(tx.connection())
        .await?;
    StoreError::expect_rows("node state", 1, done.rows_affected())
}

/// Keeps when nodes were last heard and in which boot they are.
///
/// # Errors
/// [`StoreError::RowCount`] when one of them is missing.
pub async fn set_heard(tx: &mut Tx, rows: &[(NodeId, Option<String>, Instant)]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = rows.iter().map(|r| r.0.uuid()).collect();
    let boots: Vec<Option<String>> = rows.iter().map(|r| r.1.clone()).collect();
    let heard: Vec<At> = rows.iter().map(|r| At(r.2)).collect();
    let done = sqlx::query!(
        "update node n set boot_id = r.boot_id, last_heard = r.heard
           from unnest($1::uuid[], $2::text[], $3::timestamptz[]) as r (node_id, boot_id, heard)
          where n.node_id = r.node_id",
        &ids,
        &boots as &[Option<String>],
        &heard as _,
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("nodes heard", rows.len(), done.rows_affected())
}

/// One entry of the presence journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    pub node_id: NodeId,
    pub sequence: i64,
    pub at: Instant,
    pub present: bool,
}

/// Appends to the presence journal.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert_presence(tx: &mut Tx, rows: &[Presence]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let nodes: Vec<Uuid> = rows.iter().map(|r| r.node_id.uuid()).collect();
    let sequences: Vec<i64> = rows.iter().map(|r| r.sequence).collect();
    let at: Vec<At> = rows.iter().map(|r| At(r.at)).collect();
    let present: Vec<bool> = rows.iter().map(|r| r.present).collect();
    let done = sqlx::query!(
        "insert into node_presence (node_id, sequence, at, present)
         select * from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::boolean[])",
        &nodes,
        &sequences,
        &at as _,
        &present
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("presence", rows.len(), done.rows_affected())
}

/// The last entry of each node of a pool.
///
/// # Errors
/// What the database says.
pub async fn last_presence(tx: &mut Tx, pool: PoolId) -> Result<Vec<Presence>, StoreError> {
    let rows = sqlx::query!(
        "select distinct on (p.node_id) p.node_id, p.sequence, p.at, p.present
           from node_presence p join node n using (node_id) where n.pool_id = $1
          order by p.node_id, p.sequence desc",
        pool.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Presence { node_id: r.node_id.into(), sequence: r.sequence, at: r.at.0, present: r.present })
        .collect())
}

/// The presence journals of some nodes, in order.
///
/// # Errors
/// What the database says.
pub async fn presence_of(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<Presence>, StoreError> {
    let ids: Vec<Uuid> = nodes.iter().map(|n| n.uuid()).collect();
    let rows = sqlx::query!(
        "select node_id, sequence, at, present from node_presence where node_id = any($1) order by node_id, sequence",
        &ids
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Presence { node_id: r.node_id.into(), sequence: r.sequence, at: r.at.0, present: r.present })
        .collect())
}
