//! `gpuledger serve`: HTTP, the schedulers of all pools, and recurring tasks.

use crate::{
    certificate::ServerCertificate,
    cluster,
    config::Config,
    database,
    error::{CliError, exit},
    listener, output,
};
use api::{ApiState, PrometheusHandle};
use app::{App, AppError};
use postgres::Running;
use std::time::Duration;
use store::{StoreError, migrate};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How the server starts.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ServeArgs {
    /// Do not bring the database to this binary's schema; refuse to start when it has another
    #[arg(long)]
    no_migrate: bool,
}

/// Between two tries while Postgres is away.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at a private Postgres.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks for pools that other servers made. Shorter than a lease, so that a pool without a leader is known by
/// the time that its lease has run out.
const MEET: Duration = Duration::from_secs(2);
/// How long schedulers may take to give their leases up, which otherwise run out by themselves.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Between two rounds in which metrics forget what is old.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves until a signal says to stop.
pub(crate) async fn run(config: &Config, args: ServeArgs) -> Result<(), CliError> {
    let metrics = metrics()?;
    let stop = stop_on_signals()?;
    let certificate = config.http.tls().map(ServerCertificate::load).transpose()?;
    let running = database::find(config.postgres()).await?;
    tracing::info!("{}", running.describe());
    let url = config.owner_url(running.url()).to_owned();
    let listen = config.http.listen;
    let listener = TcpListener::bind(listen).await.map_err(CliError::file("listen on", listen.to_string()))?;
    let local = listener.local_addr().map_err(CliError::file("listen on", listen.to_string()))?;
    let app = cluster::join(config, database::app(config, running.url())?, local, running.url())?;
    match bring_up(&app, &url, args).await {
        Ok(()) => {}
        Err(error) if is_away(&error) => tracing::warn!(error = error.explain(), "serves 503 until it is back"),
        Err(error) => {
            database::leave(running).await;
            return Err(error);
        }
    }
    let scheme = if certificate.is_some() { "https" } else { "http" };
    output::line(format_args!("listening on {scheme}://{local}"))?;

    let worker = tokio::spawn(work(app.clone(), url, args, config.scheduler.tasks, stop.clone()));
    let postgres = tokio::spawn(keep_postgres(running, config.postgres(), stop.clone()));
    let state = ApiState { app: app.clone(), metrics, limits: config.http.limits(), guard: config.http.guard() };
    let tls = certificate.as_ref().map(ServerCertificate::acceptor).transpose()?;
    if let Some(certificate) = certificate {
        tokio::spawn(certificate.follow());
    }
    let mut limits = config.http.connections();
    listener::fit_open_files(&mut limits, config.database.connections);
    listener::serve(listener, api::router(state), tls, limits, config.http.drain, &stop).await;
    stop.cancel();

    let worked = worker.await.unwrap_or_else(|e| Err(CliError::Failed(format!("a worker failed: {e}"))));
    app.schedulers.stop();
    if timeout(GIVE_UP, app.schedulers.stopped()).await.is_err() {
        tracing::warn!("not every lease was given up; the rest runs out by itself");
    }
    if let Err(error) = app::server::forget(&app).await {
        tracing::info!(%error, "the other servers learn by themselves that this one has ended");
    }
    app.store.close().await;
    if let Ok(Some(running)) = postgres.await {
        database::leave(running).await;
    }
    tracing::info!("stopped");
    worked
}

/// Begins to count what happens.
pub(crate) fn metrics() -> Result<PrometheusHandle, CliError> {
    let metrics = api::metric::keep().map_err(|e| CliError::Failed(format!("metrics cannot be kept: {e}")))?;
    tokio::spawn({
        let metrics = metrics.clone();
        async move {
            loop {
                sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        }
    });
    Ok(metrics)
}

/// Ends on SIGINT or SIGTERM; a second one does not wait.
fn stop_on_signals() -> Result<CancellationToken, CliError> {
    let stop = CancellationToken::new();
    let listen = |kind| signal(kind).map_err(|e| CliError::Failed(format!("signals cannot be taken: {e}")));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let token = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if token.is_cancelled() {
                // a private Postgres has a watchdog that stops it
                std::process::exit(exit::FAILED.into());
            }
            tracing::info!("stops; once more to stop at once");
            token.cancel();
        }
    });
    Ok(stop)
}

/// Makes sure of the schema and starts the scheduler of every pool.
async fn bring_up(app: &App, url: &str, args: ServeArgs) -> Result<(), CliError> {
    if args.no_migrate {
        migrate::check_schema(url).await?;
    } else {
        migrate::migrate(url).await?;
    }
    app::server::announce(app).await?;
    app.schedule_all_pools().await?;
    Ok(())
}

/// Whether Postgres is away, so that waiting helps.
fn is_away(error: &CliError) -> bool {
    matches!(error, CliError::Store(StoreError::Unavailable(_)) | CliError::App(AppError::Unavailable(_)))
}

/// Waits for Postgres, then runs recurring tasks and takes up pools that other servers made, until `stop`.
async fn work(
    app: App,
    url: String,
    args: ServeArgs,
    every: Duration,
    stop: CancellationToken,
) -> Result<(), CliError> {
    loop {
        match bring_up(&app, &url, args).await {
            Ok(()) => break,
            Err(error) if is_away(&error) => tracing::debug!(error = error.explain(), "Postgres is away"),
            Err(error) => {
                stop.cancel();
                return Err(error);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(TRY_AGAIN) => {}
        }
    }
    tracing::info!("the database is ready");
    let pools = async {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(MEET) => {}
            }
            if let Err(error) = app::server::announce(&app).await {
                tracing::debug!(%error, "the other servers could not be told that this one lives");
            }
            if let Err(error) = app.schedule_all_pools().await {
                tracing::debug!(%error, "the pools could not be looked at");
            }
        }
    };
    tokio::join!(app::tasks::run(app.clone(), every, stop.cancelled()), pools);
    Ok(())
}

/// Starts a private Postgres again should it end: port and password stay, so that everybody finds it again.
async fn keep_postgres(running: Running, settings: postgres::Settings, stop: CancellationToken) -> Option<Running> {
    let mut running = Some(running);
    loop {
        tokio::select! {
            () = stop.cancelled() => return running,
            () = sleep(LOOK) => {}
        }
        if running.as_mut().is_some_and(|running| !running.has_ended()) {
            continue;
        }
        tracing::error!("PostgreSQL ended by itself and is started again");
        if let Some(ended) = running.take() {
            database::leave(ended).await;
        }
        match database::find(settings.clone()).await {
            Ok(again) => running = Some(again),
            Err(error) => tracing::error!(error = error.explain(), "PostgreSQL does not start"),
        }
    }
}
