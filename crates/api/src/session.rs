//! `POST /v1/login` and `/v1/sessions`

use crate::{
    extract::{Json, Path, PresentSession, Query, Whence},
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
    user::User,
};
use app::{
    AppError, Caller,
    password::Password,
    session::{self, SessionRow, Whose},
};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use types::{Instant, SessionId, TenantId, UserId};

/// Who one is, and the proof.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    #[schema(max_length = 254, example = "operator@example.com")]
    email: String,
    #[schema(value_type = String, format = Password, max_length = 200)]
    password: Password,
}

/// A token that proves who one is until it expires or its session is revoked.
#[derive(Serialize, utoipa::ToSchema)]
pub struct LoggedIn {
    /// Send it as `Authorization: Bearer …`.
    token: String,
    session_id: SessionId,
    expires_at: Instant,
    user: User,
}

impl From<session::Session> for LoggedIn {
    fn from(begun: session::Session) -> Self {
        Self {
            token: begun.token,
            session_id: begun.row.session_id,
            expires_at: begun.row.expires_at,
            user: begun.user.into(),
        }
    }
}

impl std::fmt::Debug for LoggedIn {
    /// Without the token, so that no log carries it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoggedIn")
            .field("session_id", &self.session_id)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A login and how long it holds.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Session {
    session_id: SessionId,
    user_id: UserId,
    /// Absent for people of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    /// The address that it was begun from; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// What the client called itself; absent when it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    created_at: Instant,
    expires_at: Instant,
    /// Since when it no longer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Instant>,
}

impl From<SessionRow> for Session {
    fn from(row: SessionRow) -> Self {
        Self {
            session_id: row.session_id,
            user_id: row.user_id,
            tenant_id: row.tenant_id,
            address: row.address,
            user_agent: row.user_agent,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        }
    }
}

/// How many sessions were ended.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RevokedSessions {
    revoked: usize,
}

/// Which session.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SessionPath {
    session_id: SessionId,
}

/// Which sessions: one's own where nothing is said.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionFilter {
    /// Only this person's. Others than oneself: for whoever manages their accounts.
    user_id: Option<UserId>,
    /// Those of everybody whose account the caller manages; not together with `user_id`.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
    /// `next_cursor` of the page before.
    cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    limit: Limit,
}

impl SessionFilter {
    fn whose(&self) -> Result<Whose, Problem> {
        match (self.user_id, self.all) {
            (None, false) => Ok(Whose::Own),
            (None, true) => Ok(Whose::All),
            (Some(user), false) => Ok(Whose::User(user)),
            (Some(_), true) => Err(AppError::invalid("all", "cannot be given together with user_id").into()),
        }
    }
}

/// Log in
///
/// An unknown address and a wrong password get the same answer in equal time; after many that failed the answer is 429. The
/// token holds until it expires or its session is
/// revoked.
#[utoipa::path(post, path = "/v1/login", tag = "callers", responses((status = 200, body = LoggedIn), WriteErrors))]
pub(crate) async fn login(
    State(state): State<ApiState>,
    Whence(origin): Whence,
    Json(login): Json<Login>,
) -> Result<Json<LoggedIn>, Problem> {
    let attempt = state.guard.login(&login.email, origin.address)?;
    let begun = session::login(&state.app, &login.email, login.password, origin).await;
    // whoever goes away before the answer has tried all the same
    if !matches!(begun, Err(AppError::Unauthenticated(_))) {
        attempt.undo(begun.is_ok());
    }
    Ok(Json(begun?.into()))
}

/// List sessions
///
/// One's own; with `user_id` or `all` those of people whose accounts the caller manages. A session is forgotten a day
/// after it expired.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "callers", security(("bearer" = [])),
    params(SessionFilter),
    responses((status = 200, body = Page<Session>), ReadErrors)
)]
pub(crate) async fn list_sessions(
    State(state): State<ApiState>,
    caller: Caller,
    Query(filter): Query<SessionFilter>,
) -> Result<Json<Page<Session>>, Problem> {
    let (whose, after) = (filter.whose()?, filter.cursor.map(Cursor::id));
    let rows = session::list(&state.app, &caller, whose, after, filter.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, filter.limit, |row| row.session_id.uuid())))
}

/// Revoke a session
///
/// One's own, or that of somebody whose account the caller manages. Its token stops to work: at once on the server that
/// does it, within five seconds on others. Doing it again changes nothing.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/revoke", tag = "callers", security(("bearer" = [])),
    params(SessionPath),
    responses((status = 200, body = Session), WriteErrors)
)]
pub(crate) async fn revoke_session(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<SessionPath>,
) -> Result<Json<Session>, Problem> {
    Ok(Json(session::revoke(&state.app, &caller, path.session_id).await?.into()))
}

/// Revoke all of one's sessions but the present one
///
/// A machine has none.
#[utoipa::path(
    post, path = "/v1/sessions/revoke-others", tag = "callers", security(("bearer" = [])),
    responses((status = 200, body = RevokedSessions), WriteErrors)
)]
pub(crate) async fn revoke_other_sessions(
    State(state): State<ApiState>,
    caller: Caller,
    PresentSession(present): PresentSession,
) -> Result<Json<RevokedSessions>, Problem> {
    Ok(Json(RevokedSessions { revoked: session::revoke_others(&state.app, &caller, present).await? }))
}
