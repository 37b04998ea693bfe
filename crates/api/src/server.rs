//! `/internal/pools/{pool_id}/commands`: what servers send each other. It is no part of the documented API.

use crate::{extract::bearer, problem::Problem, router::ApiState};
use app::server;
use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use types::PoolId;

/// Where servers send commands for a pool.
pub(crate) const COMMANDS: &str = "/internal/pools/{pool_id}/commands";

/// Decides a command that another server took, if this one leads the pool.
pub(crate) async fn take_command(
    State(state): State<ApiState>,
    Path(pool_id): Path<PoolId>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let answer = server::receive(&state.app, bearer(&headers)?, pool_id, &body).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response())
}
