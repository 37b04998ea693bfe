//! `POST /v1/allocations`, and the same without consequences.

use super::Allocation;
use crate::{
    access,
    extract::Json,
    problem::{FieldError, Problem, WriteErrors},
    router::ApiState,
};
use ::quota::Violation;
use app::{
    Caller,
    allocation::{self, Ask},
    scheduler,
};
use axum::{
    extract::{FromRequestParts, State},
    http::{HeaderName, StatusCode, header, request::Parts},
};
use placement::{Excluded, Nearest};
use serde::{Deserialize, Serialize};
use types::{AllocationState, Bytes, BytesGiven, GpuModel, GpuUuid, NodeId, PoolId, ProjectId, Request, TenantId};

/// What is asked, and for whom.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "memory": "20GiB", "gpus": 2, "max_duration_s": 86_400 }))]
pub struct NewAllocation {
    /// Whose; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    /// The tenant's project `default` where absent.
    project_id: Option<ProjectId>,
    /// May be absent while there is only one pool.
    pool_id: Option<PoolId>,
    /// Memory on each GPU, in bytes or as a text such as `20GiB`; more than 0.
    #[schema(value_type = BytesGiven)]
    memory: Bytes,
    /// How many GPUs, all on one node.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 64, default = 1)]
    gpus: u32,
    /// Only GPUs of this model.
    model: Option<GpuModel>,
    /// Only this node.
    node_id: Option<NodeId>,
    /// The longest it may run, in seconds after confirmation; it is released then.
    #[schema(minimum = 1, maximum = 31_622_400)]
    max_duration_s: Option<u32>,
}

const fn one() -> u32 {
    1
}

impl From<NewAllocation> for Ask {
    fn from(new: NewAllocation) -> Self {
        Self {
            tenant_id: new.tenant_id,
            project_id: new.project_id,
            pool_id: new.pool_id,
            request: Request {
                memory: new.memory,
                gpus: new.gpus,
                model: new.model,
                node_id: new.node_id,
                max_duration_s: new.max_duration_s,
            },
        }
    }
}

/// What a request would get now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schema(as = DryRun)]
pub enum DryRun {
    /// It would be placed.
    Placed {
        /// On these cards.
        gpu_uuids: Vec<GpuUuid>,
        /// Whether the room on them was measured; where not, the ledger alone says that there is some.
        measured: bool,
    },
    /// It would wait.
    Queued {
        /// 1 is the first of its pool.
        position: usize,
        /// How many GPUs each reason excluded; together they are all GPUs of the pool.
        reasons: Vec<Excluded>,
        /// The nearest thing that would unblock it.
        #[serde(skip_serializing_if = "Option::is_none")]
        nearest: Option<Nearest>,
    },
    /// It would be refused.
    QuotaExceeded {
        /// Every limit that would be exceeded.
        violations: Vec<Violation>,
    },
    /// It would be refused: not even an empty pool could hold it.
    Unsatisfiable {
        /// How many GPUs each reason excluded; together they are all GPUs of the pool.
        reasons: Vec<Excluded>,
        /// The nearest thing that would unblock it.
        #[serde(skip_serializing_if = "Option::is_none")]
        nearest: Option<Nearest>,
    },
}

impl From<scheduler::DryRun> for DryRun {
    fn from(outcome: scheduler::DryRun) -> Self {
        match outcome {
            scheduler::DryRun::Placed { gpus, measured } => Self::Placed { gpu_uuids: gpus, measured },
            scheduler::DryRun::Queued { ahead, no_room } => {
                Self::Queued { position: ahead + 1, reasons: no_room.reasons, nearest: no_room.nearest }
            }
            scheduler::DryRun::QuotaExceeded(violations) => Self::QuotaExceeded { violations },
            scheduler::DryRun::Unsatisfiable(no_room) => {
                Self::Unsatisfiable { reasons: no_room.reasons, nearest: no_room.nearest }
            }
        }
    }
}

