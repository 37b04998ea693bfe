//! Parameters of queries, through the extractor that every handler uses. The first byte chooses the operation.

use crate::body::{is_explained, runtime};
use api::extract::Query;
use axum::{extract::FromRequestParts, http::Request, response::IntoResponse};
use serde::de::DeserializeOwned;

pub(crate) const WORDS: &[&str] = &[
    "tenant_id=01980000-0000-7000-8000-000000000001",
    "&",
    "limit=200",
    "cursor=AZrF3mB4cQ2dqL8m0m5h1w",
    "wait=30s",
    "from=2026-11-01T00:00:00Z",
    "to=9999-12-30T00:00:00%2B23:59",
    "by=hour",
    "period=2026-11",
    "open=true",
    "state=queued",
    "%00",
    "%ff",
    "+",
];

const QUERIES: &[fn(&str)] = &[
    read::<api::page::Paging>,
    read::<api::page::TenantPaging>,
    read::<api::allocation::AllocationFilter>,
    read::<api::allocation::Waiting>,
    read::<api::balance::BalanceQuery>,
    read::<api::gpu::GpuFilter>,
    read::<api::invoice::PreviewQuery>,
    read::<api::node::NodeFilter>,
    read::<api::session::SessionFilter>,
    read::<api::set_aside::SetAsideFilter>,
    read::<api::usage::UsageQuery>,
];

pub(crate) fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(data) else { return };
    (QUERIES[usize::from(*choice) % QUERIES.len()])(text);
}

fn read<T: DeserializeOwned + Send>(text: &str) {
    // what is no address reaches no handler
    let Ok(request) = Request::get(format!("/?{text}")).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    if let Err(problem) = runtime().block_on(Query::<T>::from_request_parts(&mut parts, &())) {
        is_explained(problem.into_response());
    }
}
