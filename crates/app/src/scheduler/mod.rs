//! The scheduler: one writer per pool.
//!
//! Every change of a pool's state goes through the loop of its leader, which takes commands in batches: it begins a
//! transaction by holding its lease, locks the quota rows involved in a fixed order, decides in memory, writes everything
//! with multi-row statements that must touch the expected number of rows, commits, and only then answers. While a batch
//! commits, the next gathers. A batch that fails is tried again one command at a time on a state read anew; after a
//! commit of unknown outcome the leader steps down, so that whoever leads next reads what really happened.

mod batch;
mod lifecycle;
mod loading;
mod nodes;
mod requests;
mod run;
mod seen;
mod speaker;
mod state;
mod writes;

use crate::server::Peers;
use crate::{
    App,
    allocation::AllocationView,
    error::AppError,
    principal::{Actor, Principal},
};
use placement::NoRoom;
use quota::Violation;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use store::node::NodeState;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use types::{
    AllocationId, Instant, NodeId, PoolId, ProjectId, Request, ServerId, TenantId,
    wire::{NodeOrders, NodeReport},
};

/// A change of a pool's state, or a question that only its leader can answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// A request for memory.
    Request(Box<NewRequest>),
    /// A held allocation's workload starts.
    Confirm(AllocationId, Principal),
    /// The workload lives.
    Renew(AllocationId, Principal),
    /// The workload ended.
    Release(AllocationId, Principal),
    /// The request is withdrawn.
    Cancel(AllocationId, Principal),
    /// A node reports.
    Report(NodeId, Box<NodeReport>),
    /// An operator cordons, uncordons or removes a node.
    SetNodeState(NodeId, NodeState, Actor),
    /// A node joined: read it.
    NodeJoined(NodeId),
    /// A quota or a grace changed: look at the queue again.
    Reconsider,
    /// Time has passed.
    Tick,
    /// A tenant's period ended at this instant: make open meters final up to it.
    Cut(TenantId, Instant),
    /// What the leader knows of its nodes and GPUs.
    Look,
}

/// A request for memory on its way to a decision.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NewRequest {
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    pub actor: Actor,
    pub request: Request,
    /// The idempotency key and the hash of what was asked; absent in a dry run, which holds nothing.
    pub key: Option<(String, [u8; 32])>,
}

/// What the leader answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The allocation as it stands after the command; `true` when the command made it.
    Allocation(Box<AllocationView>, bool),
    /// Not open: look at what is stored.
    Stored(AllocationId),
    /// What a request would get.
    DryRun(DryRun),
    Orders(NodeOrders),
    /// How many open meters could not yet be made final.
    Cut(usize),
    Look(PoolView),
    Done,
}

/// What a request would get now, holding nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DryRun {
    /// It would be placed on these GPUs.
    Placed { gpus: Vec<types::GpuUuid>, measured: bool },
    /// It would wait, behind so many others.
    Queued { ahead: usize, no_room: NoRoom },
    /// It would be refused for these limits.
    QuotaExceeded(Vec<Violation>),
    /// It would be refused, because not even an empty pool could hold it.
    Unsatisfiable(NoRoom),
}

/// What the leader knows of its pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    pub term: i64,
    pub nodes: Vec<NodeView>,
    pub gpus: Vec<GpuView>,
    pub queued: usize,
}

/// What the leader knows of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub node_id: NodeId,
    pub silent: bool,
    pub last_heard: Option<Instant>,
}

/// What the leader knows of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    pub gpu_id: types::GpuId,
    pub service: placement::Service,
    pub free: types::Bytes,
    pub held: types::Bytes,
    pub granted: types::Bytes,
    pub parts: usize,
}

/// A command with the time it came at and where its answer goes.
#[derive(Debug)]
struct Pending {
    command: Command,
    /// The clock when it came; the pool's time is never earlier than any before.
    at: Instant,
    answer: oneshot::Sender<Result<Answer, AppError>>,
}

/// How a pool's loop is reached.
#[derive(Debug, Clone)]
struct Handle {
    commands: mpsc::Sender<Pending>,
    /// Whether it leads, as it last said: a hint where to send a command, no right to write.
    leads: Arc<AtomicBool>,
}

/// The schedulers of all pools that this server serves.
#[derive(Debug, Clone)]
pub struct Schedulers {
    server: ServerId,
    handles: Arc<Mutex<HashMap<PoolId, Handle>>>,
    /// Absent where a server works alone, as in replay: then what it does not lead is unavailable.
    peers: Option<Peers>,
    changes: broadcast::Sender<AllocationId>,
    /// Each loop keeps a receiver as long as it runs.
    running: watch::Sender<()>,
    settings: SchedulerSettings,
}

/// How the loops run.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerSettings {
    /// How long a lease lasts without renewal; take-over takes at most this long.
    pub lease: Duration,
    /// How often deadlines are looked at; `None` when only commands move time, as in replay.
    pub tick: Option<Duration>,
    /// The most commands in one batch, and the most that wait for one.
    pub batch: usize,
    /// How often waiting requests are looked at although nothing became free in their pool: quota is a tenant's, and what
    /// other pools take or give back is not heard here.
    pub look: Duration,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(3),
            tick: Some(Duration::from_millis(500)),
            batch: 256,
            look: Duration::from_secs(2),
        }
    }
}

