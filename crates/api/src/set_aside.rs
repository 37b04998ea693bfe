//! `/v1/set-aside`: rows of batches that could not be accepted.

use crate::{
    extract::{Json, Path, Query},
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use app::{
    Caller,
    set_aside::{self, SetAsideRow},
};
use axum::extract::State;
use metering::ingest::SetAsideReason;
use serde::{Deserialize, Serialize};
use types::{Instant, NodeId, PartId, Remark, SetAsideId, StreamId, TenantId, wire::Reading};

/// A row of a batch that could not be accepted as it was.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SetAside {
    set_aside_id: SetAsideId,
    node_id: NodeId,
    stream_id: StreamId,
    /// Of its batch in the stream.
    sequence: i64,
    /// Its place in the batch, from 0.
    row_number: i32,
    /// Whose part it speaks of; absent where its node never had such a part.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    part_id: PartId,
    /// Why, as programs tell it apart.
    #[schema(example = "overlap")]
    reason: String,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "its window overlaps a reading that was accepted before")]
    explanation: Option<String>,
    /// The row as the agent sent it.
    #[schema(value_type = Reading)]
    reading: serde_json::Value,
    /// The server's clock less the node's when it came, in milliseconds.
    skew_ms: i64,
    received_at: Instant,
    /// Absent while it waits for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ruling: Option<Ruling>,
}

/// What an operator ruled.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Ruling {
    accepted: bool,
    /// Who: `user:` or `key:` and an id.
    ruled_by: String,
    ruled_at: Instant,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl From<SetAsideRow> for SetAside {
    fn from(row: SetAsideRow) -> Self {
        Self {
            set_aside_id: row.set_aside_id,
            node_id: row.node_id,
            stream_id: row.stream_id,
            sequence: row.sequence,
            row_number: row.row_number,
            tenant_id: row.tenant_id,
            part_id: row.part_id,
            explanation: SetAsideReason::from_name(&row.reason).map(|reason| reason.to_string()),
            reason: row.reason,
            reading: row.reading,
            skew_ms: row.skew_ms,
            received_at: row.received_at,
            ruling: row.ruling.map(|ruling| Ruling {
                accepted: ruling.accepted,
                ruled_by: ruling.ruled_by,
                ruled_at: ruling.ruled_at,
                note: ruling.note,
            }),
        }
    }
}

/// Which row.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SetAsidePath {
    set_aside_id: SetAsideId,
}

/// Which rows.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SetAsideFilter {
    /// Only rows that wait for a ruling.
    #[serde(default)]
    #[param(required = false)]
    open: bool,
    /// `next_cursor` of the page before.
    cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    limit: Limit,
}

/// Why it is ruled so.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RulingNote {
    note: Option<Remark>,
}

/// List rows set aside
#[utoipa::path(
    get, path = "/v1/set-aside", tag = "set-aside", security(("bearer" = [])),
    params(SetAsideFilter),
    responses((status = 200, body = Page<SetAside>), ReadErrors)
)]
pub(crate) async fn list_set_aside(
    State(state): State<ApiState>,
    caller: Caller,
    Query(filter): Query<SetAsideFilter>,
) -> Result<Json<Page<SetAside>>, Problem> {
    let after = filter.cursor.map(Cursor::id);
    let rows = set_aside::list(&state.app, &caller, filter.open, after, filter.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, filter.limit, |row| row.set_aside_id.uuid())))
}

/// Accept a row
///
/// It becomes a reading. Where its period was issued already, the next invoice carries it as a correction. 409 when it was
/// ruled on before, or cannot be accepted because its part is unknown or its time is covered.
#[utoipa::path(
    post, path = "/v1/set-aside/{set_aside_id}/accept", tag = "set-aside", security(("bearer" = [])),
    params(SetAsidePath),
    responses((status = 200, body = SetAside), WriteErrors)
)]
pub(crate) async fn accept_set_aside(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<SetAsidePath>,
    Json(ruling): Json<RulingNote>,
) -> Result<Json<SetAside>, Problem> {
    Ok(Json(set_aside::rule(&state.app, &caller, path.set_aside_id, true, ruling.note).await?.into()))
}

/// Reject a row
///
/// It stays where it is and counts for nothing. 409 when it was ruled on before.
#[utoipa::path(
    post, path = "/v1/set-aside/{set_aside_id}/reject", tag = "set-aside", security(("bearer" = [])),
    params(SetAsidePath),
    responses((status = 200, body = SetAside), WriteErrors)
)]
pub(crate) async fn reject_set_aside(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<SetAsidePath>,
    Json(ruling): Json<RulingNote>,
) -> Result<Json<SetAside>, Problem> {
    Ok(Json(set_aside::rule(&state.app, &caller, path.set_aside_id, false, ruling.note).await?.into()))
}