/// The header by which a repeat of a request is known.
#[derive(Debug)]
pub(crate) struct IdempotencyKey(String);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let fault = |rule: &str| {
            Problem::invalid(vec![FieldError { field: "Idempotency-Key".to_owned(), rule: rule.to_owned() }])
        };
        let mut given = parts.headers.get_all("idempotency-key").iter();
        match (given.next(), given.next()) {
            (Some(value), None) => {
                std::str::from_utf8(value.as_bytes()).map(|key| Self(key.to_owned())).map_err(|_| fault("is not UTF-8"))
            }
            (None, _) => Err(fault("is missing: send a header that is new for each request, and the same in a repeat")),
            (Some(_), Some(_)) => Err(fault("is given twice")),
        }
    }
}

/// Seconds after which it is worth asking again for a queued request.
const ASK_AGAIN_S: &str = "5";

/// Ask for memory
///
/// The request is checked against its tenant's quotas and placed on GPUs with room, or waits in order of arrival. What is
/// placed must be confirmed before `hold_until`. A repeat with the same key gets the allocation as it stands, or the same
/// refusal: 409 with code `quota_exceeded` or `unsatisfiable` and every reason. The same key with another request gets
/// 422. Keys are kept for seven days.
#[utoipa::path(
    post, path = "/v1/allocations", tag = "allocations", security(("bearer" = [])),
    params((
        "Idempotency-Key" = String, Header, description = "Known per tenant: 1 to 200 bytes, new for each request.",
        min_length = 1, max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )),
    responses(
        (status = 201, description = "Placed.", body = Allocation),
        (
            status = 202, description = "Queued, with position and reasons.", body = Allocation,
            headers(("Retry-After" = u32, description = "Seconds."))
        ),
        (status = 200, description = "A repeat: as it stands now.", body = Allocation),
        WriteErrors
    )
)]
pub(crate) async fn create_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    Json(new): Json<NewAllocation>,
) -> Result<(StatusCode, Option<[(HeaderName, &'static str); 1]>, Json<Allocation>), Problem> {
    let (view, made) = allocation::request(&state.app, &caller, new.into(), &key).await?;
    access::name_made("allocation_id", view.row.allocation_id);
    let (status, retry) = match (made, view.row.state) {
        (false, _) => (StatusCode::OK, None),
        (true, AllocationState::Queued) => (StatusCode::ACCEPTED, Some([(header::RETRY_AFTER, ASK_AGAIN_S)])),
        (true, _) => (StatusCode::CREATED, None),
    };
    Ok((status, retry, Json(view.into())))
}

/// Show what a request would get now
///
/// Holds nothing and stores nothing; a refusal is an answer here, with every reason.
#[utoipa::path(
    post, path = "/v1/allocations/dry-run", tag = "allocations", security(("bearer" = [])),
    responses((status = 200, body = DryRun), WriteErrors)
)]
pub(crate) async fn dry_run_allocation(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewAllocation>,
) -> Result<Json<DryRun>, Problem> {
    Ok(Json(allocation::dry_run(&state.app, &caller, new.into()).await?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_needed_once() {
        for (keys, rule) in [(vec![], Some("is missing")), (vec!["a"], None), (vec!["a", "b"], Some("given twice"))] {
            let mut request = axum::http::Request::post("/");
            for key in &keys {
                request = request.header("Idempotency-Key", *key);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let found = IdempotencyKey::from_request_parts(&mut parts, &()).await;
            match (found, rule) {
                (Ok(key), None) => assert_eq!(key.0, "a"),
                (Err(problem), Some(rule)) => {
                    let body = serde_json::to_value(problem.body_for_test()).unwrap();
                    assert_eq!(body["status"], 422);
                    assert_eq!(body["errors"][0]["field"], "Idempotency-Key");
                    assert!(body["errors"][0]["rule"].as_str().unwrap().contains(rule), "{body}");
                }
                (found, rule) => panic!("{keys:?}: {found:?}, expected {rule:?}"),
            }
        }
    }
}
