//! What a node proves itself with after it joined. [`App::authenticate`] checks it.

use crate::{
    App,
    authenticate::known_as,
    credential::{self, CredentialKind},
    error::AppError,
};
use store::{Tx, node_credential};
use types::{CredentialId, NodeId};

/// Gives a node a new credential inside the caller's transaction, in place of those it had. The text is shown once.
pub(crate) async fn renew(app: &App, tx: &mut Tx, node_id: NodeId) -> Result<String, AppError> {
    withdraw(app, tx, node_id).await?;
    let minted = credential::mint(CredentialKind::Node);
    let row = node_credential::NodeCredentialRow {
        credential_id: app.id(CredentialId::new),
        node_id,
        prefix: minted.prefix,
        hash: minted.hash,
        created_at: app.clock.now(),
    };
    node_credential::insert(tx, &row).await?;
    Ok(minted.text)
}

/// Withdraws whatever credentials a node has: at once on this server, within five seconds on others.
pub(crate) async fn withdraw(app: &App, tx: &mut Tx, node_id: NodeId) -> Result<(), AppError> {
    for prefix in node_credential::revoke_all(tx, node_id, app.clock.now()).await? {
        app.sessions.credentials().forget(known_as(CredentialKind::Node, &prefix).as_str());
    }
    Ok(())
}
