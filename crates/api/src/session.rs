//! `POST /v1/login`

use crate::{
    extract::Json,
    problem::{Problem, WriteErrors},
    router::ApiState,
    user::User,
};
use app::{password::Password, session};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use types::Instant;

/// Who one is, and the proof.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    #[schema(max_length = 254, example = "operator@example.com")]
    email: String,
    #[schema(value_type = String, format = Password)]
    password: Password,
}

/// A token that proves who one is until it expires.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Session {
    /// Send it as `Authorization: Bearer …`.
    token: String,
    expires_at: Instant,
    user: User,
}

impl std::fmt::Debug for Session {
    /// Without the token, so that no log carries it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("expires_at", &self.expires_at)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Log in
///
/// An unknown address and a wrong password get the same answer.
#[utoipa::path(post, path = "/v1/login", tag = "callers", responses((status = 200, body = Session), WriteErrors))]
pub(crate) async fn login(State(state): State<ApiState>, Json(login): Json<Login>) -> Result<Json<Session>, Problem> {
    let session = session::login(&state.app, &login.email, login.password).await?;
    Ok(Json(Session { token: session.token, expires_at: session.expires_at, user: session.user.into() }))
}
