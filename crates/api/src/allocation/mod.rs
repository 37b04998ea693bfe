//! `/v1/allocations`

pub mod request;

use crate::{
    extract::{Json, Path, Query},
    interval::Interval,
    layers::Waits,
    page::{Cursor, Limit, Page},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
};
use ::quota::Violation;
use app::{
    Caller,
    allocation::{self, AllocationView, Filter, HistoryRow, PartView, WaitsFor},
};
use axum::{Extension, extract::State};
use placement::{Excluded, Nearest};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{collections::BTreeMap, time::Duration};
use types::{
    AllocationId, AllocationState, Bytes, Cause, GpuId, GpuModel, GpuUuid, HistoryId, Instant, NodeId, PartId, PoolId,
    ProjectId, Request, TenantId,
};

/// A request for memory, and what became of it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Allocation {
    tenant_id: TenantId,
    allocation_id: AllocationId,
    project_id: ProjectId,
    pool_id: PoolId,
    state: AllocationState,
    /// Why it is in this state.
    cause: Cause,
    request: Request,
    /// Who asked: `user:`, `key:` or `node:` and an id.
    requested_by: String,
    requested_at: Instant,
    /// Absent unless it is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<Queue>,
    /// One for each GPU; none while it is queued.
    parts: Vec<Part>,
    /// Until when it must be confirmed; absent unless it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_until: Option<Instant>,
    /// When metering began.
    #[serde(skip_serializing_if = "Option::is_none")]
    active_since: Option<Instant>,
    /// When it will be released, where the request set `max_duration_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_by: Option<Instant>,
    /// The last renewal, or report of its node that saw it living.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_sign: Option<Instant>,
    /// Since when its node is silent and its meter stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed_since: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Instant>,
    /// Seconds within which an active one must be renewed, unless its node sees its workload; absent once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_within_s: Option<u32>,
    /// What the workload is to be started with; absent unless it is held or active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!({
        "CUDA_VISIBLE_DEVICES": "GPU-8c5f0a6e-2b1d-4d39-9a7b-0c1f4be0a001",
        "GPULEDGER_ALLOCATION_ID": "019a3b7e-5c00-7a51-b1c3-6f0e2d9c4a10"
    }))]
    environment: Option<BTreeMap<&'static str, String>>,
}

/// One device of an allocation.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = AllocationPart)]
pub struct Part {
    part_id: PartId,
    /// The card's own name.
    gpu_uuid: GpuUuid,
    gpu_id: GpuId,
    node_id: NodeId,
    model: GpuModel,
    /// Memory granted on it.
    bytes: Bytes,
}

/// Where a request waits, and for what.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct Queue {
    /// 1 is the first of its pool. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
    /// Limits of its tenant or project that it waits for: all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    violations: Vec<Violation>,
    /// How many GPUs each reason excluded; together they are all GPUs of the pool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    reasons: Vec<Excluded>,
    /// The nearest thing that would unblock it.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<Nearest>,
}

impl Queue {
    fn of(view: &AllocationView) -> Self {
        let position = view.ahead.map(|ahead| ahead + 1);
        match view.waits_for() {
            Some(WaitsFor::Quota { quota }) => Self { position, violations: quota, ..Self::default() },
            Some(WaitsFor::Room(no_room)) => {
                Self { position, reasons: no_room.reasons, nearest: no_room.nearest, ..Self::default() }
            }
            None => Self { position, ..Self::default() },
        }
    }
}

impl From<PartView> for Part {
    fn from(part: PartView) -> Self {
        Self {
            part_id: part.row.part_id,
            gpu_uuid: part.gpu_uuid,
            gpu_id: part.row.gpu_id,
            node_id: part.row.node_id,
            model: part.row.model,
            bytes: part.row.bytes,
        }
    }
}

