//! `/v1/nodes` and `/v1/node-reports`

use crate::{
    access,
    extract::{Json, Path, Query, Whence},
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    AppError, Caller,
    node::{self, LiveNode, NodeRefusalRow},
    node_credential,
    node_refusal::RefusalReason,
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{
    Instant, NodeId, PoolId, RunId,
    wire::{Join, Joined, NodeOrders, NodeReport, RotatedCredential},
};

/// A host.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Node {
    node_id: NodeId,
    pool_id: PoolId,
    hostname: String,
    /// What names the host for ever.
    machine_id: String,
    state: NodeState,
    joined_at: Instant,
    /// Its last boot that reported; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
    /// Absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_heard: Option<Instant>,
    /// Whether it has not reported for the pool's `silence_grace_s`; absent where no leader of the pool answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<bool>,
    /// Which run of its agent speaks for it; absent where the agent does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// Since when an operator wants its credential renewed, which its agent does with its next report.
    #[serde(skip_serializing_if = "Option::is_none")]
    rotate_asked_at: Option<Instant>,
    /// What was refused although it held this node's credential: a sign that the node was copied. The latest first.
    refused: Vec<NodeRefusal>,
}

/// How often something that held a node's credential was refused for one reason. Counted at once, stored within a minute.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct NodeRefusal {
    reason: NodeRefusalReason,
    first_at: Instant,
    last_at: Instant,
    times: i64,
}

/// Why it was refused.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeRefusalReason {
    /// It reports from another boot or another run of the agent, while the one that speaks for the node still reports.
    AnotherAgentReports,
    /// It reports from a boot that is over.
    FormerBoot,
    /// It uses a credential whose successor is in use.
    SupersededCredential,
}

impl From<RefusalReason> for NodeRefusalReason {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::AnotherAgentReports => Self::AnotherAgentReports,
            RefusalReason::FormerBoot => Self::FormerBoot,
            RefusalReason::SupersededCredential => Self::SupersededCredential,
        }
    }
}

impl From<NodeRefusalRow> for NodeRefusal {
    fn from(row: NodeRefusalRow) -> Self {
        Self { reason: row.reason.into(), first_at: row.first_at, last_at: row.last_at, times: row.times }
    }
}

/// What an operator said of a node.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Takes new allocations.
    Active,
    /// Takes no new ones; what runs goes on.
    Cordoned,
    /// Belongs to the past.
    Removed,
}

impl From<node::NodeState> for NodeState {
    fn from(state: node::NodeState) -> Self {
        match state {
            node::NodeState::Active => Self::Active,
            node::NodeState::Cordoned => Self::Cordoned,
            node::NodeState::Removed => Self::Removed,
        }
    }
}

impl From<LiveNode> for Node {
    fn from(LiveNode { row, seen, refused }: LiveNode) -> Self {
        Self {
            node_id: row.node_id,
            pool_id: row.pool_id,
            hostname: row.hostname,
            machine_id: row.machine_id,
            state: row.state.into(),
            joined_at: row.joined_at,
            boot_id: row.boot_id,
            // the leader stores what it heard only now and then
            last_heard: seen.as_ref().and_then(|seen| seen.last_heard).max(row.last_heard),
            silent: seen.map(|seen| seen.silent),
            run_id: row.run.map(|run| run.run_id),
            rotate_asked_at: row.rotate_asked_at,
            refused: refused.into_iter().map(NodeRefusal::from).collect(),
        }
    }
}

/// Which node.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct NodePath {
    node_id: NodeId,
}

/// Which nodes.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodeFilter {
    /// Only of this pool.
    pool_id: Option<PoolId>,
    /// `next_cursor` of the page before.
    cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    limit: Limit,
}

/// Let a node join a pool
///
/// The one-time join token in the body is the credential; the answer shows the node's own credential once. A host that
/// joined before, known by its machine id, keeps its id, and its former credential ends.
#[utoipa::path(
    post, path = "/v1/nodes/join", tag = "nodes",
    responses((status = 201, body = Joined), WriteErrors)
)]
pub(crate) async fn join_node(
    State(state): State<ApiState>,
    Whence(origin): Whence,
    Json(join): Json<Join>,
) -> Result<(StatusCode, Json<Joined>), Problem> {
    state.guard.credential(&join.token, origin.address)?;
    let joined = node::join(&state.app, &join).await;
    if matches!(joined, Err(AppError::Unauthenticated(_))) {
        state.guard.looked_at(&join.token, origin.address, false);
    }
    let joined = joined?;
    access::name_made("node_id", joined.node_id);
    Ok((StatusCode::CREATED, Json(joined)))
}

