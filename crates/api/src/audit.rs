//! `/v1/audit`

use crate::{
    extract::{Json, Query},
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors},
    router::ApiState,
};
use app::{
    Caller,
    audit::{self, AuditRow},
};
use axum::extract::State;
use serde::Serialize;
use types::{AuditId, Instant, TenantId};

/// One change by a person or key.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AuditEntry {
    audit_id: AuditId,
    /// Absent for what concerns the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    at: Instant,
    /// Who: `user:`, `key:` or `node:` and an id, or `system`.
    actor: String,
    /// Noun and verb.
    #[schema(example = "tenant.create")]
    action: String,
    /// The id of what was changed.
    object: String,
    /// What it is now.
    #[schema(value_type = Object)]
    detail: serde_json::Value,
    /// The request that changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    /// Its number in its tenant's log, or in the platform's: from 1, without gaps. Absent for entries that are older than
    /// the chains.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<i64>,
    /// SHA-256 over the entry, its number and the hash of the entry before it. Whoever keeps one can tell later whether
    /// anything up to it was changed. Absent with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

impl From<AuditRow> for AuditEntry {
    fn from(row: AuditRow) -> Self {
        let (sequence, hash) = row.place.map(|place| (place.sequence, place.hash)).unzip();
        Self {
            audit_id: row.audit_id,
            tenant_id: row.tenant_id,
            at: row.at,
            actor: row.actor,
            action: row.action,
            object: row.object,
            detail: row.detail,
            request_id: row.request_id,
            sequence,
            hash,
        }
    }
}

/// List changes, the newest first
///
/// For the platform's callers without `tenant_id`: everybody's.
#[utoipa::path(
    get, path = "/v1/audit", tag = "audit", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<AuditEntry>), ReadErrors)
)]
pub(crate) async fn list_audit(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<AuditEntry>>, Problem> {
    let before = paging.cursor.map(Cursor::id);
    let rows = audit::list(&state.app, &caller, paging.tenant_id, before, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.audit_id.uuid())))
}
