//! What handlers take from a request. Each extractor's rejection is a [`Problem`] that names the field and the rule.

use crate::{
    access,
    body::{self, HasCredential},
    exact::Exact,
    layers::RequestId,
    nul,
    problem::{FieldError, Problem},
    router::ApiState,
};
use app::{AppError, Authenticated, Caller, session::Origin};
use axum::{
    extract::{
        FromRequest, FromRequestParts, Request,
        path::ErrorKind,
        rejection::{JsonRejection, PathRejection, QueryRejection},
    },
    http::{HeaderMap, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{convert::Infallible, error::Error};
use types::SessionId;

/// A JSON body, in or out.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// Parameters of the query. Their struct refuses unknown ones.
#[derive(Debug)]
pub struct Query<T>(pub T);

/// Variables of the path, as a struct with a field for each.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let text = body::read(request).await?;
        match axum::Json::<Exact<T>>::from_bytes(&text) {
            Ok(axum::Json(Exact(value))) => match nul::in_json(&text) {
                Some(field) => Err(Problem::invalid(vec![FieldError { field, rule: nul::RULE.to_owned() }])),
                None => Ok(Self(value)),
            },
            Err(JsonRejection::JsonDataError(error)) => Err(Problem::invalid(vec![fault(&cause(&error), "body")])),
            Err(JsonRejection::JsonSyntaxError(error)) => Err(Problem::malformed(shortened(cause(&error)))),
            Err(other) => Err(Problem::of_status(other.status())),
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => match nul::in_query(parts.uri.query().unwrap_or_default()) {
                Some(field) => Err(Problem::invalid(vec![FieldError { field, rule: nul::RULE.to_owned() }])),
                None => Ok(Self(value)),
            },
            Err(QueryRejection::FailedToDeserializeQueryString(error)) => {
                Err(Problem::invalid(vec![fault(&cause(&error), "query")]))
            }
            Err(other) => Err(Problem::of_status(other.status())),
        }
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                let (field, rule) = match error.kind() {
                    ErrorKind::ParseErrorAtKey { key, expected_type, .. } => {
                        (key.clone(), format!("is not of type {expected_type}"))
                    }
                    ErrorKind::DeserializeError { key, message, .. } => {
                        (key.clone(), format!("is malformed: {message}"))
                    }
                    ErrorKind::InvalidUtf8InPathParam { key } => (key.clone(), "is not UTF-8".to_owned()),
                    other => ("path".to_owned(), other.to_string()),
                };
                Err(Problem::invalid(vec![FieldError { field, rule }]))
            }
            Err(other) => Err(Problem::of_status(other.status())),
        }
    }
}

/// The longest credential that is looked at: tokens of other issuers may be long.
const LONGEST_CREDENTIAL: usize = 16_384;

impl FromRequestParts<ApiState> for Caller {
    type Rejection = Problem;

    /// The bearer credential's principal. A handler without this extractor serves everyone.
    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let credential = bearer(&parts.headers)?;
        let source = state.guard.source(&parts.extensions, &parts.headers);
        state.guard.credential(credential, source)?;
        let authenticated = state.app.authenticate(credential).await;
        match &authenticated {
            Ok(_) => state.guard.looked_at(credential, source, true),
            Err(AppError::Unauthenticated(_)) => state.guard.looked_at(credential, source, false),
            Err(_) => {}
        }
        let Authenticated { principal, session } = authenticated?;
        parts.extensions.insert(HasCredential);
        parts.extensions.insert(PresentSession(session));
        access::name_caller(&principal);
        let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone());
        Ok(Self { principal, request_id })
    }
}

/// The session that a person calls in; absent for machines. Taken after [`Caller`], which finds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PresentSession(pub Option<SessionId>);

impl<S: Send + Sync> FromRequestParts<S> for PresentSession {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self(None)))
    }
}

/// Where a request comes from, as far as known.
#[derive(Debug)]
pub(crate) struct Whence(pub Origin);

impl FromRequestParts<ApiState> for Whence {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Infallible> {
        let address = state.guard.source(&parts.extensions, &parts.headers);
        let user_agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        Ok(Self(Origin { address, user_agent: user_agent.map(str::to_owned) }))
    }
}

/// The credential in the header Authorization.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let value = headers
        .get(header::AUTHORIZATION)
        .ok_or_else(|| Problem::unauthenticated("Send a credential as Authorization: Bearer …"))?;
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, credential)| credential.trim())
        .filter(|credential| credential.len() <= LONGEST_CREDENTIAL)
        .ok_or_else(|| Problem::unauthenticated("The header Authorization is not of the form Bearer …"))
}

