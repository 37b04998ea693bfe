//! What is said and counted of each request: one line in the log, and metrics by operation. Names and ids, no secrets: of
//! a request's path only the variables that are UUIDs are named, of its query and headers nothing.

use crate::{layers::RequestId, problem};
use app::{App, Principal};
use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use metrics::{Counter, Gauge, Histogram};
use std::{collections::HashMap, sync::Arc, time::Instant};
use tracing::{Instrument, Span, field};
use utoipa::openapi::OpenApi;

/// The classes of statuses, as a label. `aborted` is a request whose client went away before it was answered.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "aborted"];
const ABORTED: usize = 5;
/// The operation of a path that is not in the document, such as the page that shows it, or that is none.
const OTHER: &str = "other";
/// Methods are a label: what a client makes up is not.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// The metrics of one operation, looked up once.
struct Operation {
    /// The operation's id in the OpenAPI document.
    id: String,
    answered: [Counter; CLASSES.len()],
    seconds: Histogram,
    in_flight: Gauge,
}

impl Operation {
    fn new(id: &str, method: &'static str) -> Self {
        let id = id.to_owned();
        let of = |class: &'static str| metrics::counter!("gpuledger_http_requests_total", "operation" => id.clone(), "method" => method, "status" => class);
        let seconds = metrics::histogram!("gpuledger_http_request_seconds", "operation" => id.clone());
        let in_flight = metrics::gauge!("gpuledger_http_requests_in_flight", "operation" => id.clone());
        Self { answered: CLASSES.map(of), seconds, in_flight, id }
    }
}

/// Every operation, found by path as the document writes it, and method.
#[derive(Clone)]
pub(crate) struct Operations {
    app: App,
    known: Arc<HashMap<String, Vec<(&'static str, Operation)>>>,
    other: Arc<Vec<(&'static str, Operation)>>,
}

impl Operations {
    /// Those of a document.
    pub(crate) fn new(app: &App, document: &OpenApi) -> Self {
        let mut known = HashMap::new();
        for (path, item) in &document.paths.paths {
            let of = [&item.get, &item.post, &item.put, &item.patch, &item.delete];
            let documented = METHODS.into_iter().zip(of).filter_map(|(method, operation)| {
                let id = operation.as_ref()?.operation_id.as_deref()?;
                Some((method, Operation::new(id, method)))
            });
            known.insert(path.clone(), documented.collect());
        }
        let other = METHODS.into_iter().chain(["other"]).map(|method| (method, Operation::new(OTHER, method)));
        Self { app: app.clone(), known: Arc::new(known), other: Arc::new(other.collect()) }
    }

    fn of(&self, method: &'static str, path: Option<&MatchedPath>) -> Option<&Operation> {
        let known = path.and_then(|path| self.known.get(path.as_str())).into_iter().flatten();
        known.chain(self.other.iter()).find(|(of, _)| *of == method).map(|(_, operation)| operation)
    }
}

fn label(method: &Method) -> &'static str {
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// A request under way: counted and logged when it is answered, or dropped because its client went away.
struct Underway<'a> {
    operation: &'a Operation,
    span: Span,
    begun: Instant,
    /// Absent until there is an answer.
    status: Option<u16>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        let class = self.status.map_or(ABORTED, |status| (usize::from(status) / 100).clamp(1, ABORTED) - 1);
        self.operation.in_flight.decrement(1);
        self.operation.answered[class].increment(1);
        self.operation.seconds.record(took);
        let duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        match self.status {
            Some(status) => tracing::info!(parent: &self.span, status, duration_us, "answered"),
            None => tracing::info!(parent: &self.span, duration_us, "the client went away"),
        }
    }
}

/// Names the request, logs and counts it, and gives every error its form on the way out.
pub(crate) async fn observe(State(operations): State<Operations>, mut request: Request, next: Next) -> Response {
    let id = operations.app.id(|at, random| {
        let millis = u64::try_from(at.as_millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().to_string()
    });
    let method = label(request.method());
    let matched = request.extensions().get::<MatchedPath>();
    // every method has an entry
    let Some(operation) = operations.of(method, matched) else { return next.run(request).await };
    let span = span(&id, operation, method, matched, request.uri().path());
    request.extensions_mut().insert(RequestId(id.clone()));
    operation.in_flight.increment(1);
    let mut underway = Underway { operation, span: span.clone(), begun: Instant::now(), status: None };
    let response = problem::finish(next.run(request).instrument(span).await, &id);
    underway.status = Some(response.status().as_u16());
    response
}

/// The variables of paths that are logged, each under its name in the document.
macro_rules! request_span {
    ($id:expr, $operation:expr, $method:expr; $($variable:ident),*) => {
        tracing::info_span!(
            "request", request_id = $id, operation = $operation, method = $method,
            caller = field::Empty, tenant_id = field::Empty, $($variable = field::Empty),*
        )
    };
}

fn span(id: &str, operation: &Operation, method: &str, matched: Option<&MatchedPath>, path: &str) -> Span {
    let span = request_span!(id, operation.id.as_str(), method;
        allocation_id, node_id, invoice_id, pool_id, project_id, user_id, key_id, plan_id, set_aside_id);
    let template = matched.map_or("", MatchedPath::as_str);
    for (variable, value) in template.split('/').zip(path.split('/')) {
        if let Some(name) = variable.strip_prefix('{').and_then(|name| name.strip_suffix('}'))
            && let Ok(uuid) = value.parse::<uuid::Uuid>()
        {
            // a variable that the span does not have is left out
            span.record(name, field::display(uuid));
        }
    }
    span
}

/// Names who calls, once the credential was checked, in the line of the request in course.
pub(crate) fn name_caller(principal: &Principal) {
    let span = Span::current();
    span.record("caller", field::display(principal.actor()));
    if let Principal::Tenant { tenant, .. } = principal {
        span.record("tenant_id", field::display(tenant));
    }
}

/// Names what the request in course made.
pub(crate) fn name_made(field: &'static str, id: impl std::fmt::Display) {
    Span::current().record(field, field::display(id));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_up_method_is_no_label() {
        assert_eq!(label(&Method::GET), "GET");
        assert_eq!(label(&Method::from_bytes(b"SECRET").unwrap()), "other");
    }
}
