//! `gpuledger demo`: a whole installation on one machine, with a history.
//!
//! The first start sets up tenants, plans and nodes and replays a month or two of work in virtual time through the use
//! cases that the API calls; then it goes on live, with the real agents of simulated nodes. A later start continues.

mod live;
mod nodes;
mod progress;
mod replay;
mod shapes;
mod summary;
mod tenants;
mod workload;

use crate::{connection::ConnectionLimits, listener as http};
use app::{
    App, AppError, Caller, Random, SchedulerSettings, Schedulers, SessionSettings, Sessions, invoice,
    pool::{self, Graces, GracesChange},
    scheduler,
};
use billing::Zone;
use nodes::DemoNode;
use progress::Progress;
use serde::{Deserialize, Serialize};
use std::{
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use store::{Store, StoreSettings};
use tenants::DemoTenant;
use tokio_util::sync::CancellationToken;
use types::{Clock, Instant, InvoiceId, Name, PoolId, ServerId};
use workload::Workload;

/// How the demo runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where everything is kept, Postgres' data included. Remove it to begin anew.
    #[arg(long, default_value = "data/demo", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Jobs in the replayed history; at most 10,000.
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// Seeds the workload: the same seed gives the same jobs.
    #[arg(long, default_value_t = 20_231_107)]
    pub seed: u64,
    /// Set up, replay and issue, then end instead of going on live.
    #[arg(long)]
    pub replay_only: bool,
}

/// Why the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Postgres(#[from] postgres::NoPostgres),
    #[error("the database cannot be prepared")]
    Store(#[from] store::StoreError),
    #[error("the replay failed")]
    App(#[from] AppError),
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot listen on {listen}: is another demo running?")]
    Listen {
        listen: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("{0}")]
    Defect(String),
}

/// GPUs of the demo's cluster.
const GPUS: u32 = 72;
/// How long requests that are under way may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// In replay a node reports once in a window, so its graces are longer than those of the live pool.
const REPLAY_GRACES: Graces = Graces { hold_grace_s: 900, silence_grace_s: 900, lost_after_s: 86_400 };

/// What the demo remembers between two starts. Kept readable for its owner alone: it holds the demo's passwords.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Memory {
    /// The folder of the database, in the data folder.
    postgres: String,
    pool_id: PoolId,
    operator_password: String,
    tenant_password: String,
    nodes: Vec<DemoNode>,
}

/// Runs the demo until Ctrl-C.
///
/// # Errors
/// When there is no Postgres, the address is taken, or the replay fails.
pub async fn run(args: Args, metrics: api::PrometheusHandle) -> Result<(), DemoError> {
    let folder = |source| DemoError::File { path: args.data_dir.clone(), source };
    std::fs::create_dir_all(&args.data_dir).map_err(folder)?;
    let data_dir = args.data_dir.canonicalize().map_err(folder)?;
    // taken before the replay, so that a busy port is known at once and not after two minutes
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .map_err(|source| DemoError::Listen { listen: args.listen, source })?;
    let stop = stop_on_signal();

    let memory_file = data_dir.join("demo.json");
    let kept = read_memory(&memory_file)?;
    let postgres_dir = match &kept {
        Some(memory) => data_dir.join(&memory.postgres),
        None => fresh_postgres_dir(&data_dir)?,
    };
    let place = postgres::Place::Folder(postgres_dir.clone());
    let settings = postgres::Settings::new(std::env::var("DATABASE_URL").ok(), place);
    let running = tokio::task::spawn_blocking(move || postgres::find(&settings))
        .await
        .map_err(|e| DemoError::Defect(e.to_string()))??;
    say(running.describe());
    store::migrate(running.url()).await?;
    let store = Store::open(&StoreSettings::new(running.url()))?;

    let memory = match kept {
        Some(memory) => {
            say("continues the demo that is kept here");
            memory
        }
        None => {
            let done = tokio::select! {
                done = first_start(&args, &store, &postgres_dir) => Some(done?),
                () = stop.cancelled() => None,
            };
            let Some(memory) = done else {
                say("stopped before the replay was done; the next start begins anew");
                return Ok(());
            };
            write_memory(&memory_file, &memory)?;
            memory
        }
    };
    if !args.replay_only {
        go_live(&args, &data_dir, store.clone(), metrics, listener, &memory, &stop).await?;
    }
    store.close().await;
    drop(running);
    Ok(())
}