fn cause(error: &impl Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// How serde's own complaints begin. Any other complaint comes after the path of its field and a colon.
const COMPLAINTS: [&str; 7] = [
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown field",
    "unknown variant",
    "missing field",
    "duplicate field",
];

/// The longest field or rule that is told; what callers send can be repeated in either.
const LONGEST_TOLD: usize = 300;

/// A text without its middle, where it is long.
fn shortened(text: String) -> String {
    if text.len() <= LONGEST_TOLD {
        return text;
    }
    let (start, end) =
        (text.floor_char_boundary(LONGEST_TOLD / 2), text.ceil_char_boundary(text.len() - LONGEST_TOLD / 2));
    format!("{}…{}", &text[..start], &text[end..])
}

/// What a failed deserialisation says, in a length that can be told.
fn fault(text: &str, whole: &str) -> FieldError {
    let FieldError { field, rule } = field_and_rule(text, whole);
    FieldError { field: shortened(field), rule: shortened(rule) }
}

/// Field and rule from the text of a failed deserialisation: `path: complaint at line 1 column 2`.
fn field_and_rule(text: &str, whole: &str) -> FieldError {
    let text = text.rfind(" at line ").map_or(text, |end| &text[..end]);
    let starts_a_complaint = |text: &str| COMPLAINTS.iter().any(|c| text.starts_with(c));
    let (path, complaint) = match text.split_once(": ") {
        Some((path, complaint)) if !starts_a_complaint(path) => (path, complaint),
        _ => ("", text),
    };
    let named = |start: &str| {
        let (name, rest) = complaint.strip_prefix(start)?.strip_prefix(" `")?.split_once('`')?;
        let parent = path.strip_suffix(name).map_or(path, |parent| parent.strip_suffix('.').unwrap_or(parent));
        let field = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        Some((field, rest.trim_start_matches(", ").to_owned()))
    };
    if let Some((field, _)) = named("missing field") {
        return FieldError { field, rule: "is missing".to_owned() };
    }
    if let Some((field, _)) = named("duplicate field") {
        return FieldError { field, rule: "is given twice".to_owned() };
    }
    if let Some((field, expected)) = named("unknown field") {
        return FieldError { field, rule: format!("is not known: {expected}") };
    }
    let field = if path.is_empty() { whole } else { path };
    FieldError { field: field.to_owned(), rule: complaint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use serde::Deserialize;
    use types::{Name, TenantId};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it can be read matters")]
    struct Outer {
        name: Name,
        count: Option<u32>,
        rates: Option<billing::Rates>,
        tenant_id: Option<TenantId>,
    }

    async fn body_fault(body: &str) -> (String, String) {
        let request = Request::post("/").header("content-type", "application/json").body(Body::from(body.to_owned()));
        let problem = Json::<Outer>::from_request(request.unwrap(), &()).await.unwrap_err();
        let value = serde_json::to_value(problem.body_for_test()).unwrap();
        let error = &value["errors"][0];
        (error["field"].as_str().unwrap().to_owned(), error["rule"].as_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn the_field_and_the_rule_are_named() {
        for (body, field, rule) in [
            (r#"{"name": ""}"#, "name", "is empty"),
            (r#"{"count": 1}"#, "name", "is missing"),
            (r#"{"name": "a", "cuont": 1}"#, "cuont", "is not known"),
            (r#"{"name": "a", "name": "b"}"#, "name", "is given twice"),
            (r#"{"name": "a", "count": -1}"#, "count", "invalid value: integer `-1`, expected u32"),
            (r#"{"name": "a", "count": "1"}"#, "count", "invalid type"),
            (r#"{"name": "a", "tenant_id": "x"}"#, "tenant_id", "UUID"),
            (r#"{"name": "a", "rates": {}}"#, "rates.default", "is missing"),
            (r#"{"name": "a", "rates": {"default": {"reserved": "-1"}}}"#, "rates.default.reserved", "negative"),
            (r#"{"name": "a", "rates": {"default": {"reserved": "1", "x": 1}}}"#, "rates.default.x", "is not known"),
            (
                r#"{"name": "a", "rates": {"default": {"reserved": "1"}, "models": {"NVIDIA A10": {"reserved": "q"}}}}"#,
                "rates.models.NVIDIA A10.reserved",
                "not a decimal number",
            ),
            ("[]", "body", "invalid type: sequence, expected struct Outer"),
            (r#"["a", 1, null, null]"#, "body", "invalid type: sequence"),
            (r#"{"name": "a", "rates": [{"reserved": "1"}]}"#, "rates", "invalid type: sequence"),
            ("3", "body", "invalid type"),
        ] {
            let (found_field, found_rule) = body_fault(body).await;
            assert_eq!(found_field, field, "{body}: {found_rule}");
            assert!(found_rule.contains(rule), "{body}: {found_rule}");
        }
    }

    #[tokio::test]
    async fn a_long_text_is_not_repeated() {
        let digits = "9".repeat(10_000);
        for body in [format!("{{\"name\": \"a\", \"{digits}\": 1}}"), format!("{{\"name\": \"{digits}é\"}}")] {
            let (field, rule) = body_fault(&body).await;
            assert!(field.len() < 400 && rule.len() < 400, "{field} {rule}");
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it can be read matters")]
    struct Filter {
        tenant_id: Option<TenantId>,
        limit: Option<crate::page::Limit>,
    }

    #[tokio::test]
    async fn the_query_parameter_is_named() {
        for (query, field, rule) in [
            ("limit=0", "limit", "1 to 200"),
            ("limit=x", "limit", "invalid digit"),
            ("limit=201", "limit", "1 to 200"),
            ("limit=1&limit=2", "limit", "is given twice"),
            ("lmit=1", "lmit", "is not known"),
            ("tenant_id=x", "tenant_id", "UUID"),
        ] {
            let (mut parts, ()) = Request::get(format!("/?{query}")).body(()).unwrap().into_parts();
            let problem = Query::<Filter>::from_request_parts(&mut parts, &()).await.unwrap_err();
            let value = serde_json::to_value(problem.body_for_test()).unwrap();
            assert_eq!(value["errors"][0]["field"], field, "{value}");
            assert!(value["errors"][0]["rule"].as_str().unwrap().contains(rule), "{value}");
        }
    }
}
