//! The local Unix socket: a process on this node binds itself to its allocation.
//!
//! JSON, one message a line, first from the client. The agent takes the process from the kernel's peer credentials, so
//! nobody can bind another process. An allocation's id is as good as a ticket: the first process that shows it is bound,
//! a second one is refused while the first lives. The bound process and its descendants are the workload: it is alive
//! while that process exists, and has exited when it is gone. The connection may be closed or kept; kept, its end tells
//! the instant of the exit.

use crate::{AgentError, Shared, node::BindError, proc_stat};
use metering::attribution::ProcessId;
use serde::{Deserialize, Serialize};
use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use types::{AllocationId, Instant, NodeId, PoolId, wire::PartOrder};

/// The longest message from a client.
const MAX_MESSAGE: u64 = 4096;
/// The most clients at once.
const MAX_CLIENTS: usize = 1024;
/// A client that has nothing bound must speak within this time.
const SPEAK_WITHIN: Duration = Duration::from_secs(10);
/// How long a client waits for orders that name its allocation.
const ORDERS_WITHIN: Duration = Duration::from_secs(5);

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// Which node is this? Answered with [`AgentMessage::Hello`].
    Hello {},
    /// This process is the workload of that allocation. Answered with [`AgentMessage::Bound`].
    Bind { allocation_id: AllocationId },
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum AgentMessage {
    Hello {
        node_id: NodeId,
        pool_id: PoolId,
        server_url: String,
    },
    /// The process is bound; its devices are the parts' GPUs.
    Bound {
        parts: Vec<PartOrder>,
    },
    /// It is not, for this reason.
    Refused {
        reason: String,
    },
}

impl AgentMessage {
    fn refused(reason: impl ToString) -> Self {
        Self::Refused { reason: reason.to_string() }
    }
}

/// Listens at `path`, for every user of the host. What a dead agent left there is removed.
pub(crate) async fn listen(path: &Path) -> Result<UnixListener, AgentError> {
    let error = |source| AgentError::File { path: path.to_owned(), source };
    if UnixStream::connect(path).await.is_ok() {
        return Err(AgentError::SocketInUse(path.to_owned()));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(error(e)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(error)?;
    let everyone = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, everyone).map_err(error)?;
    Ok(listener)
}

/// Serves clients until `stop`.
pub(crate) async fn serve(listener: UnixListener, shared: Arc<Shared>, hello: AgentMessage, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = clients.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                // without room the connection is closed, which the client sees at once
                if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
                    let (shared, hello) = (Arc::clone(&shared), hello.clone());
                    clients.spawn(async move {
                        talk(stream, &shared, hello).await;
                        drop(permit);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the socket takes no client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn talk(mut stream: UnixStream, shared: &Shared, hello: AgentMessage) {
    let Some(process) = peer(&stream, shared) else {
        let refusal = AgentMessage::refused("this process is not visible to the agent");
        drop(answer(&mut stream, &refusal).await);
        return;
    };
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut bound: Vec<AllocationId> = Vec::new();
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reader).take(MAX_MESSAGE);
        let read = limited.read_until(b'\n', &mut line);
        let read =
            if bound.is_empty() { tokio::time::timeout(SPEAK_WITHIN, read).await.unwrap_or(Ok(0)) } else { read.await };
        if !matches!(read, Ok(n) if n > 0) {
            break;
        }
        let message = match serde_json::from_slice(&line) {
            Ok(ClientMessage::Hello {}) => hello.clone(),
            Ok(ClientMessage::Bind { allocation_id }) => {
                let message = bind(shared, allocation_id, &process).await;
                if matches!(message, AgentMessage::Bound { .. }) {
                    bound.push(allocation_id);
                }
                message
            }
            Err(error) => AgentMessage::refused(format!("not a message: {error}")),
        };
        let malformed = line.last() != Some(&b'\n');
        if answer(&mut writer, &message).await.is_err() || malformed {
            break;
        }
    }
    let closed_at = shared.clock.now();
    for allocation_id in bound {
        disconnected(shared, allocation_id, &process, closed_at).await;
    }
}

/// The process at the other end, as the kernel knows it.
fn peer(stream: &UnixStream, shared: &Shared) -> Option<ProcessId> {
    let credentials = stream.peer_cred().ok()?;
    let pid = u32::try_from(credentials.pid()?).ok().filter(|pid| *pid > 0)?;
    let stat = proc_stat(pid)?;
    Some(ProcessId {
        boot_id: shared.node().boot_id().clone(),
        pid,
        start_ticks: stat.start_ticks,
        uid: credentials.uid(),
    })
}

/// Binds the process. An allocation that the agent has not heard of may be seconds old: it asks the server at once.
async fn bind(shared: &Shared, allocation_id: AllocationId, process: &ProcessId) -> AgentMessage {
    let mut orders_seen = shared.orders_seen.subscribe();
    // the first answer may belong to a report that was under way before
    for _ in 0..2 {
        match try_bind(shared, allocation_id, process) {
            Err(BindError::Unknown) => {}
            settled => return settled.unwrap_or_else(AgentMessage::refused),
        }
        shared.report_now.notify_one();
        let waited = tokio::time::timeout(ORDERS_WITHIN, orders_seen.changed()).await;
        if waited.is_err() {
            return AgentMessage::refused("the server does not answer, and the allocation is not known here");
        }
    }
    try_bind(shared, allocation_id, process).unwrap_or_else(AgentMessage::refused)
}

fn try_bind(shared: &Shared, allocation_id: AllocationId, process: &ProcessId) -> Result<AgentMessage, BindError> {
    let now = shared.clock.now();
    let parts = shared.node().bind(allocation_id, process.clone(), now)?;
    shared.save_bindings();
    shared.report_now.notify_one();
    Ok(AgentMessage::Bound { parts })
}

/// A bound process's connection is closed. Mostly it is ending, which takes it a moment after its files are closed;
/// if it lives on, it stays bound.
async fn disconnected(shared: &Shared, allocation_id: AllocationId, process: &ProcessId, at: Instant) {
    for _ in 0..10 {
        if !proc_stat(process.pid).is_some_and(|stat| stat.is_living(process)) {
            if shared.node().ended(allocation_id, process, at) {
                shared.save_bindings();
                shared.report_now.notify_one();
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn answer(writer: &mut (impl tokio::io::AsyncWrite + Unpin), message: &AgentMessage) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line).await
}
