//! Invoices: previewed, issued, shown down to the facts, and verified.

mod issue;
mod verify;

use crate::{App, Caller, error::AppError};
use billing::{Document, Header, Schedule, Source, SourceKind, invoice, rating};
use store::{Scope, Tx, charge, gpu, interval, part, reading, tenant::TenantRow};
use types::{GpuId, GpuModel, Instant, IntervalId, InvoiceId, ReadingId, Role, Span, TenantId};
use uuid::Uuid;

pub use issue::{SERIES, issue};
pub use store::{charge::ChargeRow, interval::IntervalRow, invoice::InvoiceRow, reading::ReadingRow};
pub use verify::{Verification, verify};

/// Who may preview and issue for every tenant.
const MAY_BILL: [Role; 2] = [Role::Operator, Role::BillingClerk];

/// What an invoice would say now.
#[derive(Debug, Clone)]
pub struct Preview {
    pub document: Document,
    /// Whether the period is over and every meter in it final: then issuing gives the same document, unless late facts
    /// arrive before.
    pub complete: bool,
}

/// What a period's invoice would say now: every uncharged fact, and open meters so far.
///
/// # Errors
/// [`AppError::Invalid`] for a malformed period, [`AppError::NotFound`] for another tenant, [`AppError::Conflict`] where no plan
/// prices a part of the use.
pub async fn preview(app: &App, caller: &Caller, tenant: Option<TenantId>, label: &str) -> Result<Preview, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(tenant)?;
    let now = app.clock.now();
    let mut tx = app.store.begin_snapshot("invoice.preview", Scope::Tenant(tenant_id)).await?;
    let tenant = store::tenant::get(&mut tx, tenant_id).await?.ok_or(AppError::NotFound("tenant"))?;
    let header = header(&tenant, label)?;
    let end = header.period.span.end();
    let mut sources = uncharged(&mut tx, tenant_id, end).await?;
    let open = open_meters(&mut tx, &tenant, end.min(now)).await?;
    let complete = end <= now && open.is_empty();
    sources.extend(open);
    let schedule = schedule(&mut tx, &tenant).await?;
    let charges = rate(&sources, &schedule, &tenant)?;
    let document =
        invoice::assemble(rating::ENGINE, header, &charges).map_err(|e| AppError::Internal(e.to_string()))?;
    Ok(Preview { document, complete })
}

fn header(tenant: &TenantRow, label: &str) -> Result<Header, AppError> {
    let period = billing::period::month(label, &tenant.zone).map_err(|e| AppError::invalid("period", e.to_string()))?;
    Ok(Header {
        tenant_id: tenant.tenant_id,
        tenant_name: tenant.name.clone(),
        currency: tenant.currency,
        zone: tenant.zone.clone(),
        period,
    })
}

async fn schedule(tx: &mut Tx, tenant: &TenantRow) -> Result<Schedule, AppError> {
    let in_force = store::plan::schedule(tx, tenant.tenant_id).await?;
    Schedule::new(in_force, tenant.currency).map_err(|e| AppError::Internal(format!("the plans in force: {e}")))
}

/// A part of the use that no plan prices is for the operator to mend, by a subscription that covers it.
fn rate(sources: &[Source], schedule: &Schedule, tenant: &TenantRow) -> Result<Vec<billing::Charge>, AppError> {
    rating::rate(rating::ENGINE, sources, schedule, &tenant.zone).map_err(|error| match error {
        hole @ billing::RatingError::NoPlan { .. } => {
            AppError::conflict("no_plan", format!("use cannot be priced: {hole}"))
        }
        other => AppError::Internal(format!("rating: {other}")),
    })
}

/// Every fact that began before an instant and is on no invoice.
async fn uncharged(tx: &mut Tx, tenant: TenantId, before: Instant) -> Result<Vec<Source>, AppError> {
    let mut sources: Vec<Source> =
        interval::uncharged(tx, tenant, before).await?.into_iter().map(interval_source).collect();
    let readings = reading::uncharged_above(tx, tenant, before).await?;
    sources.extend(reading_sources(tx, readings).await?);
    Ok(sources)
}

fn interval_source(row: IntervalRow) -> Source {
    Source {
        id: row.interval_id.uuid(),
        kind: SourceKind::Interval,
        allocation_id: row.allocation_id,
        part_id: row.part_id,
        project_id: row.project_id,
        gpu_id: row.gpu_id,
        model: row.model,
        bytes: row.bytes,
        span: row.span,
        above: None,
    }
}

async fn reading_sources(tx: &mut Tx, readings: Vec<ReadingRow>) -> Result<Vec<Source>, AppError> {
    if readings.is_empty() {
        return Ok(Vec::new());
    }
    let mut gpus: Vec<GpuId> = readings.iter().map(|r| r.gpu_id).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let models: Vec<(GpuId, GpuModel)> =
        gpu::by_ids(tx, &gpus).await?.into_iter().map(|g| (g.gpu_id, g.model)).collect();
    readings
        .into_iter()
        .map(|row| {
            let known = models.binary_search_by_key(&row.gpu_id, |(id, _)| *id);
            let model =
                known.map(|i| models[i].1.clone()).map_err(|_| AppError::Internal("a reading's GPU is gone".into()))?;
            Ok(Source {
                id: row.reading_id.uuid(),
                kind: SourceKind::Reading,
                allocation_id: row.allocation_id,
                part_id: row.part_id,
                project_id: row.project_id,
                gpu_id: row.gpu_id,
                model,
                bytes: row.granted,
                span: row.span,
                above: row.above,
            })
        })
        .collect()
}

