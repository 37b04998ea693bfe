//! `/v1/invoices`

use crate::{
    access,
    extract::{Json, Path, Query},
    interval::Interval,
    page::{Cursor, Page, Paging, TenantPaging},
    problem::{Problem, ProblemBody, ReadErrors, WriteErrors},
    reading::AcceptedReading,
    router::ApiState,
};
use app::{
    AppError, Caller,
    invoice::{self, ChargeFacts, ChargeRow, InvoiceRow},
};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use billing::{Amount, ChargeKind, Document, SourceKind, csv::invoice_csv};
use serde::{Deserialize, Serialize};
use types::{
    AllocationId, BillingUnit, ByteMillis, ChargeId, Currency, GpuModel, Instant, InvoiceId, PlanVersionId, Price,
    ProjectId, Remark, Span, TenantId,
};
use uuid::Uuid;

/// An issued invoice, without its lines.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct InvoiceSummary {
    tenant_id: TenantId,
    invoice_id: InvoiceId,
    /// As printed: series and place in it, without gaps.
    #[schema(example = "GL-000001")]
    number: String,
    /// The month it bills.
    #[schema(example = "2026-11")]
    period: String,
    /// That month in the tenant's zone.
    span: Span,
    currency: Currency,
    total: Amount,
    /// The rating engine that made it.
    #[schema(example = "v1")]
    engine: String,
    /// SHA-256 over its document, charges and plan versions, in hexadecimal.
    digest: String,
    /// The hash of the invoice before it in the series.
    previous_hash: String,
    /// SHA-256 over the hash before, its place in the series and its digest, in hexadecimal.
    hash: String,
    issued_at: Instant,
    /// Who: `user:` or `key:` and an id, or `system`.
    issued_by: String,
    /// Why it was issued although something stood against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiver: Option<String>,
}

impl From<InvoiceRow> for InvoiceSummary {
    fn from(row: InvoiceRow) -> Self {
        Self {
            tenant_id: row.tenant_id,
            invoice_id: row.invoice_id,
            number: row.number,
            period: row.period,
            span: row.span,
            currency: row.currency,
            total: Amount::new(row.currency, row.total_minor),
            engine: row.engine,
            digest: row.digest,
            previous_hash: row.previous_hash,
            hash: row.hash,
            issued_at: row.issued_at,
            issued_by: row.issued_by,
            waiver: row.waiver,
        }
    }
}

/// An issued invoice with its document.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Invoice {
    #[serde(flatten)]
    summary: InvoiceSummary,
    document: Document,
}

impl From<(InvoiceRow, Document)> for Invoice {
    fn from((row, document): (InvoiceRow, Document)) -> Self {
        Self { summary: row.into(), document }
    }
}

/// What an invoice would say now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct InvoicePreview {
    document: Document,
    /// Whether the period is over and every meter in it final.
    complete: bool,
}

/// Which invoice is issued.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInvoice {
    tenant_id: TenantId,
    /// The month to bill; it must be over in the tenant's zone.
    #[schema(pattern = r"^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$", example = "2026-11")]
    period: String,
    /// The reason for issuing although hours do not balance or rows are set aside.
    waiver: Option<Remark>,
}

/// One rated fact as it stands on an invoice. Its amount is quantity × price ÷ unit, unrounded: only lines are rounded.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct InvoicedCharge {
    charge_id: ChargeId,
    line_number: u32,
    /// The interval's or the reading's id.
    source_id: Uuid,
    source_kind: SourceKind,
    kind: ChargeKind,
    /// From 0 within its source, in the order of time.
    segment: u32,
    span: Span,
    allocation_id: AllocationId,
    project_id: ProjectId,
    model: GpuModel,
    /// The label of the period, in the tenant's zone, that the span's start lies in.
    #[schema(example = "2026-11")]
    period: String,
    plan_version_id: PlanVersionId,
    /// In byte-milliseconds; never negative.
    quantity: ByteMillis,
    /// Of one unit.
    price: Price,
    unit: BillingUnit,
}

