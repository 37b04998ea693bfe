//! Every error has one form, whoever made it: a handler, an extractor, a layer or the router. No database answers here.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use api::{ApiState, HttpLimits, router};
use app::{App, Random, SchedulerSettings, Schedulers, SessionSettings, Sessions};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use std::time::Duration;
use store::{Store, StoreSettings};
use tower::ServiceExt;
use types::{Clock, ServerId};

const LIMIT: usize = 64 << 10;

/// The service with a database that is away.
fn service() -> Router {
    let settings = StoreSettings {
        acquire: Duration::from_millis(200),
        ..StoreSettings::new("postgres://nobody@127.0.0.1:1/nothing")
    };
    let app = App::new(
        Store::open(&settings).unwrap(),
        Clock::System,
        Random::System,
        Sessions::new(SessionSettings::default()),
        Schedulers::new(ServerId(uuid::Uuid::nil()), SchedulerSettings::default()),
    );
    let limits = HttpLimits { body: LIMIT, ..HttpLimits::default() };
    let guard = api::Guard::new(Vec::new());
    router(ApiState { app, metrics: PrometheusBuilder::new().build_recorder().handle(), limits, guard })
}

async fn send(request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
    let response = service().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, to_bytes(body, 16 << 20).await.unwrap().to_vec())
}

/// Sends a request that must fail; checks the form of the problem.
async fn problem(request: Request<Body>) -> (HeaderMap, Value) {
    let (status, headers, body) = send(request).await;
    assert_eq!(headers["content-type"], "application/problem+json", "{}", String::from_utf8_lossy(&body));
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    assert_eq!(problem["instance"].as_str().unwrap(), headers["x-request-id"]);
    let code = problem["code"].as_str().unwrap();
    assert_eq!(problem["type"], format!("/problems/{}", code.replace('_', "-")));
    (headers, problem)
}

fn login() -> axum::http::request::Builder {
    Request::post("/v1/login").header("content-type", "application/json")
}

#[tokio::test]
async fn the_router_answers_with_problems() {
    let (_, answer) = problem(Request::get("/v1/nothing").body(Body::empty()).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&404.into(), &"no_such_path".into()));
    let (headers, answer) = problem(Request::delete("/v1/tenants").body(Body::empty()).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&405.into(), &"method_not_allowed".into()));
    assert!(headers["allow"].to_str().unwrap().contains("POST"), "{headers:?}");
}

#[tokio::test]
async fn a_credential_is_needed_and_must_be_well_formed() {
    for value in [None, Some("Basic YTpi"), Some("Bearer"), Some("Bearer glk_x"), Some("Bearer a.b.c"), Some("Bearer ")]
    {
        let mut request = Request::get("/v1/tenants");
        if let Some(value) = value {
            request = request.header("authorization", value);
        }
        let (headers, answer) = problem(request.body(Body::empty()).unwrap()).await;
        assert_eq!((&answer["status"], &answer["code"]), (&401.into(), &"unauthenticated".into()), "{value:?}");
        assert!(headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    }
}

#[tokio::test]
async fn an_unsigned_token_is_refused_before_any_key_is_looked_up() {
    // {"alg":"none","typ":"JWT"} . {"sub":"01980000-0000-7000-8000-000000000001"}
    let token = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiIwMTk4MDAwMC0wMDAwLTcwMDAtODAwMC0wMDAwMDAwMDAwMDEifQ.";
    let request = Request::get("/v1/me").header("authorization", format!("Bearer {token}"));
    let (_, answer) = problem(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer["status"], 401);
}

#[tokio::test]
async fn a_body_that_cannot_be_read_says_why() {
    let (_, answer) = problem(login().body(Body::from("{\"email\":")).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&400.into(), &"malformed".into()));
    let (_, answer) = problem(login().body(Body::from("{\"email\": \"a@b\"}")).unwrap()).await;
    assert_eq!((&answer["status"], &answer["errors"][0]["field"]), (&422.into(), &"password".into()));
    let wrong_type = Request::post("/v1/login").header("content-type", "text/plain");
    let (_, answer) = problem(wrong_type.body(Body::from("{}")).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&415.into(), &"unsupported_media_type".into()));
    let wrong_encoding = login().header("content-encoding", "br");
    let (_, answer) = problem(wrong_encoding.body(Body::from("{}")).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&415.into(), &"unsupported_media_type".into()));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_also_when_it_is_small_on_the_wire() {
    let large = vec![b' '; LIMIT + 1];
    let told = login().header("content-length", large.len());
    let (_, answer) = problem(told.body(Body::from(large.clone())).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&413.into(), &"body_too_large".into()));

    let bomb = zstd::encode_all(&vec![b' '; 50 << 20][..], 3).unwrap();
    assert!(bomb.len() < LIMIT);
    let request = login().header("content-encoding", "zstd");
    let (_, answer) = problem(request.body(Body::from(bomb)).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&413.into(), &"body_too_large".into()));
}

#[tokio::test]
async fn a_compressed_body_is_read_and_a_database_that_is_away_is_503() {
    let body = zstd::encode_all(&br#"{"email": "a@b", "password": "twelve bytes"}"#[..], 3).unwrap();
    let request = login().header("content-encoding", "zstd");
    let (headers, answer) = problem(request.body(Body::from(body)).unwrap()).await;
    assert_eq!((&answer["status"], &answer["code"]), (&503.into(), &"unavailable".into()));
    assert!(headers.contains_key("retry-after"));
    let (headers, answer) = problem(Request::get("/readyz").body(Body::empty()).unwrap()).await;
    assert_eq!(answer["status"], 503);
    assert!(headers.contains_key("retry-after"));
    assert_eq!(send(Request::get("/healthz").body(Body::empty()).unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_pages_for_people_are_served_without_any_other_server() {
    for path in ["/", "/docs/"] {
        let (status, _, body) = send(Request::get(path).body(Body::empty()).unwrap()).await;
        let page = String::from_utf8(body).unwrap();
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(!page.contains("http://") && !page.contains("https://"), "{path} loads something from elsewhere");
    }
    let (status, _, body) = send(Request::get("/v1/openapi.json").body(Body::empty()).unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["info"]["title"], "Gpuledger");
}