/// A database folder under a name of its own, so that what an unfinished first start left, here or where a stand-in for
/// the folder lies, is never continued.
fn fresh_postgres_dir(data_dir: &Path) -> Result<PathBuf, DemoError> {
    let file = |source| DemoError::File { path: data_dir.to_owned(), source };
    for entry in std::fs::read_dir(data_dir).map_err(file)? {
        let path = entry.map_err(file)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("postgres-")) {
            std::fs::remove_dir_all(&path).map_err(|source| DemoError::File { path, source })?;
        }
    }
    Ok(data_dir.join(format!("postgres-{}", hex::encode(Random::System.bytes::<4>()))))
}

/// Ends on Ctrl-C or a termination signal.
fn stop_on_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
        let terminated = async {
            match &mut terminate {
                Some(signal) => {
                    signal.recv().await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = terminated => {}
        }
        token.cancel();
    });
    stop
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn read_memory(path: &Path) -> Result<Option<Memory>, DemoError> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| DemoError::Defect(format!("{} does not parse: {e}; remove the data folder", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DemoError::File { path: path.to_owned(), source }),
    }
}

fn write_memory(path: &Path, memory: &Memory) -> Result<(), DemoError> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = |source| DemoError::File { path: path.to_owned(), source };
    let text = serde_json::to_vec_pretty(memory).map_err(|e| DemoError::Defect(e.to_string()))?;
    let mut out =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path).map_err(file)?;
    out.write_all(&text).and_then(|()| out.sync_all()).map_err(file)
}

fn app(store: Store, clock: Clock, random: Random, settings: SchedulerSettings) -> App {
    let server = ServerId::new(clock.now(), Random::System.bytes());
    App::new(store, clock, random, Sessions::new(SessionSettings::default()), Schedulers::new(server, settings))
}

/// Sets everything up and replays the history.
async fn first_start(args: &Args, store: &Store, postgres_dir: &Path) -> Result<Memory, DemoError> {
    let now = Clock::System.now();
    let start = history_start(now)?;
    let clock = Clock::standing_at(start);
    let settings = SchedulerSettings { tick: None, ..SchedulerSettings::default() };
    let app = app(store.clone(), clock, Random::seeded(args.seed), settings);
    let fresh = tenants::find(&app).await?;
    if !fresh.is_empty() {
        return Err(DemoError::Defect(
            "the database that DATABASE_URL names holds a demo already: name an empty one".into(),
        ));
    }

    let secret = || format!("demo-{}", hex::encode(Random::System.bytes::<8>()));
    let (operator_password, tenant_password) = (secret(), secret());
    let tenants = tenants::create(&app, &operator_password, &tenant_password).await?;
    let shapes = shapes::scaled_nodes(&shapes::node_shapes().map_err(DemoError::Defect)?, GPUS);
    let name: Name = "demo".parse().map_err(|e| DemoError::Defect(format!("{e}")))?;
    let pool_id = pool::create(&app, &Caller::system(), name, REPLAY_GRACES).await?.pool_id;
    wait_for_leader(&app, pool_id).await?;
    let nodes = nodes::join_all(&app, pool_id, &shapes).await?;

    let mut workload = Workload::new(args.seed, shapes, tenants.clone()).map_err(DemoError::Defect)?;
    let jobs = usize::try_from(args.jobs).unwrap_or(10_000);
    let arrivals = workload.arrivals(jobs, start, now).map_err(DemoError::Defect)?;
    let mut progress = Progress::begin("replay");
    let outcome = replay::Replay::new(&app, pool_id, &nodes, boot_id()?, arrivals)?.run(now, &mut progress).await?;
    progress.end(&format!(
        "{} requests ({} refused, {} waited), {} readings from {start} to {now}",
        outcome.requests, outcome.refused, outcome.queued, outcome.readings
    ));
    issue_all(&app, &tenants, start, now).await?;

    // live nodes report every few seconds
    let change = GracesChange { hold_grace_s: Some(120), silence_grace_s: Some(90), lost_after_s: None };
    pool::update(&app, &Caller::system(), pool_id, change).await?;
    app.schedulers.stop();
    // the leases are given up after the batch in flight
    tokio::time::sleep(Duration::from_millis(500)).await;
    let postgres = postgres_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Memory { postgres, pool_id, operator_password, tenant_password, nodes })
}

