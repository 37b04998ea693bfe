//! `/v1/oidc`: logging in with a browser at another token issuer.

use crate::{
    extract::{Json, Path, Whence},
    problem::{Problem, UnavailableError, WriteErrors},
    router::ApiState,
    session::LoggedIn,
};
use app::oidc::login;
use axum::extract::State;
use serde::{Deserialize, Serialize};

/// An issuer with which people log in.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OidcProvider {
    /// Its name in paths.
    #[schema(example = "corp")]
    name: String,
}

/// The issuers with which people log in.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OidcProviders {
    providers: Vec<OidcProvider>,
}

/// A login that was started.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct StartedLogin {
    /// Where to send the browser. It comes back to the configured address with a code and this state.
    authorization_url: String,
    /// Keep it where only this browser finds it, and go on only with an equal one: otherwise somebody else's login could
    /// be slipped in. It is good for ten minutes.
    state: String,
}

/// What the browser came back with.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishedLogin {
    #[schema(min_length = 1, max_length = 4096)]
    code: String,
    /// As the start gave it.
    #[schema(max_length = 75)]
    state: String,
}

impl std::fmt::Debug for FinishedLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FinishedLogin").finish_non_exhaustive()
    }
}

/// What the browser came back with, and from where.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OidcCode {
    /// The issuer's name.
    #[schema(max_length = 64)]
    provider: String,
    #[schema(min_length = 1, max_length = 4096)]
    code: String,
    /// As the start gave it.
    #[schema(max_length = 75)]
    state: String,
}

impl From<OidcCode> for login::Code {
    fn from(code: OidcCode) -> Self {
        Self { provider: code.provider, code: code.code, state: code.state }
    }
}

impl std::fmt::Debug for OidcCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OidcCode").field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// Which issuer.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ProviderPath {
    /// Its name.
    #[param(max_length = 64)]
    provider: String,
}

/// List the issuers to log in with
#[utoipa::path(
    get, path = "/v1/oidc", tag = "callers",
    responses((status = 200, body = OidcProviders), UnavailableError)
)]
pub(crate) async fn list_login_providers(State(state): State<ApiState>) -> Json<OidcProviders> {
    let providers = state.app.oidc.login_providers().map(|name| OidcProvider { name: name.to_owned() }).collect();
    Json(OidcProviders { providers })
}

/// Start to log in with a browser
///
/// An authorization code with PKCE. Nothing is stored, so a start costs nothing.
#[utoipa::path(
    post, path = "/v1/oidc/{provider}/start", tag = "callers",
    params(ProviderPath),
    responses((status = 200, body = StartedLogin), WriteErrors)
)]
pub(crate) async fn start_login(
    State(state): State<ApiState>,
    Path(path): Path<ProviderPath>,
) -> Result<Json<StartedLogin>, Problem> {
    let started = login::start(&state.app, &path.provider).await?;
    Ok(Json(StartedLogin { authorization_url: started.authorization_url, state: started.state }))
}

/// Finish to log in with a browser
///
/// The code is the proof. Somebody without an account gets 401 with the code `invitation_needed`.
#[utoipa::path(
    post, path = "/v1/oidc/{provider}/finish", tag = "callers",
    params(ProviderPath),
    responses((status = 200, body = LoggedIn), WriteErrors)
)]
pub(crate) async fn finish_login(
    State(state): State<ApiState>,
    Path(path): Path<ProviderPath>,
    Whence(origin): Whence,
    Json(finished): Json<FinishedLogin>,
) -> Result<Json<LoggedIn>, Problem> {
    let code = login::Code { provider: path.provider, code: finished.code, state: finished.state };
    Ok(Json(login::finish(&state.app, &code, origin).await?.into()))
}
