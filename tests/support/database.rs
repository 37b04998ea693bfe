//! A database for one test: a copy of a template that the product's own migrator made once for these migrations.

use crate::database_server::{DatabaseServer, URL_VARIABLE};
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, postgres::PgConnectOptions};
use std::{
    env, fs,
    path::Path,
    str::FromStr,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};
use tokio::sync::OnceCell;
use types::Clock;

/// Databases of tests are named `gpuledger_test_<milliseconds of birth>_<process>_<count>`.
const PREFIX: &str = "gpuledger_test_";
/// Databases of tests that failed or were killed are dropped after this many milliseconds.
const LEFTOVER_AGE: i64 = 3_600_000;
/// The advisory lock under which the template is made.
const TEMPLATE_LOCK: i64 = 0x6770_756c;

static SERVER: OnceCell<DatabaseServer> = OnceCell::const_new();
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A database with the product's schema and nothing in it, dropped with this value unless the test fails.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    server_url: String,
}

impl Database {
    /// A new one.
    ///
    /// # Panics
    /// When there is no Postgres, or it refuses: a test cannot go on then.
    pub async fn fresh() -> Self {
        let server = SERVER.get_or_init(find).await;
        match Self::create(server.url()).await {
            Ok(database) => database,
            Err(error) => panic!("no database on {}: {error}", server.describe()),
        }
    }

    /// One without anything in it, to be migrated.
    ///
    /// # Panics
    /// When there is no Postgres, or it refuses: a test cannot go on then.
    pub async fn empty() -> Self {
        let server = SERVER.get_or_init(find).await;
        let made = async {
            let name = new_name();
            execute(&mut connect(server.url()).await?, format!("CREATE DATABASE {name}")).await?;
            Ok::<_, String>(Self { url: url_of(server.url(), &name)?, name, server_url: server.url().to_owned() })
        };
        match made.await {
            Ok(database) => database,
            Err(error) => panic!("no database on {}: {error}", server.describe()),
        }
    }

    async fn create(server_url: &str) -> Result<Self, String> {
        let mut server = connect(server_url).await?;
        let template = template(&mut server, server_url).await?;
        let name = new_name();
        // copying files beats writing the copy to the log, for a template this small on a server without fsync
        execute(&mut server, format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")).await?;
        Ok(Self { url: url_of(server_url, &name)?, name, server_url: server_url.to_owned() })
    }

    /// The connection URL, with the rights of the schema's owner.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection with the rights of the schema's owner, to look at what the product wrote.
    ///
    /// # Panics
    /// When Postgres refuses it.
    pub async fn connect(&self) -> PgConnection {
        match connect(&self.url).await {
            Ok(connection) => connection,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the database stays for an hour, or as long as its server: {}", self.url);
            return;
        }
        let (server_url, name) = (self.server_url.clone(), self.name.clone());
        // on a thread of its own, because the test's runtime may be the one that is being left
        let dropped = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
            runtime.block_on(async {
                let mut server = connect(&server_url).await?;
                execute(&mut server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await
            })
        })
        .join();
        if let Ok(Err(error)) = dropped {
            eprintln!("{} is left over: {error}", self.name);
        }
    }
}

fn new_name() -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}_{}_{count}", Clock::System.now().as_millis(), std::process::id())
}

async fn find() -> DatabaseServer {
    let server = match DatabaseServer::find().await {
        Ok(server) => server,
        Err(none) => panic!("{none}"),
    };
    if env::var_os(URL_VARIABLE).is_none() {
        eprintln!("tests run on {}", server.describe());
    }
    server
}

