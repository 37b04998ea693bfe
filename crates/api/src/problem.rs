//! Errors as the caller sees them: RFC 9457, and the one place where a status is chosen.
//!
//! A handler's error is a [`Problem`]. On its way out it carries itself in the response's extensions; the outermost
//! layer writes it, because only that one knows the request's id, and turns whatever else ended badly (no such path, a
//! body over the limit, a timeout) into a problem too. So every error has one form.

use app::{AppError, error::Refusal};
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use placement::{Excluded, Nearest};
use quota::Violation;
use serde::Serialize;
use std::collections::BTreeMap;
use types::{ByteMillis, GpuId, Instant};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, response};

/// An error on its way to the caller.
#[derive(Debug, Clone)]
pub struct Problem {
    body: Box<ProblemBody>,
    /// When it is worth trying again.
    retry_after_s: Option<u32>,
}

/// What went wrong (RFC 9457).
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// Names the kind of problem; stable.
    #[serde(rename = "type")]
    #[schema(example = "/problems/invalid")]
    kind: String,
    /// The kind in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The kind as programs tell it apart; stable.
    #[schema(example = "invalid")]
    code: String,
    /// This occurrence, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The request's id, as in the header `x-request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    /// Code `invalid`: each fault that was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// Code `quota_exceeded`: every limit that would be exceeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    violations: Vec<Violation>,
    /// Code `unsatisfiable`: how many GPUs each reason excluded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    reasons: Vec<Excluded>,
    /// Code `unsatisfiable`: the nearest thing that would unblock it.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<Nearest>,
    /// Code `sequence_gap`: the sequence that the server waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
    /// Code `out_of_balance`: each GPU and hour whose terms do not add up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    imbalances: Vec<Imbalance>,
}

/// One field that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldError {
    /// Path of the field, such as `rates.default.reserved`.
    pub field: String,
    /// The rule: a clause that follows the field's name.
    pub rule: String,
}

/// A GPU's hour whose terms do not add up to what it has.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
struct Imbalance {
    gpu_id: GpuId,
    hour: Instant,
    /// Capacity less the sum of the terms: negative when more was recorded than there is.
    difference: ByteMillis,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, title: &str) -> Self {
        let body = ProblemBody {
            kind: format!("/problems/{}", code.replace('_', "-")),
            title: title.to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: None,
            instance: None,
            errors: Vec::new(),
            violations: Vec::new(),
            reasons: Vec::new(),
            nearest: None,
            expected: None,
            imbalances: Vec::new(),
        };
        Self { body: Box::new(body), retry_after_s: None }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.body.detail = Some(detail.into());
        self
    }

    const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Fields that break rules.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The request breaks a rule");
        problem.body.detail = match errors.as_slice() {
            [only] => Some(format!("{} {}", only.field, only.rule)),
            _ => None,
        };
        problem.body.errors = errors;
        problem
    }

    /// A body that is no JSON.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", "The body is not well-formed JSON").detail(detail)
    }

    /// No credential, or one that does not hold.
    pub(crate) fn unauthenticated(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", "A valid credential is needed").detail(detail)
    }

    /// It cannot be answered now.
    pub(crate) fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The service cannot answer now")
            .detail(detail)
            .retry_after(2)
    }

    /// Too much failed.
    pub(crate) fn too_many_failures(retry_after_s: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", "Too many attempts have failed")
            .detail("Too many logins or credentials have failed, from this address or for this account.")
            .retry_after(retry_after_s)
    }

    /// What only a status is known of.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        let (code, title) = match status {
            StatusCode::NOT_FOUND => ("no_such_path", "There is no such path"),
            StatusCode::METHOD_NOT_ALLOWED => ("method_not_allowed", "The path does not take this method"),
            StatusCode::PAYLOAD_TOO_LARGE => ("body_too_large", "The body is over the limit"),
            StatusCode::URI_TOO_LONG => ("uri_too_long", "The URI is over the limit"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => (
                "unsupported_media_type",
                "The body must be application/json, plain or with Content-Encoding gzip or zstd",
            ),
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => ("timeout", "The request took too long"),
            StatusCode::INTERNAL_SERVER_ERROR => ("internal", "The server failed"),
            other if other.is_client_error() => ("bad_request", "The request cannot be understood"),
            _ => ("unavailable", "The service cannot answer now"),
        };
        Self::new(status, code, title)
    }

    #[cfg(test)]
    pub(crate) fn body_for_test(&self) -> &ProblemBody {
        &self.body
    }

    fn write(mut self, response: Response, request_id: &str) -> Response {
        self.body.instance = Some(request_id.to_owned());
        let (mut parts, _) = response.into_parts();
        // strings, numbers and lists alone: it always serialises
        let text = serde_json::to_vec(&self.body).unwrap_or_default();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if parts.status == StatusCode::UNAUTHORIZED {
            parts.headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"gpuledger\""));
        }
        if matches!(parts.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // the rest of the body is not read, so no other request can follow on this connection
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = self.retry_after_s {
            parts.headers.insert(header::RETRY_AFTER, seconds.into());
        }
        Response::from_parts(parts, Body::from(text))
    }
}

