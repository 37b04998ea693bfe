//! Issued invoices, and their series.

use crate::{
    error::StoreError,
    time::At,
    tx::{Tx, waited},
};
use types::{Currency, Instant, InvoiceId, Span, TenantId};
use uuid::Uuid;

/// An issued invoice: frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvoiceRow {
    pub tenant_id: TenantId,
    pub invoice_id: InvoiceId,
    /// As printed: series and serial.
    pub number: String,
    pub series: String,
    pub serial: i64,
    pub period: String,
    pub span: Span,
    pub currency: Currency,
    pub total_minor: i64,
    pub engine: String,
    /// The canonical JSON of a `billing::Document`.
    pub document: String,
    pub digest: String,
    pub previous_hash: String,
    pub hash: String,
    pub issued_at: Instant,
    pub issued_by: String,
    /// Why it was issued although something stood against it.
    pub waiver: Option<String>,
}

/// Locks a series and gives its last serial and the head of its hash chain; a new series begins at 0 with an empty head.
///
/// # Errors
/// What the database says.
pub async fn lock_series(tx: &mut Tx, series: &str) -> Result<(i64, String), StoreError> {
    if let Some(known) = known_series(tx, series).await? {
        return Ok(known);
    }
    sqlx::query!(
        "insert into invoice_series (series, last_serial, head_hash) values ($1, 0, '') on conflict do nothing",
        series
    )
    .execute(tx.connection())
    .await?;
    known_series(tx, series).await?.ok_or_else(|| StoreError::corrupt("invoice_series", "series", series))
}

async fn known_series(tx: &mut Tx, series: &str) -> Result<Option<(i64, String)>, StoreError> {
    let asked = std::time::Instant::now();
    let row = sqlx::query!("select last_serial, head_hash from invoice_series where series = $1 for update", series)
        .fetch_optional(tx.connection())
        .await?;
    waited("invoice_series", asked);
    Ok(row.map(|r| (r.last_serial, r.head_hash)))
}

/// Freezes an invoice and moves its series to it.
///
/// # Errors
/// The rules `invoice_once_per_period` and `invoice_number_is_unique`; [`StoreError::RowCount`] when the series is not
/// where it was locked.
pub async fn insert(tx: &mut Tx, invoice: &InvoiceRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into invoice (tenant_id, invoice_id, number, series, serial, period, starts_at, ends_at, currency, total_minor,
            engine, document, digest, previous_hash, hash, issued_at, issued_by, waiver)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
        invoice.tenant_id.uuid(),
        invoice.invoice_id.uuid(),
        invoice.number,
        invoice.series,
        invoice.serial,
        invoice.period,
        At(invoice.span.start()) as _,
        At(invoice.span.end()) as _,
        invoice.currency.code(),
        invoice.total_minor,
        invoice.engine,
        invoice.document,
        invoice.digest,
        invoice.previous_hash,
        invoice.hash,
        At(invoice.issued_at) as _,
        invoice.issued_by,
        invoice.waiver
    )
    .execute(tx.connection())
    .await?;
    sqlx::query!(
        "insert into invoice_number (series, serial, tenant_id, invoice_id) values ($1, $2, $3, $4)",
        invoice.series,
        invoice.serial,
        invoice.tenant_id.uuid(),
        invoice.invoice_id.uuid()
    )
    .execute(tx.connection())
    .await?;
    let moved = sqlx::query!(
        "update invoice_series set last_serial = $2::bigint, head_hash = $3 where series = $1 and last_serial = $2::bigint - 1",
        invoice.series,
        invoice.serial,
        invoice.hash
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("invoice series", 1, moved.rows_affected())
}

struct Raw {
    tenant_id: Uuid,
    invoice_id: Uuid,
    number: String,
    series: String,
    serial: i64,
    period: String,
    starts_at: At,
    ends_at: At,
    currency: String,
    total_minor: i64,
    engine: String,
    document: String,
    digest: String,
    previous_hash: String,
    hash: String,
    issued_at: At,
    issued_by: String,
    waiver: Option<String>,
}

impl Raw {
    fn parse(self) -> Result<InvoiceRow, StoreError> {
        Ok(InvoiceRow {
            tenant_id: self.tenant_id.into(),
            invoice_id: self.invoice_id.into(),
            span: Span::new(self.starts_at.0, self.ends_at.0)
                .ok_or_else(|| StoreError::corrupt("invoice", "ends_at", &self.number))?,
            currency: self.currency.parse().map_err(|_| StoreError::corrupt("invoice", "currency", &self.currency))?,
            number: self.number,
            series: self.series,
            serial: self.serial,
            period: self.period,
            total_minor: self.total_minor,
            engine: self.engine,
            document: self.document,
            digest: self.digest,
            previous_hash: self.previous_hash,
            hash: self.hash,
            issued_at: self.issued_at.0,
            issued_by: self.issued_by,
            waiver: self.waiver,
        })
    }
}

/// One invoice of the transaction's tenants.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, invoice: InvoiceId) -> Result<Option<InvoiceRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, invoice_id, number, series, serial, period, starts_at, ends_at, currency, total_minor, engine, document,
            digest, previous_hash, hash, issued_at, issued_by, waiver
           from invoice where invoice_id = $1",
        invoice.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// The invoice of this printed number, of the transaction's tenants.
///
/// # Errors
/// What the database says.
pub async fn by_number(tx: &mut Tx, number: &str) -> Result<Option<InvoiceRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, invoice_id, number, series, serial, period, starts_at, ends_at, currency, total_minor, engine, document,
            digest, previous_hash, hash, issued_at, issued_by, waiver
           from invoice where number = $1",
        number
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of invoices, newest first.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    before: Option<InvoiceId>,
    limit: i64,
) -> Result<Vec<InvoiceRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, invoice_id, number, series, serial, period, starts_at, ends_at, currency, total_minor, engine, document,
            digest, previous_hash, hash, issued_at, issued_by, waiver
           from invoice where ($1::uuid is null or tenant_id = $1) and ($2::uuid is null or invoice_id < $2)
          order by invoice_id desc limit $3",
        tenant.map(TenantId::uuid),
        before.map(InvoiceId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// The hash of the invoice at a place of a series.
///
/// # Errors
/// What the database says.
pub async fn hash_of(tx: &mut Tx, series: &str, serial: i64) -> Result<Option<String>, StoreError> {
    let hash = sqlx::query_scalar!(
        "select i.hash from invoice_number n join invoice i on i.tenant_id = n.tenant_id and i.invoice_id = n.invoice_id
          where n.series = $1 and n.serial = $2",
        series,
        serial
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(hash)
}
