//! `/v1/balance`: whether every byte-millisecond of every GPU is accounted for.

use crate::{
    extract::{Json, Query},
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors},
    router::ApiState,
    span,
};
use app::{
    Caller,
    balance::{self, GpuHours},
};
use axum::extract::State;
use metering::balance::HourBalance;
use serde::{Deserialize, Serialize};
use types::{ByteMillis, GpuId, Instant};

/// The hours of one GPU.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct GpuBalance {
    gpu_id: GpuId,
    /// Whether every hour does.
    balances: bool,
    /// In order of time.
    hours: Vec<Hour>,
}

/// One UTC hour of one GPU; every term in byte-milliseconds.
///
/// metered + held + unconfirmed + slack + idle + out_of_service = capacity, exactly. Each term comes from its own
/// journal.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = BalanceHour)]
pub struct Hour {
    /// Its start.
    hour: Instant,
    /// Allocatable × time.
    capacity: ByteMillis,
    /// Held while confirmed.
    metered: ByteMillis,
    /// Held before confirmation.
    held: ByteMillis,
    /// Kept while its node was silent.
    unconfirmed: ByteMillis,
    /// What partitions are larger than what was asked for.
    slack: ByteMillis,
    /// Free while the GPU was in service and its node heard from.
    idle: ByteMillis,
    /// Free while it was not.
    out_of_service: ByteMillis,
    /// What the scheduler's record says was granted: equals metered and unconfirmed together.
    granted_by_journal: ByteMillis,
    /// What the scheduler's record says was held: equals held.
    held_by_journal: ByteMillis,
    /// Capacity less all terms: negative when more was recorded than there is.
    difference: ByteMillis,
    /// Whether the difference is 0 and spans and record say the same.
    balances: bool,
}

impl From<HourBalance> for Hour {
    fn from(hour: HourBalance) -> Self {
        Self {
            hour: hour.hour,
            capacity: hour.capacity,
            metered: hour.metered,
            held: hour.held,
            unconfirmed: hour.unconfirmed,
            slack: hour.slack,
            idle: hour.idle,
            out_of_service: hour.out_of_service,
            granted_by_journal: hour.granted_by_journal,
            held_by_journal: hour.held_by_journal,
            difference: hour.difference(),
            balances: hour.balances(),
        }
    }
}

impl From<GpuHours> for GpuBalance {
    fn from(gpu: GpuHours) -> Self {
        Self {
            gpu_id: gpu.gpu_id,
            balances: gpu.hours.iter().all(HourBalance::balances),
            hours: gpu.hours.into_iter().map(Hour::from).collect(),
        }
    }
}

/// Of what, and when.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BalanceQuery {
    /// One GPU; every GPU where absent.
    gpu_id: Option<GpuId>,
    /// Cut down to the hour.
    #[param(example = "2026-11-01T00:00:00Z")]
    from: Instant,
    /// Not included; at most 400 days after `from` for one GPU, 2 days otherwise.
    #[param(example = "2026-11-02T00:00:00Z")]
    to: Instant,
    /// `next_cursor` of the page before.
    cursor: Option<Cursor>,
    /// The most GPUs of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    limit: Limit,
}

/// Show the balance of GPUs' hours
///
/// Whole UTC hours that share time with the span and are over.
#[utoipa::path(
    get, path = "/v1/balance", tag = "gpus", security(("bearer" = [])),
    params(BalanceQuery),
    responses((status = 200, body = Page<GpuBalance>), ReadErrors)
)]
pub(crate) async fn get_balance(
    State(state): State<ApiState>,
    caller: Caller,
    Query(query): Query<BalanceQuery>,
) -> Result<Json<Page<GpuBalance>>, Problem> {
    let span = span::between(query.from, query.to)?;
    let after = query.cursor.map(Cursor::id);
    let gpus = match query.gpu_id {
        Some(_) => balance::of(&state.app, &caller, query.gpu_id, span).await?,
        None => balance::page(&state.app, &caller, span, after, query.limit.and_one()).await?,
    };
    Ok(Json(Page::from_rows(gpus, query.limit, |gpu| gpu.gpu_id.uuid())))
}
