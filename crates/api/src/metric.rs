//! Every metric of the server: its name, kind, labels and meaning. They are counted where things happen; the table for
//! operators (docs/operator.md) has the same rows, which a test holds it to.

pub use metrics_exporter_prometheus::PrometheusHandle;

use app::App;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Names of its labels; their values are never paths, ids or foreign text.
    pub labels: &'static [&'static str],
    pub meaning: &'static str,
}

/// What kind of number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// As Prometheus writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

const fn counter(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, meaning }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, meaning }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, meaning }
}

/// All of them.
pub const METRICS: &[Metric] = &[
    gauge("gpuledger_build_info", &["version"], "1, with the version that runs"),
    counter(
        "gpuledger_http_requests_total",
        &["operation", "method", "status"],
        "Requests, by the operation's id in the OpenAPI document and the class of the status; aborted: the client went away first",
    ),
    histogram(
        "gpuledger_http_request_seconds",
        &["operation"],
        "From the head of a request to its answer, waits included",
    ),
    gauge("gpuledger_http_requests_in_flight", &["operation"], "Requests under way"),
    gauge("gpuledger_http_connections", &[], "Connections that are open"),
    counter("gpuledger_http_connections_refused_total", &["reason"], "Connections that were refused for their number"),
    counter("gpuledger_http_connections_closed_total", &["reason"], "Connections that the server closed, and why"),
    counter("gpuledger_tls_handshakes_failed_total", &[], "Connections that did not come to speak TLS"),
    gauge(
        "gpuledger_tls_certificate_ends_timestamp_seconds",
        &[],
        "When the server's certificate ends, where it has one",
    ),
    counter("gpuledger_logins_total", &["outcome"], "Logins with a password"),
    counter("gpuledger_password_checks_total", &[], "Passwords that were hashed to be compared"),
    counter("gpuledger_credential_looks_total", &[], "Looks into the database for keys and nodes' credentials"),
    counter("gpuledger_limited_total", &[], "Logins and credentials that were refused for too many failures"),
    counter("gpuledger_node_refusals_total", &["reason"], "Refusals of what may be a copy of a node"),
    counter("gpuledger_forwarded_commands_total", &[], "Commands that this server passed on to a pool's leader"),
    counter(
        "gpuledger_oidc_reads_total",
        &["provider", "outcome"],
        "Reads of a token issuer's discovery and keys: answered, failed; where one is configured",
    ),
    counter(
        "gpuledger_transactions_total",
        &["name", "outcome"],
        "Transactions: committed, rolled_back (reads end so, too), failed, or unknown when the answer to a commit did not come",
    ),
    histogram("gpuledger_transaction_seconds", &["name"], "From the begin of a transaction to its end"),
    counter(
        "gpuledger_collisions_total",
        &["reason"],
        "Statements that another transaction was in the way of: deadlock, serialisation, lock_timeout",
    ),
    histogram("gpuledger_lock_wait_seconds", &["lock"], "Statements that take rows which others may hold"),
    gauge("gpuledger_database_connections", &["state"], "Connections to PostgreSQL that are idle or in use"),
    gauge("gpuledger_database_connections_max", &[], "Connections that there may be: database.connections"),
    histogram("gpuledger_database_begin_seconds", &[], "Waiting for a connection and beginning on it"),
    gauge("gpuledger_scheduler_leads", &["pool"], "1 while this server leads the pool"),
    gauge("gpuledger_scheduler_term", &["pool"], "The term of its leadership"),
    gauge("gpuledger_scheduler_queued", &["pool"], "Requests that wait for a place"),
    gauge(
        "gpuledger_scheduler_open_allocations",
        &["pool"],
        "Allocations that have not ended, waiting ones among them",
    ),
    histogram("gpuledger_scheduler_batch_commands", &[], "Commands that were decided in one transaction"),
    histogram("gpuledger_scheduler_batch_seconds", &[], "From the begin of a batch's transaction until it is durable"),
    counter("gpuledger_take_overs_total", &[], "Leaderships that this server took"),
    counter("gpuledger_step_downs_total", &[], "Leaderships that this server lost"),
    counter("gpuledger_reading_batches_total", &["outcome"], "Batches of readings: accepted, repeat, gap"),
    counter("gpuledger_readings_accepted_total", &[], "Readings that were accepted"),
    counter("gpuledger_readings_set_aside_total", &["reason"], "Readings that wait for a ruling"),
    counter("gpuledger_task_runs_total", &["task", "outcome"], "Runs of recurring tasks: succeeded, failed"),
    histogram("gpuledger_task_seconds", &["task"], "How long they took"),
    gauge("gpuledger_task_last_success_timestamp_seconds", &["task"], "When a task last succeeded on this server"),
    gauge(
        "gpuledger_balance_differences",
        &[],
        "GPUs' hours of the last day that do not balance, as last checked by this server",
    ),
];

/// The bounds of durations, in seconds.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// The bounds of a batch's commands.
const COMMANDS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0];

/// Begins to count, for the whole process.
///
/// # Errors
/// When something counts already.
pub fn keep() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_commands".to_owned()), &COMMANDS)?
        .install_recorder()?;
    for Metric { name, kind, meaning, labels } in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *meaning),
            Kind::Gauge => metrics::describe_gauge!(*name, *meaning),
            Kind::Histogram => metrics::describe_histogram!(*name, *meaning),
        }
        // what has not happened yet is 0, not absent
        if labels.is_empty() && *kind == Kind::Counter {
            metrics::counter!(*name).absolute(0);
        }
    }
    for reason in ["deadlock", "serialisation", "lock_timeout"] {
        metrics::counter!("gpuledger_collisions_total", "reason" => reason).absolute(0);
    }
    metrics::gauge!("gpuledger_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// Takes the readings that stand still between two looks.
pub(crate) fn look(app: &App) {
    let connections = app.store.connections();
    metrics::gauge!("gpuledger_database_connections", "state" => "idle").set(connections.idle);
    metrics::gauge!("gpuledger_database_connections", "state" => "used")
        .set(connections.open.saturating_sub(connections.idle));
    metrics::gauge!("gpuledger_database_connections_max").set(connections.most);
}