impl From<ChargeRow> for InvoicedCharge {
    fn from(row: ChargeRow) -> Self {
        let charge = row.charge;
        Self {
            charge_id: row.charge_id,
            line_number: row.line_number,
            source_id: charge.source_id,
            source_kind: charge.source_kind,
            kind: charge.kind,
            segment: charge.segment,
            span: charge.span,
            allocation_id: charge.allocation_id,
            project_id: charge.project_id,
            model: charge.model,
            period: charge.period,
            plan_version_id: charge.plan_version_id,
            quantity: charge.quantity,
            price: charge.price,
            unit: charge.unit,
        }
    }
}

/// What a charge was made from.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ChargeFacts)]
pub struct Facts {
    charge: InvoicedCharge,
    /// Of a reserved charge.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<Interval>,
    /// What was measured meanwhile, the first 2,000; of a charge for use above the grant, the one reading that it rates.
    readings: Vec<AcceptedReading>,
}

impl From<ChargeFacts> for Facts {
    fn from(facts: ChargeFacts) -> Self {
        Self {
            charge: facts.charge.into(),
            interval: facts.interval.map(Interval::from),
            readings: facts.readings.into_iter().map(AcceptedReading::from).collect(),
        }
    }
}

/// An issued invoice made again from the recorded facts.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct InvoiceVerification {
    invoice_id: InvoiceId,
    number: String,
    /// Whether document, charges, digest and place in the series are the same.
    identical: bool,
    /// Where they differ, in words.
    differences: Vec<String>,
    /// How many charges were made again.
    charges: usize,
    /// From how many intervals and readings.
    facts: usize,
}

/// Which invoice.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct InvoicePath {
    invoice_id: InvoiceId,
}

/// Which line.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct LinePath {
    invoice_id: InvoiceId,
    /// Its number, from 1.
    #[param(minimum = 0, maximum = 4_294_967_295_u64)]
    line: u32,
}

/// Which charge.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ChargePath {
    invoice_id: InvoiceId,
    charge_id: ChargeId,
}

/// Whose, and which month.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PreviewQuery {
    /// Whose; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    #[param(pattern = r"^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$", example = "2026-11")]
    period: String,
}

/// Preview an invoice
///
/// Every fact of the month that is on no invoice, late ones of earlier months, and open meters so far.
#[utoipa::path(
    get, path = "/v1/invoices/preview", tag = "invoices", security(("bearer" = [])),
    params(PreviewQuery),
    responses(
        (status = 200, body = InvoicePreview),
        (
            status = 409, description = "No plan prices a part of the use: code `no_plan`.", body = ProblemBody,
            content_type = "application/problem+json"
        ),
        ReadErrors
    )
)]
pub(crate) async fn preview_invoice(
    State(state): State<ApiState>,
    caller: Caller,
    Query(query): Query<PreviewQuery>,
) -> Result<Json<InvoicePreview>, Problem> {
    let preview = invoice::preview(&state.app, &caller, query.tenant_id, &query.period).await?;
    Ok(Json(InvoicePreview { document: preview.document, complete: preview.complete }))
}

/// Issue an invoice
///
/// Freezes it with the next number of its series. A repeat gets the one that the period has. 409 with code
/// `out_of_balance`, `rows_set_aside`, `not_final`, `earlier_period_open` or `no_plan` says what stands against it.
#[utoipa::path(
    post, path = "/v1/invoices", tag = "invoices", security(("bearer" = [])),
    responses(
        (status = 201, description = "Issued.", body = Invoice),
        (status = 200, description = "It was issued before.", body = Invoice),
        WriteErrors
    )
)]
pub(crate) async fn issue_invoice(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewInvoice>,
) -> Result<(StatusCode, Json<Invoice>), Problem> {
    let (row, document, made) = invoice::issue(&state.app, &caller, new.tenant_id, &new.period, new.waiver).await?;
    access::name_made("invoice_id", row.invoice_id);
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json((row, document).into())))
}

