//! `/internal/pools/{pool_id}/commands`: what servers send each other. It is no part of the documented API.

use crate::{
    body::{self, HasCredential},
    extract::bearer,
    problem::Problem,
    router::ApiState,
};
use app::server;
use axum::{
    extract::{FromRequestParts, Path, Request, State},
    http::{header, request::Parts},
    response::{IntoResponse, Response},
};
use types::PoolId;

/// Where servers send commands for a pool.
pub(crate) const COMMANDS: &str = "/internal/pools/{pool_id}/commands";

/// Another server of the same database, as its credential shows.
pub(crate) struct OtherServer;

impl FromRequestParts<ApiState> for OtherServer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        server::authenticate(&state.app, bearer(&parts.headers)?).await?;
        parts.extensions.insert(HasCredential);
        Ok(Self)
    }
}

/// Decides a command that another server took, if this one leads the pool.
pub(crate) async fn take_command(
    State(state): State<ApiState>,
    Path(pool_id): Path<PoolId>,
    _: OtherServer,
    request: Request,
) -> Result<Response, Problem> {
    let command = body::read(request).await?;
    let answer = server::receive(&state.app, pool_id, &command).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response())
}
