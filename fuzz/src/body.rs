//! Bodies of requests, through the extractor that every handler uses: each is taken, or refused as a problem that says
//! why. The first byte chooses the type.

use api::extract::Json;
use axum::{
    body::Body,
    extract::FromRequest,
    http::Request,
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, sync::OnceLock};
use tokio::runtime::{Builder, Runtime};
use types::wire::{Join, NodeReport, ReadingBatch};

pub(crate) const WORDS: &[&str] = &[
    "{\"tenant_id\":\"01980000-0000-7000-8000-000000000001\"",
    "\"memory\":\"20GiB\"",
    "\"memory\":9223372036854775807",
    "\"rates\":{\"default\":{\"reserved\":\"1.5\"},\"models\":{\"NVIDIA A10\":{\"reserved\":\"2\",\"above\":\"0.1\"}}}",
    "\"sent_at\":\"2026-11-01T00:00:00Z\"",
    "\"readings\":[{\"part_id\":\"01980000-0000-7000-8000-000000000001\",\"start\":\"2026-11-01T00:00:00Z\",\"end\":\"2026-11-01T00:01:00Z\",\"granted\":1,\"used\":\"60000\",\"above\":\"0\",\"peak\":1,\"covered_ms\":60000,\"quality\":\"measured\"}]",
    "\"gpus\":[]",
    "\\u0000",
    "\\ud800",
    "-0",
    "1e400",
    "18446744073709551616",
    "null",
    "[",
    "{\"",
];

type Reader = fn(&[u8]);

/// Types of bodies by the names of their schemas: every one of the document.
pub const BODIES: &[(&str, Reader)] = &[
    ("AcceptedInvitation", read::<api::invitation::AcceptedInvitation>),
    ("FinishedLogin", read::<api::oidc::FinishedLogin>),
    ("Join", wire::<Join>),
    ("Limits", read::<api::quota::Limits>),
    ("Login", read::<api::session::Login>),
    ("NewAllocation", read::<api::allocation::request::NewAllocation>),
    ("NewInvitation", read::<api::invitation::NewInvitation>),
    ("NewInvoice", read::<api::invoice::NewInvoice>),
    ("NewJoinToken", read::<api::pool::NewJoinToken>),
    ("NewKey", read::<api::api_key::NewKey>),
    ("NewPassword", read::<api::user::NewPassword>),
    ("NewPlan", read::<api::plan::NewPlan>),
    ("NewPool", read::<api::pool::NewPool>),
    ("NewProject", read::<api::project::NewProject>),
    ("NewSubscription", read::<api::subscription::NewSubscription>),
    ("NewTenant", read::<api::tenant::NewTenant>),
    ("NewUser", read::<api::user::NewUser>),
    ("NewVersion", read::<api::plan::NewVersion>),
    ("NodeReport", wire::<NodeReport>),
    ("PoolChange", read::<api::pool::PoolChange>),
    ("ReadingBatch", wire::<ReadingBatch>),
    ("RulingNote", read::<api::set_aside::RulingNote>),
    ("TenantQuota", read::<api::quota::TenantQuota>),
];

pub(crate) fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    (BODIES[usize::from(*choice) % BODIES.len()].1)(data);
}

fn read<T: DeserializeOwned>(data: &[u8]) {
    body::<T>(data);
}

/// Reads a body as a handler does.
fn body<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    let request = Request::post("/").header("content-type", "application/json").body(Body::from(data.to_vec()));
    match runtime().block_on(Json::<T>::from_request(request.unwrap(), &())) {
        Ok(Json(value)) => {
            assert_eq!(data.trim_ascii_start().first(), Some(&b'{'), "no object was taken for one");
            Some(value)
        }
        Err(problem) => {
            is_explained(problem.into_response());
            None
        }
    }
}

/// The same for what both sides compile: what was read prints, and reads back to the same value.
fn wire<T: DeserializeOwned + Serialize + PartialEq + fmt::Debug>(data: &[u8]) {
    let Some(value) = body::<T>(data) else { return };
    let printed = serde_json::to_vec(&value).unwrap();
    assert_eq!(body::<T>(&printed), Some(value));
}

pub(crate) fn is_explained(response: Response) {
    assert!(matches!(response.status().as_u16(), 400 | 422), "{response:?}");
    let problem = response.extensions().get::<api::Problem>().unwrap();
    let written = format!("{problem:?}");
    assert!(written.contains("detail: Some(") || written.contains("rule: \""), "{written}");
}

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_all().build().unwrap())
}