/// Open meters as if they ended at an instant, for a preview: they stand in no ledger yet.
async fn open_meters(tx: &mut Tx, tenant: &TenantRow, until: Instant) -> Result<Vec<Source>, AppError> {
    let parts = part::open_of_tenant(tx, Some(tenant.tenant_id), until).await?;
    Ok(parts
        .into_iter()
        .filter_map(|p| {
            let span = Span::new(p.metered_to?, p.unconfirmed_since.unwrap_or(until).min(until))?;
            (!span.is_empty()).then_some((p, span))
        })
        .map(|(p, span)| Source {
            id: p.part_id.uuid(),
            kind: SourceKind::Interval,
            allocation_id: p.allocation_id,
            part_id: p.part_id,
            project_id: p.project_id,
            gpu_id: p.gpu_id,
            model: p.model,
            bytes: p.bytes,
            span,
            above: None,
        })
        .collect())
}

/// One issued invoice with its document.
///
/// # Errors
/// [`AppError::NotFound`], also for somebody else's.
pub async fn get(app: &App, caller: &Caller, id: InvoiceId) -> Result<(InvoiceRow, Document), AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("invoice.get", caller.scope()?).await?;
    let row = store::invoice::get(&mut tx, id).await?.ok_or(AppError::NotFound("invoice"))?;
    let document = parse(&row)?;
    Ok((row, document))
}

/// The invoice of a printed number.
///
/// # Errors
/// As [`get`].
pub async fn by_number(app: &App, caller: &Caller, number: &str) -> Result<(InvoiceRow, Document), AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("invoice.by_number", caller.scope()?).await?;
    let row = store::invoice::by_number(&mut tx, number).await?.ok_or(AppError::NotFound("invoice"))?;
    let document = parse(&row)?;
    Ok((row, document))
}

fn parse(row: &InvoiceRow) -> Result<Document, AppError> {
    serde_json::from_str(&row.document)
        .map_err(|e| AppError::Internal(format!("the document of {} does not parse: {e}", row.number)))
}

/// A page of issued invoices, newest first.
///
/// # Errors
/// [`AppError::NotFound`] for another tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    before: Option<InvoiceId>,
    limit: i64,
) -> Result<Vec<InvoiceRow>, AppError> {
    caller.require(&Role::ALL)?;
    let tenant = caller.tenant_or_platform(tenant)?;
    let mut tx = app.store.begin("invoice.list", crate::caller::scope_of(tenant)).await?;
    Ok(store::invoice::page(&mut tx, tenant, before, limit).await?)
}

/// The charges of a line.
///
/// # Errors
/// [`AppError::NotFound`] for an unknown invoice or line.
pub async fn charges(app: &App, caller: &Caller, id: InvoiceId, line: u32) -> Result<Vec<ChargeRow>, AppError> {
    let (row, document) = get(app, caller, id).await?;
    if !document.lines.iter().any(|l| l.number == line) {
        return Err(AppError::NotFound("invoice line"));
    }
    let mut tx = app.store.begin("invoice.charges", Scope::Tenant(row.tenant_id)).await?;
    Ok(charge::of_invoice(&mut tx, row.tenant_id, id, Some(line)).await?)
}

/// What a charge was made from.
#[derive(Debug, Clone)]
pub struct ChargeFacts {
    pub charge: ChargeRow,
    /// The interval, for a reserved charge.
    pub interval: Option<IntervalRow>,
    /// What was measured meanwhile; for an above charge the one reading.
    pub readings: Vec<ReadingRow>,
}

/// The most readings that are shown under one charge.
pub const MAX_READINGS_SHOWN: i64 = 2000;

/// The facts behind one charge of an invoice: its interval, and the readings of that time.
///
/// # Errors
/// [`AppError::NotFound`].
pub async fn facts(app: &App, caller: &Caller, id: InvoiceId, charge_id: Uuid) -> Result<ChargeFacts, AppError> {
    let (row, _) = get(app, caller, id).await?;
    let tenant = row.tenant_id;
    let mut tx = app.store.begin("invoice.facts", Scope::Tenant(tenant)).await?;
    let charges = charge::of_invoice(&mut tx, tenant, id, None).await?;
    let charge = charges.into_iter().find(|c| c.charge_id.uuid() == charge_id).ok_or(AppError::NotFound("charge"))?;
    let span = charge.charge.span;
    match charge.charge.source_kind {
        SourceKind::Interval => {
            let found = interval::by_ids(&mut tx, tenant, &[IntervalId(charge.charge.source_id)]).await?.pop();
            let readings = match &found {
                Some(i) => reading::of_part(&mut tx, tenant, i.part_id, span, MAX_READINGS_SHOWN).await?,
                None => Vec::new(),
            };
            Ok(ChargeFacts { charge, interval: found, readings })
        }
        SourceKind::Reading => {
            let ids = [ReadingId(charge.charge.source_id)];
            let readings = reading::by_ids(&mut tx, tenant, &ids, span).await?;
            Ok(ChargeFacts { charge, interval: None, readings })
        }
    }
}