impl From<AllocationView> for Allocation {
    fn from(view: AllocationView) -> Self {
        let queue = (view.row.state == AllocationState::Queued).then(|| Queue::of(&view));
        let environment = environment(&view);
        let row = view.row;
        Self {
            tenant_id: row.tenant_id,
            allocation_id: row.allocation_id,
            project_id: row.project_id,
            pool_id: row.pool_id,
            state: row.state,
            cause: row.cause,
            request: row.request,
            requested_by: row.requested_by,
            requested_at: row.requested_at,
            queue,
            parts: view.parts.into_iter().map(Part::from).collect(),
            hold_until: row.hold_until,
            active_since: row.active_since,
            ends_by: row.ends_by,
            last_sign: row.last_sign,
            unconfirmed_since: row.unconfirmed_since,
            ended_at: row.ended_at,
            renew_within_s: (!row.state.is_final()).then_some(view.renew_within_s),
            environment,
        }
    }
}

/// What a workload needs to see its GPUs alone, and to be known.
fn environment(view: &AllocationView) -> Option<BTreeMap<&'static str, String>> {
    matches!(view.row.state, AllocationState::Held | AllocationState::Active).then(|| {
        let gpus: Vec<&str> = view.parts.iter().map(|part| part.gpu_uuid.as_str()).collect();
        BTreeMap::from([
            ("CUDA_VISIBLE_DEVICES", gpus.join(",")),
            ("GPULEDGER_ALLOCATION_ID", view.row.allocation_id.to_string()),
        ])
    })
}

/// What happened to an allocation.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AllocationHistory {
    /// In order.
    changes: Vec<Change>,
    /// The final spans in which its parts held memory while confirmed: what is billed as reserved.
    intervals: Vec<Interval>,
}

/// One change in the life of an allocation.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = AllocationChange)]
pub struct Change {
    history_id: HistoryId,
    at: Instant,
    /// Absent for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_state: Option<AllocationState>,
    to_state: AllocationState,
    cause: Cause,
    /// Who: `user:`, `key:` or `node:` and an id, or `system`.
    actor: String,
    #[schema(value_type = Object)]
    detail: serde_json::Value,
}

impl From<HistoryRow> for Change {
    fn from(row: HistoryRow) -> Self {
        Self {
            history_id: row.history_id,
            at: row.at,
            from_state: row.from_state,
            to_state: row.to_state,
            cause: row.cause,
            actor: row.actor,
            detail: row.detail,
        }
    }
}

/// Which allocation.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AllocationPath {
    allocation_id: AllocationId,
}

/// Which allocations.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AllocationFilter {
    /// Whose; a tenant's caller need not say. Everybody's for the platform's callers where absent.
    tenant_id: Option<TenantId>,
    /// Only of this project.
    project_id: Option<ProjectId>,
    /// Only in this state.
    #[param(inline)]
    state: Option<AllocationState>,
    /// Only those that have not ended.
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

/// How long to wait for an answer.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Waiting {
    /// Answers once it is no longer queued, or after this many seconds: `0s` to `60s`. A server on which very many wait
    /// may answer sooner.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, pattern = "^([0-5]?[0-9]|60)s$", example = "30s")]
    wait: Wait,
}

/// A whole number of seconds, up to 60, followed by `s`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wait(Duration);

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.strip_suffix('s')
            .filter(|digits| digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|seconds| *seconds <= 60)
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(|| de::Error::custom("must be a whole number of seconds up to 60, such as 30s"))
    }
}

/// List allocations, the newest first
#[utoipa::path(
    get, path = "/v1/allocations", tag = "allocations", security(("bearer" = [])),
    params(AllocationFilter),
    responses((status = 200, body = Page<Allocation>), ReadErrors)
)]
pub(crate) async fn list_allocations(
    State(state): State<ApiState>,
    caller: Caller,
    Query(query): Query<AllocationFilter>,
) -> Result<Json<Page<Allocation>>, Problem> {
    let filter =
        Filter { tenant_id: query.tenant_id, project_id: query.project_id, state: query.state, open_only: query.open };
    let before = query.cursor.map(Cursor::id);
    let views = allocation::list(&state.app, &caller, filter, before, query.limit.and_one()).await?;
    Ok(Json(Page::from_rows(views, query.limit, |view| view.row.allocation_id.uuid())))
}

