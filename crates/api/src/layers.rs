//! What every request passes through, from the outside in: id, error form, log line and metrics (`access.rs`), panics, the
//! length of its URI, load, time, compression, and the bounds of its body, which [`crate::body`] keeps.

use crate::{
    access::{self, Operations},
    body::{self, BodyLimits},
    problem::Problem,
    router::ApiState,
};
use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use std::{any::Any, sync::Arc};
use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, sensitive_headers::SetSensitiveRequestHeadersLayer,
    timeout::TimeoutLayer,
};
use utoipa::openapi::OpenApi;

/// The id of a request: a UUID of version 7, in the answer's `x-request-id`, in each log line, in problems and audit.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub String);

/// Places for requests that wait for something: a quarter of all, so that those that wait leave room for those that work.
#[derive(Debug, Clone)]
pub(crate) struct Waits(pub Arc<Semaphore>);

/// Places for requests in work.
#[derive(Debug)]
struct Places {
    /// What nodes send: no load of others may make them look silent.
    nodes: Semaphore,
    /// What other servers send: it has a place there already.
    servers: Semaphore,
    others: Semaphore,
}

impl Places {
    fn new(in_flight: usize) -> Self {
        let places = || Semaphore::new(in_flight);
        Self { nodes: places(), servers: places(), others: places() }
    }

    fn of(&self, request: &Request) -> &Semaphore {
        match request.uri().path() {
            "/v1/node-reports" | "/v1/reading-batches" => &self.nodes,
            path if path.starts_with("/internal/") => &self.servers,
            _ => &self.others,
        }
    }
}

/// Puts the layers around the routes.
pub(crate) fn around(routes: Router<ApiState>, state: &ApiState, document: &OpenApi) -> Router<ApiState> {
    let limits = state.limits;
    let places = Arc::new(Places::new(limits.in_flight));
    let waits = Waits(Arc::new(Semaphore::new(limits.in_flight.div_ceil(4))));
    let bodies = BodyLimits::new(&limits);
    let operations = Operations::new(&state.app, document);
    routes.layer(
        ServiceBuilder::new()
            .layer(SetSensitiveRequestHeadersLayer::new([header::AUTHORIZATION, header::COOKIE]))
            .layer(middleware::from_fn_with_state(operations, access::observe))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn(move |request, next| measure_uri(limits.uri, request, next)))
            .layer(middleware::from_fn_with_state(places, shed))
            .layer(Extension(waits))
            .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, limits.duration))
            .layer(CompressionLayer::new())
            .layer(middleware::from_fn(move |request, next| body::bound(bodies.clone(), request, next))),
    )
}

fn panicked(cause: Box<dyn Any + Send + 'static>) -> Response {
    let reason = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(reason, "a handler panicked");
    Problem::of_status(StatusCode::INTERNAL_SERVER_ERROR).into_response()
}

/// Refuses what is more than the server can work on at once, before it costs anything.
async fn shed(State(places): State<Arc<Places>>, request: Request, next: Next) -> Response {
    match places.of(&request).try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => Problem::unavailable("Too many requests are in work.").into_response(),
    }
}

/// Refuses a URI that is too long to be one of ours.
async fn measure_uri(longest: usize, request: Request, next: Next) -> Response {
    let uri = request.uri();
    if uri.path().len() + uri.query().map_or(0, str::len) > longest {
        return Problem::of_status(StatusCode::URI_TOO_LONG).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn no_load_of_others_takes_the_places_of_nodes() {
        let places = Places::new(1);
        let to = |path: &str| Request::get(path).body(Body::empty()).unwrap();
        let _wait = places.of(&to("/v1/allocations/a?wait=60s")).try_acquire().unwrap();
        assert!(places.of(&to("/v1/tenants")).try_acquire().is_err());
        let _report = places.of(&to("/v1/node-reports")).try_acquire().unwrap();
        assert!(places.of(&to("/v1/reading-batches")).try_acquire().is_err());
    }
}
