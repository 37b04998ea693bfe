//! Tenants' billing periods: the row that keeps facts and the issue of an invoice apart.

use crate::{
    error::StoreError,
    time::At,
    tx::{Tx, waited},
};
use std::time::Instant;
use types::{InvoiceId, Span, TenantId};
use uuid::Uuid;

/// A billing period of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeriodRow {
    pub tenant_id: TenantId,
    /// Such as `2026-11`.
    pub label: String,
    pub span: Span,
}

/// Makes the periods exist and locks them against issue until the end of the transaction: whatever inserts facts of a
/// period holds it shared, issue holds it alone.
///
/// # Errors
/// What the database says.
pub async fn share(tx: &mut Tx, periods: &[PeriodRow]) -> Result<(), StoreError> {
    if periods.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = periods.iter().map(|p| p.tenant_id.uuid()).collect();
    let label: Vec<String> = periods.iter().map(|p| p.label.clone()).collect();
    // a period begins once, and is there ever after
    if shared(tx, &tenant, &label).await? < periods.len() {
        insert(tx, periods).await?;
        shared(tx, &tenant, &label).await?;
    }
    Ok(())
}

async fn shared(tx: &mut Tx, tenant: &[Uuid], label: &[String]) -> Result<usize, StoreError> {
    let asked = Instant::now();
    let rows = sqlx::query!(
        "select label from period where (tenant_id, label) in (select * from unnest($1::uuid[], $2::text[]))
          order by tenant_id, label for share",
        tenant,
        label
    )
    .fetch_all(tx.connection())
    .await?;
    waited("period_shared", asked);
    Ok(rows.len())
}

async fn insert(tx: &mut Tx, periods: &[PeriodRow]) -> Result<(), StoreError> {
    let tenant: Vec<Uuid> = periods.iter().map(|p| p.tenant_id.uuid()).collect();
    let label: Vec<String> = periods.iter().map(|p| p.label.clone()).collect();
    let starts: Vec<At> = periods.iter().map(|p| At(p.span.start())).collect();
    let ends: Vec<At> = periods.iter().map(|p| At(p.span.end())).collect();
    sqlx::query!(
        "insert into period (tenant_id, label, starts_at, ends_at)
         select r.* from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[]) as r (tenant_id, label, s, e)
          where not exists (select 1 from period p where p.tenant_id = r.tenant_id and p.label = r.label)
         on conflict do nothing",
        &tenant,
        &label,
        &starts as _,
        &ends as _
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Makes the period exist and locks it alone, for issue: waits for every transaction that inserts facts of it. Gives
/// the invoice that it has, if any.
///
/// # Errors
/// What the database says.
pub async fn lock(tx: &mut Tx, period: &PeriodRow) -> Result<Option<InvoiceId>, StoreError> {
    if let Some(invoice) = locked(tx, period).await? {
        return Ok(invoice);
    }
    insert(tx, std::slice::from_ref(period)).await?;
    locked(tx, period).await?.ok_or_else(|| StoreError::corrupt("period", "label", &period.label))
}

async fn locked(tx: &mut Tx, period: &PeriodRow) -> Result<Option<Option<InvoiceId>>, StoreError> {
    let asked = Instant::now();
    let invoice = sqlx::query_scalar!(
        "select invoice_id from period where tenant_id = $1 and label = $2 for update",
        period.tenant_id.uuid(),
        period.label
    )
    .fetch_optional(tx.connection())
    .await?;
    waited("period_alone", asked);
    Ok(invoice.map(|id| id.map(InvoiceId::from)))
}

/// Names the period's invoice.
///
/// # Errors
/// [`StoreError::RowCount`] when it has one.
pub async fn set_issued(tx: &mut Tx, period: &PeriodRow, invoice: InvoiceId) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update period set invoice_id = $3 where tenant_id = $1 and label = $2 and invoice_id is null",
        period.tenant_id.uuid(),
        period.label,
        invoice.uuid()
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("issued period", 1, done.rows_affected())
}

/// The labels of a tenant's issued periods.
///
/// # Errors
/// What the database says.
pub async fn issued(tx: &mut Tx, tenant: TenantId) -> Result<Vec<String>, StoreError> {
    let labels = sqlx::query_scalar!(
        "select label from period where tenant_id = $1 and invoice_id is not null order by label",
        tenant.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(labels)
}