/// Show an allocation, or wait until it is placed
#[utoipa::path(
    get, path = "/v1/allocations/{allocation_id}", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath, Waiting),
    responses((status = 200, body = Allocation), ReadErrors)
)]
pub(crate) async fn get_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
    Query(waiting): Query<Waiting>,
    Extension(waits): Extension<Waits>,
) -> Result<Json<Allocation>, Problem> {
    let place = waits.0.try_acquire();
    let longest = if place.is_ok() { waiting.wait.0 } else { Duration::ZERO };
    Ok(Json(allocation::wait(&state.app, &caller, path.allocation_id, longest).await?.into()))
}

/// Show what happened to an allocation
#[utoipa::path(
    get, path = "/v1/allocations/{allocation_id}/history", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath),
    responses((status = 200, body = AllocationHistory), ReadErrors)
)]
pub(crate) async fn get_allocation_history(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
) -> Result<Json<AllocationHistory>, Problem> {
    let (changes, intervals) = allocation::history(&state.app, &caller, path.allocation_id).await?;
    Ok(Json(AllocationHistory {
        changes: changes.into_iter().map(Change::from).collect(),
        intervals: intervals.into_iter().map(Interval::from).collect(),
    }))
}

/// Confirm a held allocation
///
/// The workload starts, and with it the meter. The first confirmation wins; a repeat shows it again. 409 `not_held` when
/// it waits or has ended.
#[utoipa::path(
    post, path = "/v1/allocations/{allocation_id}/confirm", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath),
    responses((status = 200, body = Allocation), WriteErrors)
)]
pub(crate) async fn confirm_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
) -> Result<Json<Allocation>, Problem> {
    Ok(Json(allocation::confirm(&state.app, &caller, path.allocation_id).await?.into()))
}

/// Renew an active allocation
///
/// The workload lives. To be sent more often than `renew_within_s`, unless its node sees the workload. 409 `not_active`
/// when it is not active.
#[utoipa::path(
    post, path = "/v1/allocations/{allocation_id}/renew", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath),
    responses((status = 200, body = Allocation), WriteErrors)
)]
pub(crate) async fn renew_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
) -> Result<Json<Allocation>, Problem> {
    Ok(Json(allocation::renew(&state.app, &caller, path.allocation_id).await?.into()))
}

/// Release an allocation
///
/// The workload ended, and the meter with it; one that is not active is withdrawn. A repeat shows it again.
#[utoipa::path(
    post, path = "/v1/allocations/{allocation_id}/release", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath),
    responses((status = 200, body = Allocation), WriteErrors)
)]
pub(crate) async fn release_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
) -> Result<Json<Allocation>, Problem> {
    Ok(Json(allocation::release(&state.app, &caller, path.allocation_id).await?.into()))
}

/// Cancel an allocation
///
/// It is withdrawn before its workload started. A repeat shows it again. 409 `active` when it is active: release it.
#[utoipa::path(
    post, path = "/v1/allocations/{allocation_id}/cancel", tag = "allocations", security(("bearer" = [])),
    params(AllocationPath),
    responses((status = 200, body = Allocation), WriteErrors)
)]
pub(crate) async fn cancel_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<AllocationPath>,
) -> Result<Json<Allocation>, Problem> {
    Ok(Json(allocation::cancel(&state.app, &caller, path.allocation_id).await?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_whole_seconds_up_to_a_minute() {
        let read = |text: &str| serde_json::from_value::<Wait>(serde_json::json!(text));
        assert_eq!(read("30s").unwrap(), Wait(Duration::from_secs(30)));
        assert_eq!(read("60s").unwrap(), Wait(Duration::from_secs(60)));
        for bad in ["", "s", "30", "61s", "-1s", "+1s", "1.5s", "1m", "30 s", "030s", "99999999999999999999s"] {
            assert!(read(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
