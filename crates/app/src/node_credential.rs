//! What a node proves itself with after it joined. [`App::authenticate`] checks it.
//!
//! A node renews its credential in two steps, so that a crash in between never locks it out: it asks for a new one, which
//! waits, and stores it; when the new one is first used, all others of the node are superseded. One that is used after
//! that was copied.

use crate::{
    App, Caller,
    audit::{self, Change},
    authenticate::known_as,
    credential::{self, CredentialKind, Minted},
    error::AppError,
    node::{self, NodeRow},
    principal::Principal,
    scheduler::Command,
};
use serde_json::json;
use store::{Scope, Tx, node_credential};
use types::{CredentialId, NodeId, PoolId, Role, wire::RotatedCredential};

/// A superseded credential is good for so long still, in milliseconds: for what was under way with it.
pub(crate) const OVERLAP_MS: i64 = 30_000;
/// One that waits for its first use may be dropped after so long, in seconds, when another one is asked for.
const WAITS_S: i64 = 600;
/// The most that may wait for one node.
const MOST_WAITING: i64 = 8;

/// Gives a node a new credential inside the caller's transaction, in place of those it had. The text is shown once.
pub(crate) async fn renew(app: &App, tx: &mut Tx, node_id: NodeId) -> Result<String, AppError> {
    withdraw(app, tx, node_id).await?;
    insert(app, tx, node_id).await
}

async fn insert(app: &App, tx: &mut Tx, node_id: NodeId) -> Result<String, AppError> {
    let Minted { text, prefix, hash } = credential::mint(CredentialKind::Node);
    let row = node_credential::NodeCredentialRow {
        credential_id: app.id(CredentialId::new),
        node_id,
        prefix,
        hash,
        created_at: app.clock.now(),
    };
    node_credential::insert(tx, &row).await?;
    Ok(text)
}

/// Withdraws whatever credentials a node has: at once on this server, within five seconds on others.
pub(crate) async fn withdraw(app: &App, tx: &mut Tx, node_id: NodeId) -> Result<(), AppError> {
    for prefix in node_credential::revoke_all(tx, node_id, app.clock.now()).await? {
        app.sessions.credentials().put(known_as(CredentialKind::Node, &prefix), None);
    }
    Ok(())
}

/// Gives a node another credential, which waits. The one it calls with stays good until the new one is first used.
///
/// # Errors
/// [`AppError::Forbidden`] for anybody but a node; [`AppError::Conflict`] `too_many_waiting`.
pub async fn rotate(app: &App, caller: &Caller) -> Result<RotatedCredential, AppError> {
    let Principal::Node { node, pool } = caller.principal else { return Err(AppError::Forbidden) };
    let now = app.clock.now();
    let mut tx = app.store.begin("node_credential.rotate", Scope::Operator).await?;
    let waiting = node_credential::drop_waiting(&mut tx, node, now.plus_secs(-WAITS_S), now).await?;
    if waiting >= MOST_WAITING {
        let detail = format!("{waiting} new credentials wait to be used: use one, or ask again in {WAITS_S} seconds");
        return Err(AppError::conflict("too_many_waiting", detail));
    }
    let credential = insert(app, &mut tx, node).await?;
    store::node::set_rotate_asked(&mut tx, node, None).await?;
    record(app, &mut tx, caller, "node_credential.rotate", node).await?;
    tx.commit().await?;
    tell(app, pool, node).await;
    Ok(RotatedCredential { credential })
}

/// Has a node renew its credential, with its next report.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`].
pub async fn ask_rotation(app: &App, caller: &Caller, node_id: NodeId) -> Result<NodeRow, AppError> {
    caller.require(&[Role::Operator])?;
    let row = node::get(app, caller, node_id).await?;
    let now = app.clock.now();
    let mut tx = app.store.begin("node_credential.ask_rotation", Scope::Operator).await?;
    store::node::set_rotate_asked(&mut tx, node_id, Some(now)).await?;
    record(app, &mut tx, caller, "node_credential.ask_rotation", node_id).await?;
    tx.commit().await?;
    tell(app, row.pool_id, node_id).await;
    Ok(NodeRow { rotate_asked_at: Some(now), ..row })
}

/// Withdraws every credential of a node: at once on this server, within five seconds on others. What runs there goes on
/// until the node counts as silent; it can only join again. Doing it again changes nothing.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`].
pub async fn revoke(app: &App, caller: &Caller, node_id: NodeId) -> Result<NodeRow, AppError> {
    caller.require(&[Role::Operator])?;
    let row = node::get(app, caller, node_id).await?;
    let mut tx = app.store.begin("node_credential.revoke", Scope::Operator).await?;
    let withdrawn = node_credential::revoke_all(&mut tx, node_id, app.clock.now()).await?;
    record(app, &mut tx, caller, "node_credential.revoke", node_id).await?;
    tx.commit().await?;
    for prefix in withdrawn {
        app.sessions.credentials().put(known_as(CredentialKind::Node, &prefix), None);
    }
    Ok(row)
}

async fn record(
    app: &App,
    tx: &mut Tx,
    caller: &Caller,
    action: &'static str,
    node_id: NodeId,
) -> Result<(), AppError> {
    let change = Change { tenant: None, action, object: node_id.to_string(), detail: json!({}) };
    audit::record(app, tx, caller, change).await
}

/// Lets the pool's leader read the node anew. Should nobody lead it now, its next leader does.
async fn tell(app: &App, pool: PoolId, node_id: NodeId) {
    if let Err(error) = app.ask(pool, Command::NodeJoined(node_id)).await {
        tracing::info!(%node_id, %error, "the scheduler reads the node later");
    }
}
