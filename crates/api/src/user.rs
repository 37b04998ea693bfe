//! `/v1/users` and `/v1/me`

use crate::{
    extract::{Json, Path, PresentSession, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
    tenant::Tenant,
};
use app::{
    Caller,
    password::Password,
    user::{self, UserRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, Name, Role, TenantId, UserId};

/// A person who logs in.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct User {
    user_id: UserId,
    /// Absent for people of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    email: String,
    name: Name,
    role: Role,
    created_at: Instant,
    /// Since when the account is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_at: Option<Instant>,
}

impl From<UserRow> for User {
    fn from(row: UserRow) -> Self {
        Self {
            user_id: row.user_id,
            tenant_id: row.tenant_id,
            email: row.email,
            name: row.name,
            role: row.role,
            created_at: row.created_at,
            disabled_at: row.disabled_at,
        }
    }
}

/// Who calls.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Me {
    /// As audit and history name it: `user:`, `key:` or `node:` and an id.
    actor: String,
    /// Absent for a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    /// Absent for the platform's callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<Tenant>,
    /// Absent for machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<User>,
}

impl From<user::Me> for Me {
    fn from(me: user::Me) -> Self {
        Self {
            actor: me.actor.to_string(),
            role: me.role,
            tenant: me.tenant.map(Tenant::from),
            user: me.user.map(User::from),
        }
    }
}

/// What an account is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// Absent for people of the platform; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    #[schema(
        min_length = 3,
        max_length = 254,
        example = "kim@example.com",
        pattern = r"^[^\s@\u0000-\u001f\u007f-\u009f]+@[^\s@\u0000-\u001f\u007f-\u009f]+$"
    )]
    email: String,
    name: Name,
    role: Role,
    #[schema(value_type = String, format = Password, min_length = 12, max_length = 200)]
    password: Password,
}

/// Another password.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPassword {
    #[schema(value_type = String, format = Password, min_length = 12, max_length = 200)]
    password: Password,
    /// Needed for one's own account.
    #[schema(value_type = Option<String>, format = Password, max_length = 200)]
    current_password: Option<Password>,
}

/// Which person.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct UserPath {
    user_id: UserId,
}

/// Show who calls
#[utoipa::path(
    get, path = "/v1/me", tag = "callers", security(("bearer" = [])),
    responses((status = 200, body = Me), ReadErrors)
)]
pub(crate) async fn get_me(State(state): State<ApiState>, caller: Caller) -> Result<Json<Me>, Problem> {
    Ok(Json(user::me(&state.app, &caller).await?.into()))
}

/// Make an account
#[utoipa::path(
    post, path = "/v1/users", tag = "users", security(("bearer" = [])),
    responses((status = 201, body = User), WriteErrors)
)]
pub(crate) async fn create_user(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewUser>,
) -> Result<(StatusCode, Json<User>), Problem> {
    let new = user::NewUser {
        tenant_id: new.tenant_id,
        email: new.email,
        name: new.name,
        role: new.role,
        password: new.password,
    };
    let row = user::create(&state.app, &caller, new).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// List a tenant's people
///
/// For the platform's callers without `tenant_id`: the platform's own.
#[utoipa::path(
    get, path = "/v1/users", tag = "users", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<User>), ReadErrors)
)]
pub(crate) async fn list_users(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<User>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = user::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.user_id.uuid())))
}

/// Disable an account
///
/// Its sessions end: at once on the server that does it, within five seconds on others. Doing it again changes nothing.
#[utoipa::path(
    post, path = "/v1/users/{user_id}/disable", tag = "users", security(("bearer" = [])),
    params(UserPath),
    responses((status = 200, body = User), WriteErrors)
)]
pub(crate) async fn disable_user(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<UserPath>,
) -> Result<Json<User>, Problem> {
    Ok(Json(user::disable(&state.app, &caller, path.user_id).await?.into()))
}

/// Set another password
///
/// One's own with the current one, or that of an account one manages. All sessions of that person end, but for the one
/// that changes its own password.
#[utoipa::path(
    put, path = "/v1/users/{user_id}/password", tag = "users", security(("bearer" = [])),
    params(UserPath),
    responses((status = 204), WriteErrors)
)]
pub(crate) async fn set_password(
    State(state): State<ApiState>,
    caller: Caller,
    PresentSession(present): PresentSession,
    Path(path): Path<UserPath>,
    Json(new): Json<NewPassword>,
) -> Result<StatusCode, Problem> {
    user::set_password(&state.app, &caller, path.user_id, new.password, new.current_password, present).await?;
    Ok(StatusCode::NO_CONTENT)
}