impl Schedulers {
    /// None yet; [`App::schedule_pool`] starts one.
    #[must_use]
    pub fn new(server: ServerId, settings: SchedulerSettings) -> Self {
        Self {
            server,
            handles: Arc::default(),
            peers: None,
            changes: broadcast::channel(1024).0,
            running: watch::Sender::new(()),
            settings,
        }
    }

    /// The same, forwarding to other servers what they lead.
    #[must_use]
    pub(crate) fn with_peers(self, peers: Peers) -> Self {
        Self { peers: Some(peers), ..self }
    }

    /// How other servers are reached; absent for one that works alone.
    pub(crate) const fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// This server.
    pub(crate) const fn server(&self) -> ServerId {
        self.server
    }

    /// How long a pool may be without a leader after a crash: the lease, the pause between two tries to take it, and the
    /// reading of the pool.
    pub(crate) fn take_over_within(&self) -> Duration {
        self.settings.lease + self.settings.lease / 4 + Duration::from_secs(2)
    }

    /// Whether this server leads the pool, as far as its loop has said.
    pub(crate) fn leads(&self, pool: PoolId) -> bool {
        self.handle(pool).is_some_and(|handle| handle.leads.load(Ordering::Relaxed))
    }

    /// Allocations as they change: a hint to look again, not a record.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<AllocationId> {
        self.changes.subscribe()
    }

    fn handle(&self, pool: PoolId) -> Option<Handle> {
        // a panic while holding the lock leaves a map that is still good
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).get(&pool).cloned()
    }

    /// The pools that this server serves.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolId> {
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pools: Vec<PoolId> = handles.keys().copied().collect();
        pools.sort_unstable();
        pools
    }

    /// Ends every loop after the batch in flight, giving the leases up.
    pub fn stop(&self) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits until every loop has ended, after [`Schedulers::stop`].
    pub async fn stopped(&self) {
        self.running.closed().await;
    }
}

impl App {
    /// Starts the loop of a pool; it competes for the pool's lease. A pool that runs already is left alone.
    pub fn schedule_pool(&self, pool: PoolId) -> Option<tokio::task::JoinHandle<()>> {
        let mut handles = self.schedulers.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if handles.contains_key(&pool) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(self.schedulers.settings.batch * 4);
        let leads = Arc::new(AtomicBool::new(false));
        handles.insert(pool, Handle { commands: sender, leads: Arc::clone(&leads) });
        let scheduler = run::Loop::new(self, pool, leads);
        let running = self.schedulers.running.subscribe();
        Some(tokio::spawn(async move {
            scheduler.run(receiver).await;
            drop(running);
        }))
    }

    /// Starts the loops of all pools.
    ///
    /// # Errors
    /// When the pools cannot be read.
    pub async fn schedule_all_pools(&self) -> Result<Vec<tokio::task::JoinHandle<()>>, AppError> {
        Ok(self.pools().await?.into_iter().filter_map(|pool| self.schedule_pool(pool)).collect())
    }

    /// Every pool there is, whoever leads it.
    pub(crate) async fn pools(&self) -> Result<Vec<PoolId>, AppError> {
        let mut tx = self.store.begin("pools", store::Scope::Operator).await?;
        let pools = store::pool::page(&mut tx, None, i64::MAX).await?;
        Ok(pools.into_iter().map(|pool| pool.pool_id).collect())
    }

    /// Sends a command to a pool's loop on this server; the answer comes once it is durable.
    pub(crate) async fn submit(
        &self,
        pool: PoolId,
        command: Command,
    ) -> Result<oneshot::Receiver<Result<Answer, AppError>>, AppError> {
        let handle = self.schedulers.handle(pool).ok_or(AppError::NotLeading)?;
        let (answer, receiver) = oneshot::channel();
        let pending = Pending { command, at: self.clock.now(), answer };
        handle.commands.send(pending).await.map_err(|_| AppError::NotLeading)?;
        Ok(receiver)
    }

    /// Sends a command to this server's own loop and waits for its answer: [`AppError::NotLeading`] where another server
    /// leads, or nobody.
    pub(crate) async fn ask_here(&self, pool: PoolId, command: Command) -> Result<Answer, AppError> {
        let receiver = self.submit(pool, command).await?;
        receiver.await.map_err(|_| AppError::Unavailable("the scheduler stopped before it answered".into()))?
    }

    /// Has every pool look at its queue again, after a limit or grace changed. Should nobody lead one now, its next leader
    /// does so anyway.
    pub(crate) async fn reconsider_queues(&self) {
        for pool in self.pools().await.unwrap_or_default() {
            if let Err(error) = self.ask(pool, Command::Reconsider).await {
                tracing::info!(%pool, %error, "the queue is looked at later");
            }
        }
    }

    /// Lets a pool's deadlines pass up to the present time: for replay, where no timer does.
    ///
    /// # Errors
    /// [`AppError::Unavailable`] when nobody leads the pool.
    pub async fn tick(&self, pool: PoolId) -> Result<(), AppError> {
        self.ask(pool, Command::Tick).await.map(|_| ())
    }

    /// What the leader knows of its pool.
    ///
    /// # Errors
    /// [`AppError::Unavailable`] when nobody leads the pool.
    pub async fn look_at_pool(&self, pool: PoolId) -> Result<PoolView, AppError> {
        match self.ask(pool, Command::Look).await? {
            Answer::Look(view) => Ok(view),
            other => Err(AppError::Internal(format!("the scheduler answered {other:?}"))),
        }
    }
}