/// The start of the previous calendar month in the easternmost of the tenants' zones: the one whose month begins first.
fn history_start(now: Instant) -> Result<Instant, DemoError> {
    tenants::zones()
        .map(|name| {
            let zone: Zone = name.parse().map_err(|e| DemoError::Defect(format!("{name}: {e}")))?;
            let east_of_utc = now.to_jiff().in_tz(zone.name()).map_err(|e| DemoError::Defect(e.to_string()))?.offset();
            let month = billing::period::month_of(now, &zone).previous(&zone);
            Ok((std::cmp::Reverse(east_of_utc), month.span.start()))
        })
        .collect::<Result<Vec<_>, DemoError>>()?
        .into_iter()
        .min()
        .map(|(_, start)| start)
        .ok_or_else(|| DemoError::Defect("no tenants".into()))
}

fn boot_id() -> Result<Name, DemoError> {
    let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(&path).map_err(|source| DemoError::File { path, source })?;
    text.trim().parse().map_err(|e| DemoError::Defect(format!("the boot id {e}")))
}

async fn wait_for_leader(app: &App, pool: PoolId) -> Result<scheduler::PoolView, AppError> {
    let mut tries = 0;
    loop {
        match app.look_at_pool(pool).await {
            Err(AppError::Unavailable(_)) if tries < 200 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return other,
        }
    }
}

/// Issues every whole month of every tenant, in order.
async fn issue_all(
    app: &App,
    tenants: &[DemoTenant],
    start: Instant,
    now: Instant,
) -> Result<Vec<InvoiceId>, DemoError> {
    let mut progress = Progress::begin("issue");
    let mut issued = Vec::new();
    let caller = Caller::system();
    for (done, demo_tenant) in (0_i64..).zip(tenants) {
        let tenant = app::tenant::get(app, &caller, demo_tenant.tenant_id).await?;
        let mut period = billing::period::month_of(start, &tenant.zone);
        while period.span.end() <= now {
            let (row, document, _) = invoice::issue(app, &caller, tenant.tenant_id, &period.label, None).await?;
            progress.at(done, i64::try_from(tenants.len()).unwrap_or(1), || {
                format!("{} {} {} {}", row.number, tenant.name, period.label, document.total)
            });
            issued.push(row.invoice_id);
            period = period.next(&tenant.zone);
        }
    }
    progress.end(&format!("{} invoices", issued.len()));
    Ok(issued)
}

/// Serves, with the agents of simulated nodes and a live workload, until a signal.
async fn go_live(
    args: &Args,
    data_dir: &Path,
    store: Store,
    metrics: api::PrometheusHandle,
    listener: tokio::net::TcpListener,
    memory: &Memory,
    stop: &CancellationToken,
) -> Result<(), DemoError> {
    let app = app(store, Clock::System, Random::System, SchedulerSettings::default());
    let loops = app.schedule_all_pools().await?;
    let local = listener.local_addr().map_err(|source| DemoError::Listen { listen: args.listen, source })?;
    let (limits, guard) = (api::HttpLimits::default(), api::Guard::new(Vec::new()));
    let router = api::router(api::ApiState { app: app.clone(), metrics, limits, guard });
    // the agents' last words are heard before the server closes
    let closing = CancellationToken::new();
    let served = {
        let closing = closing.clone();
        tokio::spawn(async move {
            http::serve(listener, router, None, ConnectionLimits::default(), DRAIN, &closing).await;
        })
    };
    wait_for_leader(&app, memory.pool_id).await?;
    let tasks = tokio::spawn({
        let (app, stop) = (app.clone(), stop.clone());
        async move { app::tasks::run(app, Duration::from_secs(30), stop.cancelled_owned()).await }
    });
    let url = format!("http://{local}");
    let agents = data_dir.join("agents");
    let mut running_agents = tokio::task::JoinSet::new();
    live::start_agents(&memory.nodes, &url, &agents, stop, &mut running_agents).map_err(DemoError::Defect)?;
    let shapes = shapes::scaled_nodes(&shapes::node_shapes().map_err(DemoError::Defect)?, GPUS);
    let seed = u64::from_be_bytes(Random::System.bytes());
    let workload = Workload::new(seed, shapes, tenants::find(&app).await?).map_err(DemoError::Defect)?;
    let live = tokio::spawn(live::Live::new(app.clone(), memory.pool_id, workload).await?.run(stop.clone()));

    summary::print(&app, &url, memory, data_dir).await?;
    stop.cancelled().await;
    say("stopping");
    let _ = live.await;
    let _ = tasks.await;
    let ended = async { while running_agents.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(5), ended).await;
    closing.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(5), served).await;
    app.schedulers.stop();
    for running in loops {
        let _ = tokio::time::timeout(Duration::from_secs(5), running).await;
    }
    Ok(())
}
