//! `/v1/pools` and the tokens with which nodes join them.

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Page, Paging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller, join_token,
    pool::{self, DEFAULT_GRACES, GracesChange, PoolRow},
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, JoinTokenId, Name, PoolId};

/// Nodes with one scheduler.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Pool {
    pool_id: PoolId,
    name: Name,
    /// Seconds that a hold waits for confirmation.
    hold_grace_s: u32,
    /// Seconds without a word after which a node is silent and its meters stop.
    silence_grace_s: u32,
    /// Seconds of silence after which what ran on a node is lost.
    lost_after_s: u32,
    created_at: Instant,
}

impl From<PoolRow> for Pool {
    fn from(row: PoolRow) -> Self {
        Self {
            pool_id: row.pool_id,
            name: row.name,
            hold_grace_s: row.graces.hold_grace_s,
            silence_grace_s: row.graces.silence_grace_s,
            lost_after_s: row.graces.lost_after_s,
            created_at: row.created_at,
        }
    }
}

/// What a pool is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    name: Name,
    /// Seconds that a hold waits for confirmation; 120 where absent.
    #[schema(minimum = 1, maximum = 2_592_000)]
    hold_grace_s: Option<u32>,
    /// Seconds without a word after which a node is silent; 90 where absent.
    #[schema(minimum = 1, maximum = 2_592_000)]
    silence_grace_s: Option<u32>,
    /// Seconds of silence after which what ran on a node is lost; a day where absent.
    #[schema(minimum = 1, maximum = 2_592_000)]
    lost_after_s: Option<u32>,
}

/// Graces to change; absent ones stay.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolChange {
    /// Seconds that a hold waits for confirmation.
    #[schema(minimum = 1, maximum = 2_592_000)]
    hold_grace_s: Option<u32>,
    /// Seconds without a word after which a node is silent.
    #[schema(minimum = 1, maximum = 2_592_000)]
    silence_grace_s: Option<u32>,
    /// Seconds of silence after which what ran on a node is lost; not less than `silence_grace_s`.
    #[schema(minimum = 1, maximum = 2_592_000)]
    lost_after_s: Option<u32>,
}

/// Which pool.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct PoolPath {
    pool_id: PoolId,
}

/// How long a join token is good.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJoinToken {
    /// Seconds until it expires; an hour where absent.
    #[serde(default = "an_hour")]
    #[schema(minimum = 60, maximum = 604_800, default = 3600)]
    lifetime_s: u32,
}

const fn an_hour() -> u32 {
    3600
}

/// A token that lets one node join a pool, once.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CreatedJoinToken {
    join_token_id: JoinTokenId,
    pool_id: PoolId,
    expires_at: Instant,
    /// The whole token: shown this once.
    secret: String,
}

impl std::fmt::Debug for CreatedJoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedJoinToken").field("join_token_id", &self.join_token_id).finish_non_exhaustive()
    }
}

/// Make a pool
#[utoipa::path(
    post, path = "/v1/pools", tag = "pools", security(("bearer" = [])),
    responses((status = 201, body = Pool), WriteErrors)
)]
pub(crate) async fn create_pool(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewPool>,
) -> Result<(StatusCode, Json<Pool>), Problem> {
    let given = GracesChange {
        hold_grace_s: new.hold_grace_s,
        silence_grace_s: new.silence_grace_s,
        lost_after_s: new.lost_after_s,
    };
    let row = pool::create(&state.app, &caller, new.name, given.applied_to(DEFAULT_GRACES)).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// List pools
#[utoipa::path(
    get, path = "/v1/pools", tag = "pools", security(("bearer" = [])),
    params(Paging),
    responses((status = 200, body = Page<Pool>), ReadErrors)
)]
pub(crate) async fn list_pools(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<Pool>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = pool::list(&state.app, &caller, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.pool_id.uuid())))
}

/// Show a pool
#[utoipa::path(
    get, path = "/v1/pools/{pool_id}", tag = "pools", security(("bearer" = [])),
    params(PoolPath),
    responses((status = 200, body = Pool), ReadErrors)
)]
pub(crate) async fn get_pool(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<PoolPath>,
) -> Result<Json<Pool>, Problem> {
    Ok(Json(pool::get(&state.app, &caller, path.pool_id).await?.into()))
}

/// Change a pool's graces
#[utoipa::path(
    patch, path = "/v1/pools/{pool_id}", tag = "pools", security(("bearer" = [])),
    params(PoolPath),
    responses((status = 200, body = Pool), WriteErrors)
)]
pub(crate) async fn update_pool(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<PoolPath>,
    Json(change): Json<PoolChange>,
) -> Result<Json<Pool>, Problem> {
    let change = GracesChange {
        hold_grace_s: change.hold_grace_s,
        silence_grace_s: change.silence_grace_s,
        lost_after_s: change.lost_after_s,
    };
    Ok(Json(pool::update(&state.app, &caller, path.pool_id, change).await?.into()))
}

/// Make a join token
///
/// It lets one node join the pool, once. The answer shows its secret once.
#[utoipa::path(
    post, path = "/v1/pools/{pool_id}/join-tokens", tag = "pools", security(("bearer" = [])),
    params(PoolPath),
    responses((status = 201, body = CreatedJoinToken), WriteErrors)
)]
pub(crate) async fn create_join_token(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<PoolPath>,
    Json(new): Json<NewJoinToken>,
) -> Result<(StatusCode, Json<CreatedJoinToken>), Problem> {
    let made = join_token::create(&state.app, &caller, path.pool_id, new.lifetime_s).await?;
    let token = CreatedJoinToken {
        join_token_id: made.row.join_token_id,
        pool_id: made.row.pool_id,
        expires_at: made.row.expires_at,
        secret: made.secret,
    };
    Ok((StatusCode::CREATED, Json(token)))
}
