//! The PostgreSQL that both sides of a bench work on: private, on disk, and safe against loss of power.

use crate::Outcome;
use postgres::{Place, Running, Settings};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::path::PathBuf;

/// More memory than a fresh cluster asks for, and room in the log so that no checkpoint is forced. The rest is as
/// PostgreSQL comes, `fsync` and `synchronous_commit` among it.
const SETTINGS: [(&str, &str); 2] = [("shared_buffers", "2GB"), ("max_wal_size", "8GB")];
/// A smoke run shares its machine with other tests.
const QUICK_SETTINGS: [(&str, &str); 2] = [("shared_buffers", "128MB"), ("max_wal_size", "1GB")];

/// A running server with a fresh cluster, which goes with this value.
#[derive(Debug)]
pub struct PostgresServer {
    /// `None` only while it is dropped.
    running: Option<Running>,
    folder: PathBuf,
}

impl PostgresServer {
    pub async fn start(quick: bool) -> Outcome<Self> {
        // where things that stay belong, which is seldom in memory
        let folder = PathBuf::from(format!("/var/tmp/gpuledger-bench-{}", std::process::id()));
        let settings = Settings::new(None, Place::Folder(folder.clone()));
        let mut server = Self { running: None, folder };
        let first = postgres::find(&settings).map_err(|e| e.to_string())?;
        for (name, value) in if quick { QUICK_SETTINGS } else { SETTINGS } {
            execute(first.url(), &format!("alter system set {name} = '{value}'")).await?;
        }
        drop(first);
        let running = postgres::find(&settings).map_err(|e| e.to_string())?;
        eprintln!("{}", running.describe());
        server.running = Some(running);
        for (name, value) in [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")] {
            let set: String = query(&server.url("postgres")?, &format!("show {name}")).await?;
            if set != value {
                return Err(format!("{name} is {set}: figures of it would be of no use"));
            }
        }
        Ok(server)
    }

    /// The connection URL of one of its databases.
    pub fn url(&self, database: &str) -> Outcome<String> {
        Ok(self.running()?.url_of(database))
    }

    /// A program that came with it.
    pub fn program(&self, name: &str) -> Outcome<PathBuf> {
        self.running()?
            .programs()
            .map(|folder| folder.join(name))
            .ok_or_else(|| "its programs are not known".to_owned())
    }

    /// Its first process.
    pub fn pid(&self) -> Outcome<u32> {
        self.running()?.pid().ok_or_else(|| "it was started by another process".to_owned())
    }

    /// A new, empty database, or a copy of one that nobody works on.
    pub async fn create(&self, database: &str, template: Option<&str>) -> Outcome<String> {
        let template = template.map_or(String::new(), |name| format!(" template {name} strategy file_copy"));
        execute(&self.url("postgres")?, &format!("create database {database}{template}")).await?;
        self.url(database)
    }

    /// Writes out what is only in memory, so that no side pays for the other's.
    pub async fn settle(&self) -> Outcome<()> {
        execute(&self.url("postgres")?, "checkpoint").await
    }

    fn running(&self) -> Outcome<&Running> {
        self.running.as_ref().ok_or_else(|| "PostgreSQL is not running".to_owned())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.running.take());
        // as root its data may be elsewhere, and then stays for the next run
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left over: {error}", self.folder.display());
        }
    }
}

/// A connection to a database with its owner's rights.
pub async fn connect(url: &str) -> Outcome<PgConnection> {
    PgConnection::connect(url).await.map_err(|e| e.to_string())
}

/// Runs statements.
pub async fn execute(url: &str, statements: &str) -> Outcome<()> {
    let mut connection = connect(url).await?;
    let done = sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await;
    done.map(|_| ()).map_err(|e| format!("{e} in {statements}"))
}

/// The one value of a query.
pub async fn query<T>(url: &str, query: &str) -> Outcome<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let mut connection = connect(url).await?;
    let value = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut connection).await;
    value.map_err(|e| format!("{e} in {query}"))
}
