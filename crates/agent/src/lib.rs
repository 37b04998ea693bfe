//! The node agent. It reads memory from a source, integrates it into readings, keeps them in a spool on disk until the
//! server has acknowledged them, tells the server that the node and its workloads live, and binds local processes to
//! allocations through a Unix socket.
//!
//! ```text
//! source ──► node (orders, bindings, meters) ──► spool ──► upload ──► server
//!                ▲                 ▲                                    │
//!              socket            report ◄───────── orders ──────────────┘
//! ```
//!
//! The readings of the open window live in memory: a crash loses that window of *used* memory, up to one minute, which
//! stays visible as time that no reading covers. *Reserved* memory is metered by the server and loses nothing.

mod client;
mod node;
mod node_clock;
mod report;
mod rotation;
pub mod socket;
pub mod source;
pub mod spool;
mod state;
pub mod trust;
mod upload;

pub use client::ClientError;
pub use metering::integrate::WindowLength;
pub use source::simulated::{SimulatedGpu, simulated_use, simulated_uuid};

use client::ServerClient;
use node::Node;
use node_clock::NodeClock;
use source::{MemorySource, nvidia_smi::NvidiaSmi, simulated::Simulated};
use spool::Spool;
use state::StateDir;
use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use types::{
    Clock, Name, NameError, NodeId, PoolId, RunId, StreamId,
    wire::{AgentRun, Join, Joined, Reading},
};

/// The most bytes that the spool takes on disk. At about 300 bytes a reading and 64 parts it holds ten days.
const SPOOL_LIMIT: u64 = 256 << 20;
/// The most readings in one batch: well under the wire's limit, so that a batch stays small on the way.
const BATCH_READINGS: usize = 2_000;
/// The most readings kept in memory while the spool cannot be written.
const UNSPOOLED_READINGS: usize = 20_000;
/// How long a stopping agent tries to hand in what it has.
const DRAIN: Duration = Duration::from_secs(3);

/// What an agent needs to run.
#[derive(Clone)]
pub struct AgentSettings {
    /// Where the server answers, such as `https://ledger.example`.
    pub server_url: String,
    /// As given at the join.
    pub node_id: NodeId,
    /// As given at the join.
    pub pool_id: PoolId,
    /// The node's own credential.
    pub credential: String,
    /// The file that the credential stands in, to be replaced when it is renewed; without it, it never is.
    pub credential_file: Option<PathBuf>,
    /// How old the credential becomes before the agent renews it.
    pub rotate_every: Duration,
    /// Where spool, bindings and clock are kept; made if it is not there.
    pub state_dir: PathBuf,
    /// The Unix socket for local clients; its folder is made if it is not there.
    pub socket: PathBuf,
    /// The only certificates to trust; the system's where absent.
    pub ca_file: Option<PathBuf>,
    /// Between two signs of life.
    pub report_interval: Duration,
    /// Between two samples; each is moved by up to a fifth, so that samples and workloads do not beat.
    pub sample_interval: Duration,
    /// The length of the windows of readings.
    pub window: WindowLength,
    pub source: SourceSettings,
}