/// List issued invoices, the newest first
#[utoipa::path(
    get, path = "/v1/invoices", tag = "invoices", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<InvoiceSummary>), ReadErrors)
)]
pub(crate) async fn list_invoices(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<InvoiceSummary>>, Problem> {
    let before = paging.cursor.map(Cursor::id);
    let rows = invoice::list(&state.app, &caller, paging.tenant_id, before, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.invoice_id.uuid())))
}

/// Show an invoice
#[utoipa::path(
    get, path = "/v1/invoices/{invoice_id}", tag = "invoices", security(("bearer" = [])),
    params(InvoicePath),
    responses((status = 200, body = Invoice), ReadErrors)
)]
pub(crate) async fn get_invoice(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<InvoicePath>,
) -> Result<Json<Invoice>, Problem> {
    Ok(Json(invoice::get(&state.app, &caller, path.invoice_id).await?.into()))
}

/// List the charges of a line
///
/// Their quantities add up to the line's.
#[utoipa::path(
    get, path = "/v1/invoices/{invoice_id}/lines/{line}/charges", tag = "invoices", security(("bearer" = [])),
    params(LinePath, Paging),
    responses((status = 200, body = Page<InvoicedCharge>), ReadErrors)
)]
pub(crate) async fn list_charges(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<LinePath>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<InvoicedCharge>>, Problem> {
    let mut rows = invoice::charges(&state.app, &caller, path.invoice_id, path.line).await?;
    if let Some(last) = paging.cursor.map(Cursor::id::<ChargeId>) {
        let shown = rows.iter().position(|row| row.charge_id == last).map_or(rows.len(), |place| place + 1);
        rows.drain(..shown);
    }
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.charge_id.uuid())))
}

/// Show the facts behind a charge
#[utoipa::path(
    get, path = "/v1/invoices/{invoice_id}/charges/{charge_id}/facts", tag = "invoices", security(("bearer" = [])),
    params(ChargePath),
    responses((status = 200, body = Facts), ReadErrors)
)]
pub(crate) async fn get_facts(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<ChargePath>,
) -> Result<Json<Facts>, Problem> {
    let facts = invoice::facts(&state.app, &caller, path.invoice_id, path.charge_id.uuid()).await?;
    Ok(Json(facts.into()))
}

/// Download an invoice as CSV
#[utoipa::path(
    get, path = "/v1/invoices/{invoice_id}/csv", tag = "invoices", security(("bearer" = [])),
    params(InvoicePath),
    responses((status = 200, body = String, content_type = "text/csv"), ReadErrors)
)]
pub(crate) async fn get_invoice_csv(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<InvoicePath>,
) -> Result<impl IntoResponse, Problem> {
    let (row, document) = invoice::get(&state.app, &caller, path.invoice_id).await?;
    let defect = |e: &dyn std::error::Error| AppError::Internal(format!("{} as CSV: {e}", row.number));
    let number = row.number.parse().map_err(|e| defect(&e))?;
    let text = invoice_csv(Some(&number), &document).map_err(|e| defect(&e))?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        // a number is letters, digits and a hyphen
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{number}.csv\"")),
    ];
    Ok((headers, text))
}

/// Verify an invoice
///
/// Makes it again from the recorded facts, with the engine that made it, and compares.
#[utoipa::path(
    get, path = "/v1/invoices/{invoice_id}/verification", tag = "invoices", security(("bearer" = [])),
    params(InvoicePath),
    responses((status = 200, body = InvoiceVerification), ReadErrors)
)]
pub(crate) async fn verify_invoice(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<InvoicePath>,
) -> Result<Json<InvoiceVerification>, Problem> {
    let found = invoice::verify(&state.app, &caller, path.invoice_id).await?;
    Ok(Json(InvoiceVerification {
        invoice_id: found.invoice.invoice_id,
        number: found.invoice.number,
        identical: found.differences.is_empty(),
        differences: found.differences,
        charges: found.charges,
        facts: found.facts,
    }))
}
