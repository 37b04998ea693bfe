//! The ledger's database, found or started, and the use cases on it.

use crate::{clock, config::Config, error::CliError, oidc, output};
use app::{App, Oidc, Random, Schedulers, Sessions};
use postgres::Running;
use store::Store;
use types::ServerId;

/// Finds the Postgres that is configured, or starts a private one.
pub(crate) async fn find(settings: postgres::Settings) -> Result<Running, CliError> {
    let found = tokio::task::spawn_blocking(move || postgres::find(&settings)).await;
    Ok(found.map_err(|e| CliError::Failed(format!("the search for PostgreSQL failed: {e}")))??)
}

/// Stops a private Postgres, which takes it a moment.
pub(crate) async fn leave(running: Running) {
    // the thread panics only where the destructor does, and then there is nothing left to stop
    let _ = tokio::task::spawn_blocking(move || drop(running)).await;
}

/// The use cases on a database. Connects when first used.
pub(crate) fn app(config: &Config, url: &str) -> Result<App, CliError> {
    let clock = clock::clock()?;
    let server = ServerId::new(clock.now(), Random::System.bytes());
    let store = Store::open(&config.store(url))?;
    let sessions = Sessions::new(config.sessions());
    let schedulers = Schedulers::new(server, config.schedulers());
    let oidc = Oidc::new(oidc::settings(&config.oidc)?)?;
    Ok(App::new(store, clock, Random::System, sessions, schedulers).with_oidc(oidc))
}

/// `gpuledger migrate`
pub(crate) async fn migrate(config: &Config) -> Result<(), CliError> {
    let running = find(config.postgres()).await?;
    output::note(running.describe());
    let done = store::migrate(config.owner_url(running.url())).await;
    leave(running).await;
    done?;
    output::line("the database has this binary's schema")
}