/// Report a node's life
///
/// With a node's credential, every few seconds and at once after each change. The answer says what the node is to meter.
/// What does not speak for the node although it has its credential, a copy of its disk for one, gets 409 with code
/// `another_agent_reports` or `former_boot`, and changes nothing.
#[utoipa::path(
    post, path = "/v1/node-reports", tag = "nodes", security(("bearer" = [])),
    responses((status = 200, body = NodeOrders), WriteErrors)
)]
pub(crate) async fn report_node(
    State(state): State<ApiState>,
    caller: Caller,
    Json(report): Json<NodeReport>,
) -> Result<Json<NodeOrders>, Problem> {
    Ok(Json(node::report(&state.app, &caller, report).await?))
}

/// List nodes
#[utoipa::path(
    get, path = "/v1/nodes", tag = "nodes", security(("bearer" = [])),
    params(NodeFilter),
    responses((status = 200, body = Page<Node>), ReadErrors)
)]
pub(crate) async fn list_nodes(
    State(state): State<ApiState>,
    caller: Caller,
    Query(filter): Query<NodeFilter>,
) -> Result<Json<Page<Node>>, Problem> {
    let after = filter.cursor.map(Cursor::id);
    let rows = node::list_live(&state.app, &caller, filter.pool_id, after, filter.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, filter.limit, |node| node.row.node_id.uuid())))
}

/// Show a node
#[utoipa::path(
    get, path = "/v1/nodes/{node_id}", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), ReadErrors)
)]
pub(crate) async fn get_node(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    Ok(Json(node::get_live(&state.app, &caller, path.node_id).await?.into()))
}

/// Cordon a node
///
/// It takes no new allocations; what runs goes on.
#[utoipa::path(
    post, path = "/v1/nodes/{node_id}/cordon", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), WriteErrors)
)]
pub(crate) async fn cordon_node(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    set_state(&state, &caller, path.node_id, node::NodeState::Cordoned).await
}

/// Uncordon a node
#[utoipa::path(
    post, path = "/v1/nodes/{node_id}/uncordon", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), WriteErrors)
)]
pub(crate) async fn uncordon_node(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    set_state(&state, &caller, path.node_id, node::NodeState::Active).await
}

/// Remove a node
///
/// What runs on it is lost, and its credential ends. It can only join again.
#[utoipa::path(
    post, path = "/v1/nodes/{node_id}/remove", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), WriteErrors)
)]
pub(crate) async fn remove_node(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    set_state(&state, &caller, path.node_id, node::NodeState::Removed).await
}

async fn set_state(
    state: &ApiState,
    caller: &Caller,
    node_id: NodeId,
    to: node::NodeState,
) -> Result<Json<Node>, Problem> {
    let row = node::set_state(&state.app, caller, node_id, to).await?;
    Ok(Json(node::live(&state.app, row).await?.into()))
}

/// Renew a node's credential
///
/// With the node's own, which stays good until the new one is first used; that use ends all others of the node. At most
/// eight wait at once.
#[utoipa::path(
    post, path = "/v1/node-credential/rotate", tag = "nodes", security(("bearer" = [])),
    responses((status = 200, body = RotatedCredential), WriteErrors)
)]
pub(crate) async fn rotate_node_credential(
    State(state): State<ApiState>,
    caller: Caller,
) -> Result<Json<RotatedCredential>, Problem> {
    Ok(Json(node_credential::rotate(&state.app, &caller).await?))
}

/// Have a node renew its credential
///
/// Its agent does so with its next report, and writes the new one to its file.
#[utoipa::path(
    post, path = "/v1/nodes/{node_id}/rotate-credential", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), WriteErrors)
)]
pub(crate) async fn ask_credential_rotation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    let row = node_credential::ask_rotation(&state.app, &caller, path.node_id).await?;
    Ok(Json(node::live(&state.app, row).await?.into()))
}

/// Revoke a node's credential
///
/// The node is refused: at once by the server that does it, within five seconds by others. What runs there goes on until
/// the node counts as silent. It can only join again.
#[utoipa::path(
    post, path = "/v1/nodes/{node_id}/revoke-credential", tag = "nodes", security(("bearer" = [])),
    params(NodePath),
    responses((status = 200, body = Node), WriteErrors)
)]
pub(crate) async fn revoke_node_credential(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<NodePath>,
) -> Result<Json<Node>, Problem> {
    let row = node_credential::revoke(&state.app, &caller, path.node_id).await?;
    Ok(Json(node::live(&state.app, row).await?.into()))
}
