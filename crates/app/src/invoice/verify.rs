//! Verification: an issued invoice is made again from the recorded facts.

use super::{InvoiceRow, interval_source, parse, reading_sources, schedule};
use crate::{App, Caller, error::AppError};
use billing::{Facts, SourceKind, Stored, invoice, verify as rules};
use store::{Scope, Tx, charge, interval, reading};
use types::{IntervalId, InvoiceId, ReadingId, Role, Span, TenantId};

/// What came of it.
#[derive(Debug, Clone)]
pub struct Verification {
    pub invoice: InvoiceRow,
    /// How many charges and facts it was made again from.
    pub charges: usize,
    pub facts: usize,
    /// Where stored and recomputed differ, in words; empty when identical.
    pub differences: Vec<String>,
}

/// Recomputes an issued invoice from the charges linked to it, their facts and their plan versions, with the engine that
/// made it, and compares document, charges, digest and place in the chain.
///
/// # Errors
/// [`AppError::NotFound`], also for somebody else's.
pub async fn verify(app: &App, caller: &Caller, id: InvoiceId) -> Result<Verification, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin_snapshot("invoice.verify", caller.scope()?).await?;
    let row = store::invoice::get(&mut tx, id).await?.ok_or(AppError::NotFound("invoice"))?;
    drop(tx);
    let tenant_id = row.tenant_id;
    let mut tx = app.store.begin_snapshot("invoice.verify", Scope::Tenant(tenant_id)).await?;
    let tenant = store::tenant::get(&mut tx, tenant_id).await?.ok_or(AppError::NotFound("tenant"))?;
    let rows = charge::of_invoice(&mut tx, tenant_id, id, None).await?;
    let document = parse(&row)?;
    let mut differences = header_differences(&row, &document);
    let misplaced: Vec<String> = rows
        .iter()
        .filter(|row| document.line_of(&row.charge).is_some_and(|line| line != row.line_number))
        .map(|row| format!("charge {}: stands on line {}, where it does not belong", row.charge_id, row.line_number))
        .collect();
    let charges: Vec<billing::Charge> = rows.into_iter().map(|row| row.charge).collect();
    let sources = sources(&mut tx, tenant_id, &charges).await?;
    let schedule = schedule(&mut tx, &tenant).await?;
    let (charge_count, facts) = (charges.len(), sources.len());
    let stored = Stored { document, charges, digest: row.digest.clone() };
    differences.extend(rules::verify(&stored, &Facts { sources, schedule }).iter().map(ToString::to_string));
    differences.extend(misplaced);
    drop(tx);
    differences.extend(chain_differences(app, &row).await?);
    Ok(Verification { invoice: row, charges: charge_count, facts, differences })
}

/// The facts that the charges name.
async fn sources(tx: &mut Tx, tenant: TenantId, charges: &[billing::Charge]) -> Result<Vec<billing::Source>, AppError> {
    let of = |kind: SourceKind| {
        let mut ids: Vec<_> = charges.iter().filter(|c| c.source_kind == kind).map(|c| c.source_id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let intervals: Vec<IntervalId> = of(SourceKind::Interval).into_iter().map(IntervalId).collect();
    let readings: Vec<ReadingId> = of(SourceKind::Reading).into_iter().map(ReadingId).collect();
    let mut sources: Vec<_> =
        interval::by_ids(tx, tenant, &intervals).await?.into_iter().map(interval_source).collect();
    let spans = charges.iter().filter(|c| c.source_kind == SourceKind::Reading).map(|c| c.span);
    let whole = spans.reduce(|a, b| Span::clamped(a.start().min(b.start()), a.end().max(b.end())));
    if let Some(whole) = whole {
        let rows = reading::by_ids(tx, tenant, &readings, whole).await?;
        sources.extend(reading_sources(tx, rows).await?);
    }
    Ok(sources)
}

/// What stands beside the document must say the same as it.
fn header_differences(row: &InvoiceRow, document: &billing::Document) -> Vec<String> {
    let total = document.total.minor().to_string();
    // what says the same in other words hides what only some readers see, such as a field given twice
    let text = serde_json::to_string(document).is_ok_and(|text| text == row.document);
    let text = (!text).then(|| "invoice: the document's text is not as it was written".to_owned());
    [
        ("total", row.total_minor.to_string(), total),
        ("period", row.period.clone(), document.period.label.clone()),
        ("currency", row.currency.to_string(), document.currency.to_string()),
        ("tenant", row.tenant_id.to_string(), document.tenant_id.to_string()),
        ("engine", row.engine.clone(), document.engine.clone()),
    ]
    .into_iter()
    .filter(|(_, stored, printed)| stored != printed)
    .map(|(field, stored, printed)| format!("invoice: {field} is stored as {stored}, the document says {printed}"))
    .chain(text)
    .collect()
}

/// The invoice must stand in its series where its hash says.
async fn chain_differences(app: &App, row: &InvoiceRow) -> Result<Vec<String>, AppError> {
    let serial = u64::try_from(row.serial).unwrap_or(0);
    let mut differences = Vec::new();
    let recomputed = invoice::chain(&row.previous_hash, serial, &row.digest);
    if recomputed != row.hash {
        differences.push(format!("series: the hash is stored as {}, recomputed as {recomputed}", row.hash));
    }
    // the invoice before may be another tenant's; only its hash is looked at
    let mut tx = app.store.begin("invoice.chain", Scope::Operator).await?;
    let before = store::invoice::hash_of(&mut tx, &row.series, row.serial - 1).await?;
    let expected = match before {
        Some(hash) => hash,
        None if row.serial == 1 => invoice::CHAIN_START.to_owned(),
        None => "missing".to_owned(),
    };
    if expected != row.previous_hash {
        differences.push(format!(
            "series: the hash before is stored as {}, the invoice before has {expected}",
            row.previous_hash
        ));
    }
    Ok(differences)
}
