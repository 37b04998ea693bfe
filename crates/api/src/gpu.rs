//! `/v1/gpus`

use crate::{
    extract::{Json, Query},
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors},
    router::ApiState,
};
use app::{
    Caller,
    node::{self, GpuRow},
    scheduler::GpuView,
};
use axum::extract::State;
use placement::Service;
use serde::{Deserialize, Serialize};
use types::{Bytes, GpuId, GpuModel, GpuUuid, Instant, NodeId, PoolId};

/// A card; memory in bytes.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Gpu {
    gpu_id: GpuId,
    node_id: NodeId,
    pool_id: PoolId,
    /// The card's own name.
    gpu_uuid: GpuUuid,
    model: GpuModel,
    /// All of the card's memory.
    memory_total: Bytes,
    /// What the driver keeps for itself; absent when the driver cannot tell it apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_overhead: Option<Bytes>,
    /// Total memory less driver overhead.
    allocatable: Bytes,
    created_at: Instant,
    /// Since when it is no longer in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_at: Option<Instant>,
    /// What the pool's leader sees now; absent where none answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Live>,
}

/// What the pool's leader sees of a GPU now; memory in bytes.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = LiveGpu)]
pub struct Live {
    service: Service,
    /// What a new part may have: what nobody was granted, nor uses.
    free: Bytes,
    /// Placed and not yet confirmed.
    held: Bytes,
    /// Granted and confirmed.
    granted: Bytes,
    /// Parts held and active.
    parts: usize,
}

impl From<(GpuRow, Option<GpuView>)> for Gpu {
    fn from((row, seen): (GpuRow, Option<GpuView>)) -> Self {
        Self {
            gpu_id: row.gpu_id,
            node_id: row.node_id,
            pool_id: row.pool_id,
            gpu_uuid: row.uuid,
            model: row.model,
            memory_total: row.memory_total,
            driver_overhead: row.driver_overhead,
            allocatable: row.allocatable,
            created_at: row.created_at,
            removed_at: row.removed_at,
            live: seen.map(|seen| Live {
                service: seen.service,
                free: seen.free,
                held: seen.held,
                granted: seen.granted,
                parts: seen.parts,
            }),
        }
    }
}

/// Which GPUs.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GpuFilter {
    /// Only of this pool.
    pool_id: Option<PoolId>,
    /// Only of this node.
    node_id: Option<NodeId>,
    /// `next_cursor` of the page before.
    cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    limit: Limit,
}

/// List GPUs
#[utoipa::path(
    get, path = "/v1/gpus", tag = "gpus", security(("bearer" = [])),
    params(GpuFilter),
    responses((status = 200, body = Page<Gpu>), ReadErrors)
)]
pub(crate) async fn list_gpus(
    State(state): State<ApiState>,
    caller: Caller,
    Query(filter): Query<GpuFilter>,
) -> Result<Json<Page<Gpu>>, Problem> {
    let after = filter.cursor.map(Cursor::id);
    let limit = filter.limit.and_one();
    let rows = node::gpus_live(&state.app, &caller, filter.pool_id, filter.node_id, after, limit).await?;
    Ok(Json(Page::from_rows(rows, filter.limit, |(row, _)| row.gpu_id.uuid())))
}
