//! Charges: rated facts, each of which names the invoice and line that it stands on.

use crate::{
    error::StoreError,
    reading::{byte_millis, numeric},
    time::At,
    tx::Tx,
};
use billing::{Charge, ChargeKind, SourceKind};
use rust_decimal::Decimal;
use types::{ChargeId, InvoiceId, Price, Span, TenantId};
use uuid::Uuid;

/// A charge as it stands on an invoice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeRow {
    pub charge_id: ChargeId,
    pub line_number: u32,
    pub charge: Charge,
}

/// Appends the charges of an invoice.
///
/// # Errors
/// The rule `charge_is_billed_once`; [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, tenant: TenantId, invoice: InvoiceId, rows: &[ChargeRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let id: Vec<Uuid> = rows.iter().map(|r| r.charge_id.uuid()).collect();
    let line: Vec<i32> = rows.iter().map(|r| i32::try_from(r.line_number).unwrap_or(i32::MAX)).collect();
    let source_kind: Vec<String> = rows.iter().map(|r| r.charge.source_kind.name().to_owned()).collect();
    let source: Vec<Uuid> = rows.iter().map(|r| r.charge.source_id).collect();
    let kind: Vec<String> = rows.iter().map(|r| r.charge.kind.name().to_owned()).collect();
    let segment: Vec<i32> = rows.iter().map(|r| i32::try_from(r.charge.segment).unwrap_or(i32::MAX)).collect();
    let starts: Vec<At> = rows.iter().map(|r| At(r.charge.span.start())).collect();
    let ends: Vec<At> = rows.iter().map(|r| At(r.charge.span.end())).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.charge.allocation_id.uuid()).collect();
    let project: Vec<Uuid> = rows.iter().map(|r| r.charge.project_id.uuid()).collect();
    let model: Vec<String> = rows.iter().map(|r| r.charge.model.as_str().to_owned()).collect();
    let period: Vec<String> = rows.iter().map(|r| r.charge.period.clone()).collect();
    let plan: Vec<Uuid> = rows.iter().map(|r| r.charge.plan_version_id.uuid()).collect();
    let quantity: Vec<Decimal> =
        rows.iter().map(|r| numeric(r.charge.quantity, "quantity")).collect::<Result<_, _>>()?;
    let price: Vec<Decimal> = rows.iter().map(|r| r.charge.price.to_decimal()).collect();
    let unit: Vec<String> = rows.iter().map(|r| r.charge.unit.name().to_owned()).collect();
    let done = sqlx::query!(
        "insert into charge (tenant_id, invoice_id, charge_id, line_number, source_kind, source_id, kind, segment, starts_at,
            ends_at, allocation_id, project_id, model, period, plan_version_id, quantity, price, unit)
         select $1, $2, r.* from unnest($3::uuid[], $4::integer[], $5::text[], $6::uuid[], $7::text[], $8::integer[],
            $9::timestamptz[], $10::timestamptz[], $11::uuid[], $12::uuid[], $13::text[], $14::text[], $15::uuid[],
            $16::numeric[], $17::numeric[], $18::text[]) as r",
        tenant.uuid(),
        invoice.uuid(),
        &id,
        &line,
        &source_kind,
        &source,
        &kind,
        &segment,
        &starts as _,
        &ends as _,
        &allocation,
        &project,
        &model,
        &period,
        &plan,
        &quantity,
        &price,
        &unit
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("charges", rows.len(), done.rows_affected())
}

/// The charges of an invoice, or of one of its lines, in order of their keys.
///
/// # Errors
/// What the database says.
pub async fn of_invoice(
    tx: &mut Tx,
    tenant: TenantId,
    invoice: InvoiceId,
    line: Option<u32>,
) -> Result<Vec<ChargeRow>, StoreError> {
    let rows = sqlx::query!(
        "select charge_id, line_number, source_kind, source_id, kind, segment, starts_at, ends_at, allocation_id, project_id,
            model, period, plan_version_id, quantity, price, unit
           from charge where tenant_id = $1 and invoice_id = $2 and ($3::integer is null or line_number = $3)
          order by source_id, kind, segment",
        tenant.uuid(),
        invoice.uuid(),
        line.map(|l| i32::try_from(l).unwrap_or(i32::MAX))
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let corrupt = |column: &'static str, found: &str| StoreError::corrupt("charge", column, found);
            let charge = Charge {
                source_id: r.source_id,
                source_kind: SourceKind::from_name(&r.source_kind)
                    .ok_or_else(|| corrupt("source_kind", &r.source_kind))?,
                kind: ChargeKind::from_name(&r.kind).ok_or_else(|| corrupt("kind", &r.kind))?,
                segment: u32::try_from(r.segment).map_err(|_| corrupt("segment", "a negative number"))?,
                span: Span::new(r.starts_at.0, r.ends_at.0)
                    .ok_or_else(|| corrupt("ends_at", "an end before its start"))?,
                allocation_id: r.allocation_id.into(),
                project_id: r.project_id.into(),
                model: r.model.parse().map_err(|_| corrupt("model", &r.model))?,
                period: r.period,
                plan_version_id: r.plan_version_id.into(),
                quantity: byte_millis(r.quantity),
                price: Price::from_decimal(r.price).map_err(|_| corrupt("price", &r.price.to_string()))?,
                unit: r.unit.parse().map_err(|_| corrupt("unit", &r.unit))?,
            };
            Ok(ChargeRow {
                charge_id: r.charge_id.into(),
                line_number: u32::try_from(r.line_number).unwrap_or(0),
                charge,
            })
        })
        .collect()
}
