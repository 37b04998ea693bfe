//! Connections and transactions.

use crate::{error::StoreError, migrate, scope::Scope};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{
    str::FromStr,
    time::{Duration, Instant},
};

/// How to reach Postgres.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// `postgres://…`; its user needs to be a member of the role `gpuledger_service`.
    pub url: String,
    /// Connections kept at most, 1 to 1,000.
    pub connections: u32,
    /// How long to wait for a connection before the database counts as unavailable.
    pub acquire: Duration,
    /// The longest that one statement may run.
    pub statement: Duration,
}

impl StoreSettings {
    /// The defaults for a URL: 16 connections, 3 s to get one, 30 s for a statement.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            connections: 16,
            acquire: Duration::from_secs(3),
            statement: Duration::from_secs(30),
        }
    }
}

/// A connection that was idle for longer is asked whether it lives before it is used: Postgres may have been away.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// The database, as the service's role sees it.
#[derive(Debug, Clone)]
pub struct Store {
    pool: PgPool,
}

impl Store {
    /// A pool of connections that each work as `gpuledger_service`. Connects when first used, so that a server starts
    /// while Postgres is away and recovers by itself.
    ///
    /// # Errors
    /// When the URL does not parse.
    pub fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        let statement = format!("{}ms", settings.statement.as_millis());
        let options = PgConnectOptions::from_str(&settings.url)
            .map_err(StoreError::Database)?
            .application_name("gpuledger")
            .options([
                ("statement_timeout", statement.as_str()),
                ("lock_timeout", "10s"),
                ("idle_in_transaction_session_timeout", "15s"),
                ("timezone", "UTC"),
                // named last, or temporary objects would be found before the ledger's
                ("search_path", "pg_catalog,public,pg_temp"),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections)
            .min_connections(0)
            .acquire_timeout(settings.acquire)
            // a connection that was in use a moment ago needs no question whether it lives: that would be a round trip more
            // for every transaction
            .test_before_acquire(false)
            .before_acquire(|connection, seen| {
                Box::pin(async move {
                    if seen.idle_for > TRUSTED_IDLE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .after_connect(|connection, _| {
                Box::pin(async move {
                    sqlx::query("set role gpuledger_service").execute(&mut *connection).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool })
    }

    /// Begins a transaction under a scope. `name` names it in metrics.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no connection is to be had.
    pub async fn begin(&self, name: &'static str, scope: Scope) -> Result<Tx, StoreError> {
        // one round trip for both; the setting is made of UUIDs, commas and a star, never of foreign text
        let begin = format!("begin; set local app.tenants = '{}'", scope.setting());
        self.begin_with(name, scope, begin).await
    }

    /// Begins a transaction of a pool's leader. Postgres ends it when its client is silent for `idle`, or a statement
    /// takes longer than `statement`: a take-over waits for it, and its server may stand still or be cut off.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no connection is to be had.
    pub async fn begin_leading(
        &self,
        name: &'static str,
        scope: Scope,
        idle: Duration,
        statement: Duration,
    ) -> Result<Tx, StoreError> {
        let begin = format!(
            "begin; set local app.tenants = '{}'; set local idle_in_transaction_session_timeout = {}; \
             set local statement_timeout = {}",
            scope.setting(),
            idle.as_millis(),
            statement.as_millis()
        );
        self.begin_with(name, scope, begin).await
    }

    /// Begins a transaction that sees one instant's state throughout and writes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no connection is to be had.
    pub async fn begin_snapshot(&self, name: &'static str, scope: Scope) -> Result<Tx, StoreError> {
        let begin =
            format!("begin isolation level repeatable read read only; set local app.tenants = '{}'", scope.setting());
        self.begin_with(name, scope, begin).await
    }

    async fn begin_with(&self, name: &'static str, scope: Scope, begin: String) -> Result<Tx, StoreError> {
        let asked = Instant::now();
        let inner = self.pool.begin_with(AssertSqlSafe(begin)).await?;
        metrics::histogram!("gpuledger_database_begin_seconds").record(asked.elapsed());
        Ok(Tx { inner, scope, course: Course { name, begun: Instant::now(), outcome: "rolled_back" } })
    }

    /// The connections that are open, how many of them are idle, and how many there may be.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections {
            open: self.pool.size(),
            idle: u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX),
            most: self.pool.options().get_max_connections(),
        }
    }

    /// Whether Postgres answers and has this binary's schema.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it does not answer, [`StoreError::Schema`] when it was not migrated yet.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let newest: Option<i64> =
            sqlx::query_scalar("select max(version) from schema_migration").fetch_one(&self.pool).await?;
        if newest < migrate::newest() {
            return Err(StoreError::Schema("the database is not migrated yet".into()));
        }
        Ok(())
    }

    /// Closes every connection, after the transactions in flight.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// The connections of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    pub open: u32,
    pub idle: u32,
    /// How many there may be.
    pub most: u32,
}

/// A transaction under a scope. Dropped without [`Tx::commit`], it is rolled back.
#[derive(Debug)]
pub struct Tx {
    inner: Transaction<'static, Postgres>,
    scope: Scope,
    course: Course,
}

/// How a transaction went: counted when it is over, however it ends.
#[derive(Debug)]
struct Course {
    name: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Course {
    fn drop(&mut self) {
        let (name, outcome) = (self.name, self.outcome);
        metrics::counter!("gpuledger_transactions_total", "name" => name, "outcome" => outcome).increment(1);
        metrics::histogram!("gpuledger_transaction_seconds", "name" => name).record(self.begun.elapsed());
    }
}

/// Counts how long a statement waited that takes rows which others may hold. `lock` names what it takes.
pub(crate) fn waited(lock: &'static str, since: Instant) {
    metrics::histogram!("gpuledger_lock_wait_seconds", "lock" => lock).record(since.elapsed());
}

impl Tx {
    /// The scope it was begun under.
    #[must_use]
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The connection, for this crate's queries.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.inner
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// [`StoreError::CommitUnknown`] when the connection broke before the answer came.
    pub async fn commit(self) -> Result<(), StoreError> {
        let Self { inner, mut course, .. } = self;
        course.outcome = "unknown";
        let result = inner.commit().await.map_err(|error| match StoreError::from(error) {
            StoreError::Unavailable(source) => StoreError::CommitUnknown(source),
            other => other,
        });
        course.outcome = match &result {
            Ok(()) => "committed",
            Err(StoreError::CommitUnknown(_)) => "unknown",
            Err(_) => "failed",
        };
        result
    }
}
