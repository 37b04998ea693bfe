//! `/v1/usage`

use crate::{
    extract::{Json, Query},
    problem::{Problem, ReadErrors},
    router::ApiState,
    span,
};
use app::{AppError, Caller, usage};
use axum::{extract::State, http::header, response::IntoResponse};
use billing::{Zone, csv::inert};
use serde::{Deserialize, Serialize};
use types::{ByteMillis, Bytes, Instant, TenantId};

/// What usage is summed by.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = UsageBy)]
pub enum By {
    Project,
    Model,
    /// Hours of the tenant's clock.
    Hour,
    /// Days of the tenant's calendar.
    Day,
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Model => "model",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

impl From<By> for usage::By {
    fn from(by: By) -> Self {
        match by {
            By::Project => Self::Project,
            By::Model => Self::Model,
            By::Hour => Self::Hour,
            By::Day => Self::Day,
        }
    }
}

/// What a tenant reserved and used over a span.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Usage {
    tenant_id: TenantId,
    /// Decides where its hours and days begin.
    zone: Zone,
    from: Instant,
    to: Instant,
    by: By,
    /// In order of their keys.
    rows: Vec<UsageRow>,
}

/// Usage under one key.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UsageRow {
    /// A project's id, a model's name, or the instant at which the hour or day begins.
    #[schema(example = "2026-11-01T00:00:00Z")]
    key: String,
    /// Memory held while confirmed, so far; in byte-milliseconds.
    reserved: ByteMillis,
    /// Memory measured, in byte-milliseconds. What could not be measured is not in it: see `unknown_ms`.
    used: ByteMillis,
    /// Memory measured above what was granted, in byte-milliseconds.
    above: ByteMillis,
    /// Milliseconds of windows, in whole or in part, that nothing measured: use then is not zero, but unknown.
    unknown_ms: i64,
    /// The highest use of one part that was seen, in bytes; absent when none was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<Bytes>,
}

impl From<usage::UsageRow> for UsageRow {
    fn from(row: usage::UsageRow) -> Self {
        Self {
            key: row.key,
            reserved: row.reserved,
            used: row.used,
            above: row.above,
            unknown_ms: row.unknown_ms,
            peak: row.peak,
        }
    }
}

/// Whose usage, when, and summed by what.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// Whose; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    #[param(inline)]
    by: By,
    #[param(example = "2026-11-01T00:00:00Z")]
    from: Instant,
    /// Not included; at most 400 days after `from`, by the hour 31.
    #[param(example = "2026-12-01T00:00:00Z")]
    to: Instant,
}

async fn answer(state: &ApiState, caller: &Caller, query: &UsageQuery) -> Result<Usage, Problem> {
    let span = span::between(query.from, query.to)?;
    let found = usage::usage(&state.app, caller, query.tenant_id, span, query.by.into()).await?;
    Ok(Usage {
        tenant_id: found.tenant_id,
        zone: found.zone,
        from: found.span.start(),
        to: found.span.end(),
        by: query.by,
        rows: found.rows.into_iter().map(UsageRow::from).collect(),
    })
}

/// Show a tenant's usage
#[utoipa::path(
    get, path = "/v1/usage", tag = "usage", security(("bearer" = [])),
    params(UsageQuery),
    responses((status = 200, body = Usage), ReadErrors)
)]
pub(crate) async fn get_usage(
    State(state): State<ApiState>,
    caller: Caller,
    Query(query): Query<UsageQuery>,
) -> Result<Json<Usage>, Problem> {
    Ok(Json(answer(&state, &caller, &query).await?))
}

/// Show a tenant's usage as CSV
#[utoipa::path(
    get, path = "/v1/usage.csv", tag = "usage", security(("bearer" = [])),
    params(UsageQuery),
    responses((status = 200, body = String, content_type = "text/csv"), ReadErrors)
)]
pub(crate) async fn get_usage_csv(
    State(state): State<ApiState>,
    caller: Caller,
    Query(query): Query<UsageQuery>,
) -> Result<impl IntoResponse, Problem> {
    let span = span::between(query.from, query.to)?;
    let found = usage::usage(&state.app, &caller, query.tenant_id, span, query.by.into()).await?;
    let text = usage_csv(query.by, &found.rows).map_err(|e| AppError::Internal(format!("usage as CSV: {e}")))?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"usage.csv\""),
    ];
    Ok((headers, text))
}

/// Usage as CSV: a header and one row for each key. What is unknown is an empty cell.
///
/// # Errors
/// None that is known: it is written to memory.
pub fn usage_csv(by: By, rows: &[usage::UsageRow]) -> Result<Vec<u8>, csv::Error> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record([
        by.name(),
        "reserved_byte_milliseconds",
        "used_byte_milliseconds",
        "above_byte_milliseconds",
        "unknown_milliseconds",
        "peak_bytes",
    ])?;
    for row in rows {
        csv.write_record([
            &*inert(&row.key),
            &row.reserved.to_string(),
            &row.used.to_string(),
            &row.above.to_string(),
            &row.unknown_ms.to_string(),
            &row.peak.map(|peak| peak.0.to_string()).unwrap_or_default(),
        ])?;
    }
    csv.into_inner().map_err(|e| e.into_error().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_no_formula_and_what_is_unknown_is_empty() {
        let row = usage::UsageRow {
            key: "=1+1".to_owned(),
            reserved: ByteMillis(i128::from(u64::MAX) * 10),
            used: ByteMillis::ZERO,
            above: ByteMillis::ZERO,
            unknown_ms: 1000,
            peak: None,
        };
        let text = String::from_utf8(usage_csv(By::Model, &[row]).unwrap()).unwrap();
        let row = text.lines().nth(1).unwrap();
        assert_eq!(row, "'=1+1,184467440737095516150,0,0,1000,");
    }
}
