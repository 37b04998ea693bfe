//! Whether the server lives, whether it can work, and what it counts.

use crate::{
    metric,
    problem::{Problem, UnavailableError},
    router::ApiState,
};
use app::AppError;
use axum::{extract::State, http::header, response::IntoResponse};
use std::time::Duration;

/// How long readiness waits for Postgres.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server lives
///
/// Says nothing of Postgres, so that an outage of the database restarts no server.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = String), UnavailableError))]
pub(crate) async fn get_health() -> &'static str {
    "ok\n"
}

/// The server can work
///
/// Postgres answers within two seconds.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = String), UnavailableError))]
pub(crate) async fn get_readiness(State(state): State<ApiState>) -> Result<&'static str, Problem> {
    match tokio::time::timeout(PATIENCE, state.app.store.ping()).await {
        Ok(answer) => answer.map(|()| "ready\n").map_err(|error| AppError::from(error).into()),
        Err(_) => Err(Problem::unavailable("Postgres does not answer.")),
    }
}

/// What the server counts
///
/// In the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, body = String), UnavailableError))]
pub(crate) async fn get_metrics(State(state): State<ApiState>) -> impl IntoResponse {
    metric::look(&state.app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics.render())
}
