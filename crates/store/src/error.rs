//! What can go wrong below, told apart by who must react.

use sqlx::postgres::PgDatabaseError;

/// Why a transaction failed. `Display` is for operators; users read what `api` makes of the variant.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres cannot be reached, is starting or shutting down, or all connections are busy: try again later.
    #[error("postgres is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The commit was sent and its answer did not come: it may or may not be durable.
    #[error("the outcome of a commit is unknown: {0}")]
    CommitUnknown(#[source] sqlx::Error),
    /// Another transaction was in the way (deadlock or serialisation): the same call may succeed now.
    #[error("collided with another transaction: {0}")]
    Collision(#[source] sqlx::Error),
    /// The row would break a rule that the schema holds.
    #[error("rule {0} refused the row")]
    Rule(Rule),
    /// A write touched another number of rows than the state it was decided on allows.
    #[error("{what}: wrote {actual} rows where {expected} were due")]
    RowCount { what: &'static str, expected: u64, actual: u64 },
    /// The lease on the pool is no longer held.
    #[error("the lease on the pool is lost")]
    LeaseLost,
    /// A stored value does not parse: table, column and what was found.
    #[error("{table}.{column} holds {found:?}")]
    Corrupt { table: &'static str, column: &'static str, found: String },
    /// The schema is not the one that this binary was built for.
    #[error("{0}")]
    Schema(String),
    /// Anything else that the database said.
    #[error("database error: {0}")]
    Database(#[source] sqlx::Error),
}

/// The name of the violated constraint: each is named after the rule it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(pub String);

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl StoreError {
    /// Whether a unique or exclusion rule of this name refused the row.
    #[must_use]
    pub fn is_rule(&self, name: &str) -> bool {
        matches!(self, Self::Rule(rule) if rule.0 == name)
    }

    /// The row count that a multi-row write must have.
    pub(crate) fn expect_rows(what: &'static str, expected: usize, actual: u64) -> Result<(), Self> {
        let expected = expected as u64;
        if expected == actual { Ok(()) } else { Err(Self::RowCount { what, expected, actual }) }
    }

    /// A stored value that does not parse.
    pub(crate) fn corrupt(table: &'static str, column: &'static str, found: impl std::fmt::Display) -> Self {
        Self::Corrupt { table, column, found: found.to_string() }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                match code.as_str() {
                    // integrity constraint violation, of whichever kind; the constraint's name is the rule
                    c if c.starts_with("23") => {
                        let name = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::constraint);
                        Self::Rule(Rule(name.unwrap_or("unnamed").to_owned()))
                    }
                    "40001" | "40P01" | "55P03" => {
                        // every error of the database passes through here
                        let reason = match code.as_str() {
                            "40001" => "serialisation",
                            "40P01" => "deadlock",
                            _ => "lock_timeout",
                        };
                        metrics::counter!("gpuledger_collisions_total", "reason" => reason).increment(1);
                        Self::Collision(error)
                    }
                    // connection exceptions, too many connections, shutdown and start-up, read-only standby, a transaction or
                    // statement that Postgres ended because it took too long; and a database
                    // that has not been migrated yet, which a server that starts beside it outlives
                    c if c.starts_with("08")
                        || c.starts_with("57P")
                        || c == "53300"
                        || c == "25006"
                        || c == "25P03"
                        || c == "57014"
                        || c == "42P01" =>
                    {
                        Self::Unavailable(error)
                    }
                    _ => Self::Database(error),
                }
            }
            _ => Self::Database(error),
        }
    }
}
