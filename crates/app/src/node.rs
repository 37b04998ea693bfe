//! Nodes and their GPUs: joining, reporting, and what operators say of them.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    join_token, node_credential, node_refusal,
    principal::Principal,
    scheduler::{Answer, Command, GpuView, NodeView, PoolView},
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use store::{Scope, gpu, node};
use types::{
    GpuId, NodeId, PoolId, Role,
    wire::{Join, Joined, NodeOrders, NodeReport},
};

pub use store::{
    gpu::GpuRow,
    node::{NodeRow, NodeState},
    node_refusal::NodeRefusalRow,
};

/// A node with what its pool's leader knows of it, which is absent where no leader answers, and what was refused of it.
#[derive(Debug)]
pub struct LiveNode {
    pub row: NodeRow,
    pub seen: Option<NodeView>,
    /// The latest first.
    pub refused: Vec<NodeRefusalRow>,
}

/// The most cards and workloads that one report may carry.
pub const MAX_GPUS: usize = 64;
/// See [`MAX_GPUS`].
pub const MAX_WORKLOADS: usize = 4096;
/// How long an agent may wait between two reports, in milliseconds.
const REPORT_INTERVAL_MS: std::ops::RangeInclusive<u32> = 100..=60_000;

/// A host joins the pool of its one-time token. A host that joined before, known by its machine id, keeps its id and gets
/// a new credential; the former ones end.
///
/// # Errors
/// [`AppError::Unauthenticated`] for a token that is unknown, used or expired; [`AppError::Conflict`] when the host belongs
/// to another pool.
pub async fn join(app: &App, join: &Join) -> Result<Joined, AppError> {
    let mut tx = app.store.begin("node.join", Scope::Operator).await?;
    let pool_id = join_token::redeem(app, &mut tx, &join.token).await?;
    if let Some((known, state)) = node::pool_of_machine(&mut tx, join.machine_id.as_str()).await?
        && known != pool_id
        && state != NodeState::Removed
    {
        return Err(AppError::conflict("node_elsewhere", "the machine belongs to another pool: remove it there first"));
    }
    let row = NodeRow {
        node_id: app.id(NodeId::new),
        pool_id,
        hostname: join.hostname.as_str().to_owned(),
        machine_id: join.machine_id.as_str().to_owned(),
        state: NodeState::Active,
        boot_id: None,
        last_heard: None,
        joined_at: app.clock.now(),
        run: None,
        rotate_asked_at: None,
    };
    let node_id = node::join(&mut tx, &row).await?;
    let credential = node_credential::renew(app, &mut tx, node_id).await?;
    let caller = Caller { principal: Principal::Node { node: node_id, pool: pool_id }, request_id: None };
    let detail = json!({ "hostname": join.hostname, "pool_id": pool_id });
    let change = Change { tenant: None, action: "node.join", object: node_id.to_string(), detail };
    audit::record(app, &mut tx, &caller, change).await?;
    tx.commit().await?;
    // should nobody lead the pool now, its next leader reads the node by itself
    if let Err(error) = app.ask(pool_id, Command::NodeJoined(node_id)).await {
        tracing::info!(%node_id, %error, "the scheduler does not know the new node yet");
    }
    Ok(Joined { node_id, pool_id, credential })
}

/// A node reports, and learns what it is to meter.
///
/// # Errors
/// [`AppError::Forbidden`] for anybody but a node, [`AppError::Invalid`], [`AppError::Unavailable`].
pub async fn report(app: &App, caller: &Caller, report: NodeReport) -> Result<NodeOrders, AppError> {
    let Principal::Node { node, pool } = caller.principal else { return Err(AppError::Forbidden) };
    if report.gpus.len() > MAX_GPUS {
        return Err(AppError::invalid("gpus", format!("must not hold more than {MAX_GPUS}")));
    }
    if report.alive.len() > MAX_WORKLOADS || report.exited.len() > MAX_WORKLOADS {
        return Err(AppError::invalid(
            "alive",
            format!("alive and exited must not hold more than {MAX_WORKLOADS} each"),
        ));
    }
    let mut uuids: Vec<_> = report.gpus.iter().map(|gpu| &gpu.uuid).collect();
    uuids.sort_unstable();
    if uuids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(AppError::invalid("gpus", "must not name a GPU twice"));
    }
    if report.run.is_some_and(|run| !REPORT_INTERVAL_MS.contains(&run.report_interval_ms)) {
        let (least, most) = (REPORT_INTERVAL_MS.start(), REPORT_INTERVAL_MS.end());
        return Err(AppError::invalid("run.report_interval_ms", format!("must be {least} to {most}")));
    }
    let command = Command::Report(node, Box::new(report));
    let answer = match app.ask(pool, command.clone()).await {
        // it joined while another server led
        Err(AppError::NotFound("node")) => {
            app.ask(pool, Command::NodeJoined(node)).await?;
            app.ask(pool, command).await
        }
        other => other,
    };
    match answer {
        Ok(Answer::Orders(orders)) => Ok(orders),
        Ok(other) => Err(AppError::Internal(format!("the scheduler answered {other:?}"))),
        Err(error) => {
            node_refusal::note_error(app, node, pool, &error).await;
            Err(error)
        }
    }
}

