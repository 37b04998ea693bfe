//! The node agent's socket, from a workload's side.

use crate::error::CliError;
use agent::socket::{AgentMessage, ClientMessage};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};
use types::{AllocationId, NodeId, PoolId};

/// The agent may ask the server first.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer: a part for each GPU of the node.
const LONGEST: u64 = 1 << 20;

/// What the agent says of its node.
pub(super) struct LocalNode {
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub server_url: String,
}

/// Asks which node this is.
pub(super) async fn hello(socket: &Path) -> Result<LocalNode, CliError> {
    let path = socket.to_owned();
    let answer = tokio::task::spawn_blocking(move || ask(&path, &ClientMessage::Hello {})).await;
    match answer.map_err(|e| CliError::Failed(e.to_string()))?? {
        AgentMessage::Hello { node_id, pool_id, server_url } => Ok(LocalNode { node_id, pool_id, server_url }),
        AgentMessage::Refused { reason } => Err(CliError::Failed(format!("the node's agent refuses: {reason}"))),
        AgentMessage::Bound { .. } => Err(CliError::Failed("the node's agent gives another answer".to_owned())),
    }
}

/// Has this process bound to an allocation. Blocks.
pub(super) fn bind(socket: &Path, allocation_id: AllocationId) -> Result<(), CliError> {
    match ask(socket, &ClientMessage::Bind { allocation_id })? {
        AgentMessage::Bound { .. } => Ok(()),
        AgentMessage::Refused { reason } => Err(CliError::Failed(format!("the node's agent refuses: {reason}"))),
        AgentMessage::Hello { .. } => Err(CliError::Failed("the node's agent gives another answer".to_owned())),
    }
}

fn ask(socket: &Path, message: &ClientMessage) -> Result<AgentMessage, CliError> {
    let talk = CliError::file;
    let mut stream = UnixStream::connect(socket).map_err(talk("reach the node's agent at", socket))?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(talk("talk to the node's agent at", socket))?;
    let mut line = serde_json::to_vec(message).map_err(|e| CliError::Failed(e.to_string()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(talk("talk to the node's agent at", socket))?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut answer).map_err(talk("hear the node's agent at", socket))?;
    serde_json::from_str(&answer).map_err(|e| CliError::Failed(format!("the node's agent is not understood: {e}")))
}
