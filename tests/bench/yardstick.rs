//! What bare PostgreSQL does, on the same server as the ledger.

use crate::{
    Outcome, Settings,
    postgres_server::{self, PostgresServer},
};
use sqlx::{AssertSqlSafe, PgConnection};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// `pgbench`'s own transactions: three updates, a query and an insert, durable each.
#[derive(Debug)]
pub struct Pgbench<'a> {
    postgres: &'a PostgresServer,
    url: String,
    /// How long it runs.
    length: [&'static str; 2],
}

impl<'a> Pgbench<'a> {
    /// Makes its tables.
    pub async fn new(postgres: &'a PostgresServer, settings: Settings) -> Outcome<Self> {
        let url = postgres.create("pgbench", None).await?;
        let pgbench = Self { postgres, url, length: settings.size(["-t", "5"], ["-T", "30"]) };
        pgbench.run(&["-i", "-q", "-s", settings.size("1", "50")]).await?;
        Ok(pgbench)
    }

    /// Transactions per second of 64 clients.
    pub async fn per_second(&self) -> Outcome<f64> {
        self.postgres.settle().await?;
        let [limit, length] = self.length;
        let said = self.run(&["-c", "64", "-j", "2", limit, length]).await?;
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")).and_then(|line| line.split(' ').next());
        rate.and_then(|rate| rate.parse().ok()).ok_or_else(|| format!("pgbench said:\n{said}"))
    }

    async fn run(&self, args: &[&str]) -> Outcome<String> {
        let program = self.postgres.program("pgbench")?;
        let output = Command::new(&program).args(args).arg(&self.url).output().await;
        let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// `COPY` of a table's rows into one like it that has no index.
#[derive(Debug)]
pub struct Copy {
    connection: PgConnection,
    /// As `COPY … TO STDOUT` gave them.
    text: Vec<u8>,
    rows: u64,
}

impl Copy {
    /// Takes up to so many rows of a table.
    pub async fn of(postgres: &PostgresServer, database_url: &str, table: &str, most: u64) -> Outcome<Self> {
        let psql = postgres.program("psql")?;
        let query = format!("copy (select * from {table} limit {most}) to stdout");
        let output = Command::new(&psql).args(["-X", "-c", &query, database_url]).output().await;
        let output = output.map_err(|e| format!("{}: {e}", psql.display()))?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let rows = output.stdout.iter().filter(|byte| **byte == b'\n').count() as u64;
        postgres_server::execute(database_url, &format!("create table yardstick (like {table})")).await?;
        Ok(Self { connection: postgres_server::connect(database_url).await?, text: output.stdout, rows })
    }

    /// Rows per second, until they are durable.
    pub async fn per_second(&mut self) -> Outcome<f64> {
        let failed = |e: sqlx::Error| format!("COPY: {e}");
        sqlx::raw_sql("truncate yardstick").execute(&mut self.connection).await.map_err(failed)?;
        let since = Instant::now();
        let mut copy = self.connection.copy_in_raw("copy yardstick from stdin").await.map_err(failed)?;
        for piece in self.text.chunks(1 << 20) {
            copy.send(piece).await.map_err(failed)?;
        }
        let copied = copy.finish().await.map_err(failed)?;
        let took = since.elapsed();
        if copied != self.rows {
            return Err(format!("COPY took {copied} of {} rows", self.rows));
        }
        Ok(copied as f64 / took.as_secs_f64())
    }
}

/// How long statements take, one after the other, in one transaction until it is durable.
pub async fn timed(database_url: &str, statements: &str) -> Outcome<Duration> {
    let mut connection = postgres_server::connect(database_url).await?;
    let since = Instant::now();
    let transaction = format!("begin; {statements}; commit");
    sqlx::raw_sql(AssertSqlSafe(transaction)).execute(&mut connection).await.map_err(|e| e.to_string())?;
    Ok(since.elapsed())
}