/// Cordons a node, uncordons it, or removes it.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Conflict`] for a node that was removed.
pub async fn set_state(app: &App, caller: &Caller, node_id: NodeId, state: NodeState) -> Result<NodeRow, AppError> {
    caller.require(&[Role::Operator])?;
    let row = get(app, caller, node_id).await?;
    app.ask(row.pool_id, Command::SetNodeState(node_id, state, caller.actor())).await?;
    let mut tx = app.store.begin("node.set_state", Scope::Operator).await?;
    if state == NodeState::Removed {
        node_credential::withdraw(app, &mut tx, node_id).await?;
    }
    let detail = json!({ "from": row.state.name(), "to": state.name() });
    let change = Change { tenant: None, action: "node.set_state", object: node_id.to_string(), detail };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(NodeRow { state, ..row })
}

/// One node.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants, [`AppError::NotFound`].
pub async fn get(app: &App, caller: &Caller, node_id: NodeId) -> Result<NodeRow, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    let mut tx = app.store.begin("node.get", Scope::Operator).await?;
    node::get(&mut tx, node_id).await?.ok_or(AppError::NotFound("node"))
}

/// A page of nodes.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants.
pub async fn list(
    app: &App,
    caller: &Caller,
    pool: Option<PoolId>,
    after: Option<NodeId>,
    limit: i64,
) -> Result<Vec<NodeRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    let mut tx = app.store.begin("node.list", Scope::Operator).await?;
    Ok(node::page(&mut tx, pool, after, limit).await?)
}

/// A page of GPUs.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants.
pub async fn gpus(
    app: &App,
    caller: &Caller,
    pool: Option<PoolId>,
    node: Option<NodeId>,
    after: Option<GpuId>,
    limit: i64,
) -> Result<Vec<GpuRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    let mut tx = app.store.begin("gpu.list", Scope::Operator).await?;
    Ok(gpu::page(&mut tx, pool, node, after, limit).await?)
}

/// A page of nodes, each with what its pool's leader knows of it and what was refused of it.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants.
pub async fn list_live(
    app: &App,
    caller: &Caller,
    pool: Option<PoolId>,
    after: Option<NodeId>,
    limit: i64,
) -> Result<Vec<LiveNode>, AppError> {
    let rows = list(app, caller, pool, after, limit).await?;
    let ids: Vec<NodeId> = rows.iter().map(|row| row.node_id).collect();
    let mut refused = node_refusal::of(app, &ids).await?;
    let looks = looks(app, rows.iter().map(|row| row.pool_id)).await?;
    let mut seen: BTreeMap<NodeId, NodeView> =
        looks.into_iter().flat_map(|look| look.nodes).map(|node| (node.node_id, node)).collect();
    Ok(rows
        .into_iter()
        .map(|row| LiveNode {
            seen: seen.remove(&row.node_id),
            refused: refused.remove(&row.node_id).unwrap_or_default(),
            row,
        })
        .collect())
}

/// One node, with what its pool's leader knows of it.
///
/// # Errors
/// As [`get`].
pub async fn get_live(app: &App, caller: &Caller, node_id: NodeId) -> Result<LiveNode, AppError> {
    let row = get(app, caller, node_id).await?;
    live(app, row).await
}

/// A node's row, with what its pool's leader knows of it and what was refused of it.
///
/// # Errors
/// What the database says.
pub async fn live(app: &App, row: NodeRow) -> Result<LiveNode, AppError> {
    let node_id = row.node_id;
    let refused = node_refusal::of(app, &[node_id]).await?.remove(&node_id).unwrap_or_default();
    let looks = looks(app, [row.pool_id]).await?;
    let seen = looks.into_iter().flat_map(|look| look.nodes).find(|node| node.node_id == node_id);
    Ok(LiveNode { row, seen, refused })
}

/// A page of GPUs, each with what its pool's leader knows of it; that is absent where no leader answers here.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants.
pub async fn gpus_live(
    app: &App,
    caller: &Caller,
    pool: Option<PoolId>,
    node: Option<NodeId>,
    after: Option<GpuId>,
    limit: i64,
) -> Result<Vec<(GpuRow, Option<GpuView>)>, AppError> {
    let rows = gpus(app, caller, pool, node, after, limit).await?;
    let looks = looks(app, rows.iter().map(|row| row.pool_id)).await?;
    let mut seen: BTreeMap<GpuId, GpuView> =
        looks.into_iter().flat_map(|look| look.gpus).map(|gpu| (gpu.gpu_id, gpu)).collect();
    Ok(rows
        .into_iter()
        .map(|row| {
            let now = seen.remove(&row.gpu_id);
            (row, now)
        })
        .collect())
}

/// What the leaders of some pools see; pools whose leader does not answer here are left out.
async fn looks(app: &App, pools: impl IntoIterator<Item = PoolId>) -> Result<Vec<PoolView>, AppError> {
    let mut views = Vec::new();
    for pool in pools.into_iter().collect::<BTreeSet<_>>() {
        match app.look_at_pool(pool).await {
            Ok(view) => views.push(view),
            Err(AppError::Unavailable(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(views)
}

/// What the leader of a pool sees of its nodes and GPUs.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants, [`AppError::Unavailable`] when nobody leads it.
pub async fn look(app: &App, caller: &Caller, pool: PoolId) -> Result<PoolView, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    app.look_at_pool(pool).await
}