/// Gives an answer its request's id and, where it is an error, its one form.
pub(crate) fn finish(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    let carried = response.extensions_mut().remove::<Problem>();
    let problem =
        carried.or_else(|| (status.is_client_error() || status.is_server_error()).then(|| Problem::of_status(status)));
    let mut response = match problem {
        Some(problem) => problem.write(response, request_id),
        None => response,
    };
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<AppError> for Problem {
    /// The one place where an error of a use case gets its status. What only operators should read is logged here, once,
    /// and not told.
    fn from(error: AppError) -> Self {
        match error {
            AppError::Unauthenticated(detail) => Self::unauthenticated(detail),
            AppError::InvitationNeeded => Self::new(
                StatusCode::UNAUTHORIZED,
                "invitation_needed",
                "Whoever the token proves one to be has no account here: an invitation is needed",
            ),
            AppError::Forbidden => {
                Self::new(StatusCode::FORBIDDEN, "forbidden", "The caller's role does not allow this")
            }
            AppError::NotFound(noun) => Self::new(StatusCode::NOT_FOUND, "not_found", "There is no such thing")
                .detail(format!("There is no such {noun}.")),
            AppError::Invalid(faults) => {
                Self::invalid(faults.into_iter().map(|f| FieldError { field: f.field, rule: f.rule }).collect())
            }
            AppError::Conflict { code, detail } => {
                Self::new(StatusCode::CONFLICT, code, "The present state does not allow this").detail(detail)
            }
            AppError::Refused(refusal) => refused(refusal),
            AppError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "key_reused",
                "The Idempotency-Key was used before with another request",
            ),
            AppError::SequenceGap { expected } => {
                let mut problem = Self::new(StatusCode::CONFLICT, "sequence_gap", "The batch is out of sequence");
                problem.body.expected = Some(expected);
                problem
            }
            AppError::OutOfBalance(imbalances) => {
                let mut problem =
                    Self::new(StatusCode::CONFLICT, "out_of_balance", "Hours of some GPUs do not balance");
                problem.body.imbalances = imbalances
                    .into_iter()
                    .map(|i| Imbalance { gpu_id: i.gpu_id, hour: i.hour, difference: i.difference })
                    .collect();
                problem
            }
            AppError::NotLeading => Self::unavailable("Nothing was stored; try again."),
            AppError::Unavailable(reason) => {
                tracing::warn!(%reason, "unavailable");
                Self::unavailable("Nothing was stored; try again.")
            }
            AppError::Internal(reason) => {
                tracing::error!(%reason, "internal error");
                Self::of_status(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::QuotaExceeded { violations } => {
            let mut problem = Problem::new(StatusCode::CONFLICT, "quota_exceeded", "A quota would be exceeded");
            problem.body.detail = Some(violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            problem.body.violations = violations;
            problem
        }
        Refusal::Unsatisfiable { reasons, nearest } => {
            let mut problem =
                Problem::new(StatusCode::CONFLICT, "unsatisfiable", "No GPU of the pool could ever hold it");
            problem.body.detail = Some(reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            problem.body.reasons = reasons;
            problem.body.nearest = nearest;
            problem
        }
    }
}

type Documented = BTreeMap<String, RefOr<response::Response>>;

fn documented(errors: &[(u16, &str)]) -> Documented {
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    errors
        .iter()
        .map(|(status, description)| {
            let response =
                ResponseBuilder::new().description(*description).content("application/problem+json", problem.clone());
            (status.to_string(), response.into())
        })
        .collect()
}

/// Error answers of an operation that reads.
#[derive(Debug)]
pub struct ReadErrors;

impl utoipa::IntoResponses for ReadErrors {
    fn responses() -> Documented {
        documented(&[
            (401, "No credential, or one that does not hold."),
            (403, "The caller's role does not allow this."),
            (404, "It does not exist, or is somebody else's."),
            (422, "A parameter breaks a rule: `errors` names each."),
            (429, "Too much has failed from this address or for this account: try again after `Retry-After`."),
            (500, "The server failed."),
            (503, "It cannot be answered now: try again after `Retry-After`."),
        ])
    }
}

/// Error answers of an operation that changes something.
#[derive(Debug)]
pub struct WriteErrors;

impl utoipa::IntoResponses for WriteErrors {
    fn responses() -> Documented {
        documented(&[
            (400, "The body is not well-formed."),
            (401, "No credential, or one that does not hold."),
            (403, "The caller's role does not allow this."),
            (404, "It does not exist, or is somebody else's."),
            (409, "The present state does not allow it: `code` says why."),
            (413, "The body is over the limit."),
            (415, "The body's type or encoding is not supported."),
            (422, "The request breaks a rule: `errors` names each field."),
            (429, "Too much has failed from this address or for this account: try again after `Retry-After`."),
            (500, "The server failed."),
            (503, "It cannot be decided now and nothing was stored: try again after `Retry-After`."),
        ])
    }
}

/// The only error of an operation that needs no credential and no input.
#[derive(Debug)]
pub struct UnavailableError;

impl utoipa::IntoResponses for UnavailableError {
    fn responses() -> Documented {
        documented(&[(503, "It cannot be answered now.")])
    }
}