impl fmt::Debug for AgentSettings {
    /// Without the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSettings")
            .field("server_url", &self.server_url)
            .field("node_id", &self.node_id)
            .field("state_dir", &self.state_dir)
            .field("socket", &self.socket)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Where memory is read from.
#[derive(Debug, Clone)]
pub enum SourceSettings {
    /// Invented cards, on which every active part runs an invented workload.
    Simulated {
        /// Different for each node, so that no two have the same cards.
        seed: u64,
        gpus: Vec<SimulatedGpu>,
    },
    /// The driver's own program.
    NvidiaSmi {
        /// Its path, or a name to look up.
        path: PathBuf,
    },
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot talk to the server")]
    Client(#[from] ClientError),
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the spool cannot be opened")]
    Spool(#[from] spool::SpoolError),
    #[error("another agent uses the state in {0}")]
    StateInUse(PathBuf),
    #[error("another agent answers on {0}")]
    SocketInUse(PathBuf),
    #[error("the host's boot id is not usable")]
    BootId(#[from] NameError),
    #[error("the server refused the join with status {status}: {detail}")]
    JoinRefused { status: u16, detail: String },
    #[error("the server answered the join with something else")]
    JoinAnswer(#[from] serde_json::Error),
}

/// What the agent's tasks share.
#[derive(Debug)]
struct Shared {
    node: Mutex<Node>,
    clock: NodeClock,
    spool: Mutex<Spool>,
    state: StateDir,
    /// By which the server tells this run of the agent from any other.
    run: AgentRun,
    /// Readings go to the spool one batch after the other, so that each part's windows stay in order.
    spooling: tokio::sync::Mutex<()>,
    /// Something changed that the server should hear of at once.
    report_now: Notify,
    /// Something changed that should be sampled at once.
    sample_now: Notify,
    /// The spool holds something new.
    upload_now: Notify,
    /// The server wants the credential renewed.
    rotate_now: Notify,
    /// Counts the orders that arrived.
    orders_seen: watch::Sender<u64>,
    /// Whether the server took the last report.
    heard: AtomicBool,
}

impl Shared {
    /// A task that panicked cannot have left a half-made change that matters more than going on.
    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spool(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the readings that are ready to the spool. What cannot be written is kept and tried again, up to a bound.
    async fn spool_readings(self: &Arc<Self>) {
        let _in_order = self.spooling.lock().await;
        let readings = self.node().take_closed();
        if readings.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || shared.append(&readings)).await;
        if let Err(error) = written {
            tracing::error!(%error, "the spool's writer failed");
        }
        self.upload_now.notify_one();
    }

    fn append(&self, readings: &[Reading]) {
        for (done, chunk) in readings.chunks(BATCH_READINGS).enumerate() {
            match self.spool().append(chunk) {
                Ok(_) => {}
                Err(error @ spool::SpoolError::Full { .. }) => {
                    tracing::error!(%error, readings = chunk.len(), "readings are lost: their windows stay uncovered");
                }
                Err(error) => {
                    let rest = &readings[done * BATCH_READINGS..];
                    let kept = self.node().put_back(rest, UNSPOOLED_READINGS);
                    tracing::error!(%error, kept, lost = rest.len() - kept, "the spool cannot be written");
                    return;
                }
            }
        }
    }

    /// Writes the bindings to disk, so that an agent that starts anew still knows whose process is whose.
    fn save_bindings(&self) {
        let bindings = self.node().bindings();
        if let Err(error) = self.state.write("bindings.json", &bindings) {
            tracing::warn!(%error, "the bindings cannot be written");
        }
    }
}

/// Runs until `shutdown`; then closes the open windows, tries for a moment to hand them in, and leaves the rest in the
/// spool for the next start.
///
/// # Errors
/// [`AgentError`] where it cannot start. Once it runs, trouble with server, driver or disk is logged and outlived.
pub async fn run(settings: AgentSettings, clock: Clock, shutdown: CancellationToken) -> Result<(), AgentError> {
    match settings.source.clone() {
        SourceSettings::Simulated { seed, gpus } => run_on(Simulated::new(seed, gpus), settings, clock, shutdown).await,
        SourceSettings::NvidiaSmi { path } => run_on(NvidiaSmi::new(path), settings, clock, shutdown).await,
    }
}

async fn run_on<S: MemorySource>(
    mut source: S,
    settings: AgentSettings,
    clock: Clock,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    let client =
        ServerClient::new(&settings.server_url, settings.ca_file.as_deref())?.with_credential(&settings.credential);
    let state = StateDir::open(settings.state_dir.clone())?;
    let _alone = state.lock()?;
    let boot_id = boot_id()?;
    let clock = NodeClock::open(clock, &boot_id, &state);
    // a stream belongs to one node: what a former membership left there is not this node's to hand in
    let spool_folder = state.path("spool").join(settings.node_id.to_string());
    let spool = Spool::open(&spool_folder, new_stream(&clock), SPOOL_LIMIT)?;
    let mut node = Node::new(boot_id, S::IS_THE_WORKLOAD, settings.window, 3 * millis(settings.sample_interval));
    let bound = state.read("bindings.json").unwrap_or_default();
    node.restore(bound, clock.now(), &proc_stat);
    let shared = Arc::new(Shared {
        node: Mutex::new(node),
        run: new_run(&state, &clock, settings.report_interval),
        clock,
        spool: Mutex::new(spool),
        state,
        spooling: tokio::sync::Mutex::new(()),
        report_now: Notify::new(),
        sample_now: Notify::new(),
        upload_now: Notify::new(),
        rotate_now: Notify::new(),
        orders_seen: watch::Sender::new(0),
        heard: AtomicBool::new(false),
    });
    let listener = socket::listen(&settings.socket).await?;
    // the first report names the cards, so they are looked at before
    let mut last_error = None;
    look(&mut source, &shared, &mut last_error).await;

    let stop = shutdown.child_token();
    let uploads_stop = CancellationToken::new();
    let report = report::run(Arc::clone(&shared), client.clone(), settings.report_interval, stop.clone());
    let hello = socket::AgentMessage::Hello {
        node_id: settings.node_id,
        pool_id: settings.pool_id,
        server_url: settings.server_url.clone(),
    };
    let local = socket::serve(listener, Arc::clone(&shared), hello, stop.clone());
    let rotating = rotate(Arc::clone(&shared), client.clone(), &settings, stop.clone());
    let upload = tokio::spawn(upload_once_heard(Arc::clone(&shared), client, uploads_stop.clone()));
    let sampling = sample(source, last_error, Arc::clone(&shared), settings.sample_interval, stop.clone());
    let watching = watch_bound(Arc::clone(&shared), stop);
    tokio::join!(report, local, sampling, watching, rotating);

    shared.node().close_all(shared.clock.now());
    shared.spool_readings().await;
    let drained = async {
        while !shared.spool().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("batches stay in the spool for the next start");
    }
    uploads_stop.cancel();
    if let Err(error) = upload.await {
        tracing::error!(%error, "the uploader failed");
    }
    // a socket that nobody serves would only make clients wait
    drop(std::fs::remove_file(&settings.socket));
    Ok(())
}

/// The last run of the agent that the server heard, as kept on disk.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct LastRun {
    run_id: RunId,
}

/// This run, which has the state of the last one that the server heard.
fn new_run(state: &StateDir, clock: &NodeClock, report_interval: Duration) -> AgentRun {
    AgentRun {
        run_id: RunId::new(clock.now(), rand::random()),
        follows: state.read::<LastRun>("run.json").map(|last| last.run_id),
        report_interval_ms: u32::try_from(report_interval.as_millis()).unwrap_or(u32::MAX),
    }
}

/// Uploads once the server takes this run's reports: before, it takes no batches from it either.
async fn upload_once_heard(shared: Arc<Shared>, client: ServerClient, stop: CancellationToken) {
    let mut orders = shared.orders_seen.subscribe();
    tokio::select! {
        () = stop.cancelled() => return,
        // the sender lives as long as what is shared
        _ = orders.wait_for(|count| *count > 0) => {}
    }
    if let Err(error) = shared.state.write("run.json", &LastRun { run_id: shared.run.run_id }) {
        tracing::warn!(%error, "the run cannot be written: should the agent start anew, the server may hear it late");
    }
    upload::run(Arc::clone(&shared), client, stop).await;
}

async fn rotate(shared: Arc<Shared>, client: ServerClient, settings: &AgentSettings, stop: CancellationToken) {
    if let Some(file) = settings.credential_file.clone() {
        rotation::run(shared, client, file, settings.rotate_every, stop).await;
    }
}

async fn sample<S: MemorySource>(
    mut source: S,
    mut last_error: Option<String>,
    shared: Arc<Shared>,
    interval: Duration,
    stop: CancellationToken,
) {
    loop {
        let jitter = rand::random_range(80..=120_u32);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval * jitter / 100) => {}
            () = shared.sample_now.notified() => {}
        }
        look(&mut source, &shared, &mut last_error).await;
        shared.spool_readings().await;
    }
}

/// Takes one sample. A failure is logged when it begins and when it ends, not every few seconds.
async fn look<S: MemorySource>(source: &mut S, shared: &Shared, last_error: &mut Option<String>) {
    let orders = shared.node().orders();
    let cards = match source.look(&orders, shared.clock.now()).await {
        Ok(cards) => {
            if last_error.take().is_some() {
                tracing::info!("memory can be read again");
            }
            Some(cards)
        }
        Err(error) => {
            let text = error.to_string();
            if last_error.as_ref() != Some(&text) {
                tracing::error!(error = %text, "memory cannot be read; it counts as unknown");
                *last_error = Some(text);
            }
            None
        }
    };
    let inventory_changed = shared.node().take_sample(shared.clock.now(), cards, &proc_stat);
    if inventory_changed {
        shared.report_now.notify_one();
    }
}

/// Sees within a second that a bound process has ended, also where its connection did not tell.
async fn watch_bound(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let ended = shared.node().check_bound(shared.clock.now(), &proc_stat);
        if ended {
            shared.save_bindings();
            shared.report_now.notify_one();
        }
    }
}

/// Joins a pool with a one-time token: the node's id and credential, which are shown this once.
///
/// # Errors
/// [`AgentError::JoinRefused`] with the server's words, or [`AgentError::Client`] where it cannot be reached.
pub async fn join(
    server_url: &str,
    token: &str,
    hostname: Name,
    machine_id: Name,
    ca_file: Option<&std::path::Path>,
) -> Result<Joined, AgentError> {
    let client = ServerClient::new(server_url, ca_file)?;
    let request = Join { token: token.to_owned(), hostname, machine_id };
    let answer = client.post("/v1/nodes/join", &request).await?;
    if answer.is_success() {
        Ok(serde_json::from_slice(&answer.body)?)
    } else {
        Err(AgentError::JoinRefused { status: answer.status, detail: answer.detail() })
    }
}

/// What names the present boot of the host.
fn boot_id() -> Result<Name, AgentError> {
    let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().parse()?),
        Err(source) => Err(AgentError::File { path, source }),
    }
}

/// Reads a process; `None` where it is gone or cannot be read. A command's name need not be UTF-8.
fn proc_stat(pid: u32) -> Option<metering::attribution::ProcessStat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    metering::attribution::ProcessStat::parse(&String::from_utf8_lossy(&text)).ok()
}

fn new_stream(clock: &NodeClock) -> StreamId {
    StreamId::new(clock.now(), rand::random())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
