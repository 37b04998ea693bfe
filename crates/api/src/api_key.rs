//! `/v1/keys`

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    api_key::{self, ApiKeyRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, KeyId, Name, Role, TenantId};

/// How a machine proves itself.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Key {
    key_id: KeyId,
    /// Absent for keys of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    name: Name,
    role: Role,
    /// How the key begins: to recognise it by, and no secret.
    #[schema(example = "glk_k3v9x2mq")]
    prefix: String,
    created_at: Instant,
    /// Until when it is good; absent where it does not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Instant>,
    /// When it was last used, to within some minutes; absent where it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Instant>,
    /// Since when it no longer works.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Instant>,
}

impl From<ApiKeyRow> for Key {
    fn from(row: ApiKeyRow) -> Self {
        Self {
            key_id: row.key_id,
            tenant_id: row.tenant_id,
            name: row.name,
            role: row.role,
            prefix: format!("glk_{}", row.prefix),
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
        }
    }
}

/// What a key is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Absent for keys of the platform; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    name: Name,
    role: Role,
    /// Until when it is to be good; absent for one that does not end by itself.
    expires_at: Option<Instant>,
}

/// A new key with its secret.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    key: Key,
    /// The whole key: shown this once.
    secret: String,
}

impl std::fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedKey").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Which key.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct KeyPath {
    key_id: KeyId,
}

/// Make an API key
///
/// The answer shows its secret once.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", security(("bearer" = [])),
    responses((status = 201, body = CreatedKey), WriteErrors)
)]
pub(crate) async fn create_key(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    let made = api_key::create(&state.app, &caller, new.tenant_id, new.name, new.role, new.expires_at).await?;
    Ok((StatusCode::CREATED, Json(CreatedKey { key: made.row.into(), secret: made.secret })))
}

/// List a tenant's API keys
///
/// For the platform's callers without `tenant_id`: the platform's own.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<Key>), ReadErrors)
)]
pub(crate) async fn list_keys(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<Key>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = api_key::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.key_id.uuid())))
}

/// Revoke an API key
///
/// It stops to work within five seconds. Doing it again changes nothing.
#[utoipa::path(
    post, path = "/v1/keys/{key_id}/revoke", tag = "keys", security(("bearer" = [])),
    params(KeyPath),
    responses((status = 200, body = Key), WriteErrors)
)]
pub(crate) async fn revoke_key(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<KeyPath>,
) -> Result<Json<Key>, Problem> {
    Ok(Json(api_key::revoke(&state.app, &caller, path.key_id).await?.into()))
}