/// The template's name; made at the first call, by whichever process comes first.
async fn template(server: &mut PgConnection, server_url: &str) -> Result<String, String> {
    let name = format!("gpuledger_template_{}", migrations_digest()?);
    if exists(server, &name).await? {
        return Ok(name);
    }
    execute(server, format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await?;
    let made = if exists(server, &name).await? { Ok(()) } else { make_template(server, server_url, &name).await };
    execute(server, format!("SELECT pg_advisory_unlock({TEMPLATE_LOCK})")).await?;
    made.map(|()| name)
}

/// Migrates under another name and renames, so that a template that exists is whole.
async fn make_template(server: &mut PgConnection, server_url: &str, name: &str) -> Result<(), String> {
    sweep(server).await?;
    let unfinished = format!("{name}_unfinished");
    execute(server, format!("DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")).await?;
    execute(server, format!("CREATE DATABASE {unfinished}")).await?;
    store::migrate(&url_of(server_url, &unfinished)?).await.map_err(|e| format!("migrating: {e}"))?;
    execute(server, format!("ALTER DATABASE {unfinished} RENAME TO {name}")).await
}

/// Drops what earlier runs left over.
async fn sweep(server: &mut PgConnection) -> Result<(), String> {
    let rows = sqlx::query("SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1)")
        .bind(PREFIX)
        .fetch_all(&mut *server)
        .await
        .map_err(|e| e.to_string())?;
    let now = Clock::System.now().as_millis();
    for row in rows {
        let name: String = row.try_get(0).map_err(|e| e.to_string())?;
        let born = name[PREFIX.len()..].split('_').next().and_then(|born| born.parse::<i64>().ok());
        if born.is_some_and(|born| now - born > LEFTOVER_AGE) {
            execute(server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        }
    }
    Ok(())
}

async fn exists(server: &mut PgConnection, name: &str) -> Result<bool, String> {
    sqlx::query("SELECT 1 FROM pg_database WHERE datname = $1")
        .bind(name)
        .fetch_optional(server)
        .await
        .map(|row| row.is_some())
        .map_err(|e| e.to_string())
}

/// Twelve digits that change with any migration.
fn migrations_digest() -> Result<String, String> {
    // of the checkout that Cargo runs, which need not be the one that was built
    let tests = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = Path::new(&tests).join("../migrations");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "sql") {
            files.push(path);
        }
    }
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update(fs::read(&file).map_err(failed)?);
    }
    Ok(hex::encode(digest.finalize())[..12].to_owned())
}

async fn connect(url: &str) -> Result<PgConnection, String> {
    PgConnection::connect(url).await.map_err(|e| e.to_string())
}

/// Only with text made of names from this file: Postgres takes no parameters in these statements.
async fn execute(connection: &mut PgConnection, statement: String) -> Result<(), String> {
    sqlx::raw_sql(AssertSqlSafe(statement.clone()))
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| format!("{statement}: {e}"))
}

fn url_of(server_url: &str, database: &str) -> Result<String, String> {
    let options = PgConnectOptions::from_str(server_url).map_err(|e| e.to_string())?;
    Ok(sqlx::ConnectOptions::to_url_lossy(&options.database(database)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(connection: &mut PgConnection, statement: &'static str) -> i64 {
        sqlx::query(statement).fetch_one(connection).await.unwrap().get(0)
    }

    #[tokio::test]
    async fn two_databases_have_the_schema_and_share_nothing() {
        let (one, other) = (Database::fresh().await, Database::fresh().await);
        assert_ne!(one.url(), other.url());
        let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
        let mut on_one = one.connect().await;
        assert!(count(&mut on_one, tables).await > 0);
        sqlx::raw_sql("CREATE TABLE mine ()").execute(&mut on_one).await.unwrap();
        let mine = "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'";
        assert_eq!(count(&mut on_one, mine).await, 1);
        assert_eq!(count(&mut other.connect().await, mine).await, 0);
    }

    #[tokio::test]
    async fn a_database_is_gone_after_its_test_also_with_an_open_connection() {
        let database = Database::fresh().await;
        let name = database.name.clone();
        let _open = database.connect().await;
        let mut server = connect(&database.server_url).await.unwrap();
        assert!(exists(&mut server, &name).await.unwrap());
        drop(database);
        assert!(!exists(&mut server, &name).await.unwrap());
    }

    #[tokio::test]
    async fn leftovers_of_an_hour_ago_are_swept_and_nothing_else() {
        let database = Database::fresh().await;
        let mut server = connect(&database.server_url).await.unwrap();
        let old = format!("{PREFIX}1000_1_{}", std::process::id());
        execute(&mut server, format!("CREATE DATABASE {old}")).await.unwrap();
        sweep(&mut server).await.unwrap();
        assert!(!exists(&mut server, &old).await.unwrap());
        assert!(exists(&mut server, &database.name).await.unwrap());
    }
}
