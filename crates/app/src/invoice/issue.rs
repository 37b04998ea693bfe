//! The issue of an invoice: everything is checked, charged, numbered, sealed and frozen in one transaction.

use super::{MAY_BILL, header, parse, rate, schedule, uncharged};
use crate::{
    App, Caller,
    audit::{self, Change},
    balance,
    error::AppError,
    scheduler::{Answer, Command},
};
use billing::{Document, Header, InvoiceNumber, PlanVersion, invoice, rating};
use serde_json::json;
use store::{
    Scope, Tx,
    charge::{self, ChargeRow},
    invoice::InvoiceRow,
    part,
    period::{self, PeriodRow},
};
use types::{ChargeId, InvoiceId, Remark, TenantId};

/// The series that invoices are numbered in.
pub const SERIES: &str = "GL";

/// Issues a tenant's invoice for a period. What arrived late for earlier, issued periods is charged here as corrections.
/// `waiver` is the reason for issuing although hours do not balance or rows are set aside. A repeat gives the invoice that
/// the period has (`false`).
///
/// # Errors
/// [`AppError::Invalid`] while the period is not over, [`AppError::OutOfBalance`], [`AppError::Conflict`]: `not_final`,
/// `rows_set_aside`, `earlier_period_open`, `no_plan`.
pub async fn issue(
    app: &App,
    caller: &Caller,
    tenant_id: TenantId,
    label: &str,
    waiver: Option<Remark>,
) -> Result<(InvoiceRow, Document, bool), AppError> {
    caller.require(&MAY_BILL)?;
    let mut tx = app.store.begin("invoice.tenant", Scope::Tenant(tenant_id)).await?;
    let tenant = store::tenant::get(&mut tx, tenant_id).await?.ok_or(AppError::NotFound("tenant"))?;
    let header = header(&tenant, label)?;
    let span = header.period.span;
    if span.end() > app.clock.now() {
        return Err(AppError::invalid("period", format!("{label} is not over: it ends at {}", span.end())));
    }
    let period = PeriodRow { tenant_id, label: label.to_owned(), span };
    // a repeat gets its invoice whatever stands against issuing one now
    if let Some((row, document)) = issued(&mut tx, &period).await? {
        return Ok((row, document, false));
    }
    drop(tx);
    for pool in app.pools().await? {
        match app.ask(pool, Command::Cut(tenant_id, span.end())).await {
            Ok(Answer::Cut(waiting @ 1..)) => return Err(not_final(waiting)),
            // what is not final because nobody leads its pool now is found below
            Ok(_) | Err(AppError::Unavailable(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let obstacles = obstacles(app, tenant_id, &header).await?;
    let waived = match (obstacles, waiver) {
        (None, _) => None,
        (Some(_), Some(reason)) => Some(String::from(reason)),
        (Some(error), None) => return Err(error),
    };

    let mut tx = app.store.begin("invoice.issue", Scope::Tenant(tenant_id)).await?;
    if let Some((row, document)) = issued(&mut tx, &period).await? {
        return Ok((row, document, false));
    }
    let open = part::open_of_tenant(&mut tx, Some(tenant_id), span.end()).await?;
    let unfinished =
        open.iter().filter(|p| p.unconfirmed_since.is_none() && p.metered_to.is_some_and(|t| t < span.end()));
    if let count @ 1.. = unfinished.count() {
        return Err(not_final(count));
    }
    let sources = uncharged(&mut tx, tenant_id, span.end()).await?;
    let plans = schedule(&mut tx, &tenant).await?;
    let charges = rate(&sources, &plans, &tenant)?;
    refuse_open_earlier(&mut tx, tenant_id, label, &charges).await?;
    let document =
        invoice::assemble(rating::ENGINE, header, &charges).map_err(|e| AppError::Internal(e.to_string()))?;
    let plans: Vec<PlanVersion> = plans.plans().cloned().collect();
    let row = freeze(app, caller, &mut tx, &document, &charges, &plans, waived).await?;
    period::set_issued(&mut tx, &period, row.invoice_id).await?;
    tx.commit().await?;
    Ok((row, document, true))
}

/// Locks the period; its invoice, where it has one.
async fn issued(tx: &mut Tx, period: &PeriodRow) -> Result<Option<(InvoiceRow, Document)>, AppError> {
    let Some(id) = period::lock(tx, period).await? else { return Ok(None) };
    let row = store::invoice::get(tx, id).await?.ok_or(AppError::NotFound("invoice"))?;
    let document = parse(&row)?;
    Ok(Some((row, document)))
}

fn not_final(meters: usize) -> AppError {
    AppError::conflict(
        "not_final",
        format!("{meters} meters that run on past the end of the period are not final yet: try again shortly"),
    )
}

/// What stands against the issue: hours of the tenant's GPUs that do not balance, and rows that wait for a ruling.
async fn obstacles(app: &App, tenant: TenantId, header: &Header) -> Result<Option<AppError>, AppError> {
    let span = header.period.span;
    let mut tx = app.store.begin_snapshot("invoice.obstacles", Scope::Operator).await?;
    let gpus = part::gpus_of_tenant(&mut tx, tenant, span).await?;
    let wrong = balance::imbalances_of(app, &mut tx, &gpus, span).await?;
    if !wrong.is_empty() {
        return Ok(Some(AppError::OutOfBalance(wrong)));
    }
    let aside = store::set_aside::open_of_tenant(&mut tx, tenant, span).await?;
    Ok((aside > 0).then(|| {
        AppError::conflict(
            "rows_set_aside",
            format!("{aside} readings of this period wait for a ruling: accept or reject them, or give a waiver"),
        )
    }))
}

/// Use of an earlier period that has no invoice belongs on that period's own invoice, not on this one as a correction.
async fn refuse_open_earlier(
    tx: &mut Tx,
    tenant: TenantId,
    label: &str,
    charges: &[billing::Charge],
) -> Result<(), AppError> {
    let mut earlier: Vec<&str> = charges.iter().map(|c| c.period.as_str()).filter(|p| *p != label).collect();
    earlier.sort_unstable();
    earlier.dedup();
    if earlier.is_empty() {
        return Ok(());
    }
    let issued = period::issued(tx, tenant).await?;
    match earlier.into_iter().find(|period| !issued.iter().any(|i| i == period)) {
        None => Ok(()),
        Some(open) => Err(AppError::conflict(
            "earlier_period_open",
            format!("there is use in {open}, which has no invoice yet: issue {open} first"),
        )),
    }
}

/// Gives the document its number and place in the chain, and writes everything.
async fn freeze(
    app: &App,
    caller: &Caller,
    tx: &mut Tx,
    document: &Document,
    charges: &[billing::Charge],
    plans: &[PlanVersion],
    waiver: Option<String>,
) -> Result<InvoiceRow, AppError> {
    let defect = |e: &dyn std::fmt::Display| AppError::Internal(format!("issuing: {e}"));
    let digest = invoice::digest(document, charges, plans);
    let invoice_id = app.id(InvoiceId::new);
    let rows: Vec<ChargeRow> = charges
        .iter()
        .map(|charge| {
            let line_number = document.line_of(charge).ok_or_else(|| defect(&"a charge stands on no line"))?;
            Ok(ChargeRow { charge_id: app.id(ChargeId::new), line_number, charge: charge.clone() })
        })
        .collect::<Result<_, AppError>>()?;
    charge::insert(tx, document.tenant_id, invoice_id, &rows).await?;
    // all invoices wait for the series, so it is locked last
    let (last, head) = store::invoice::lock_series(tx, SERIES).await?;
    let serial = last + 1;
    let place = u64::try_from(serial).map_err(|e| defect(&e))?;
    let number = InvoiceNumber::new(SERIES, place).map_err(|e| defect(&e))?;
    let previous_hash = if last == 0 { invoice::CHAIN_START.to_owned() } else { head };
    let row = InvoiceRow {
        tenant_id: document.tenant_id,
        invoice_id,
        number: number.to_string(),
        series: SERIES.to_owned(),
        serial,
        period: document.period.label.clone(),
        span: document.period.span,
        currency: document.currency,
        total_minor: document.total.minor(),
        engine: document.engine.clone(),
        document: serde_json::to_string(document).map_err(|e| defect(&e))?,
        hash: invoice::chain(&previous_hash, place, &digest),
        previous_hash,
        digest,
        issued_at: app.clock.now(),
        issued_by: caller.actor().to_string(),
        waiver,
    };
    store::invoice::insert(tx, &row).await?;
    let detail = json!({
        "number": row.number,
        "period": row.period,
        "total": document.total,
        "currency": row.currency,
        "digest": row.digest,
        "waiver": row.waiver,
    });
    let change =
        Change { tenant: Some(row.tenant_id), action: "invoice.issue", object: row.invoice_id.to_string(), detail };
    audit::record(app, tx, caller, change).await?;
    Ok(row)
}
