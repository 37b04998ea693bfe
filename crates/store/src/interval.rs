//! Intervals, the facts that are billed as reserved, and the spans of memory that is kept but not billed.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{
    AllocationId, Bytes, GpuId, GpuModel, Instant, IntervalId, PartId, ProjectId, Span, TenantId, UnbilledSpanId,
};
use uuid::Uuid;

/// A final span in which a part held given bytes while confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalRow {
    pub tenant_id: TenantId,
    pub interval_id: IntervalId,
    pub allocation_id: AllocationId,
    pub part_id: PartId,
    pub project_id: ProjectId,
    pub gpu_id: GpuId,
    pub model: GpuModel,
    pub bytes: Bytes,
    pub span: Span,
    /// Whether it is a gap in the reports of its node that the node attested afterwards.
    pub attested: bool,
}

/// Appends intervals. The caller holds their tenants' periods ([`crate::period::share`]).
///
/// # Errors
/// The rule `interval_starts_once`; [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[IntervalRow], now: Instant) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.interval_id.uuid()).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.allocation_id.uuid()).collect();
    let part: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let project: Vec<Uuid> = rows.iter().map(|r| r.project_id.uuid()).collect();
    let gpu: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let model: Vec<String> = rows.iter().map(|r| r.model.as_str().to_owned()).collect();
    let bytes: Vec<i64> = rows.iter().map(|r| r.bytes.as_i64()).collect();
    let starts: Vec<At> = rows.iter().map(|r| At(r.span.start())).collect();
    let ends: Vec<At> = rows.iter().map(|r| At(r.span.end())).collect();
    let attested: Vec<bool> = rows.iter().map(|r| r.attested).collect();
    let done = sqlx::query!(
        "insert into interval (tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at,
            ends_at, attested, inserted_at)
         select r.*, $12 from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::text[],
            $8::bigint[], $9::timestamptz[], $10::timestamptz[], $11::boolean[]) as r",
        &tenant,
        &id,
        &allocation,
        &part,
        &project,
        &gpu,
        &model,
        &bytes,
        &starts as _,
        &ends as _,
        &attested,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("intervals", rows.len(), done.rows_affected())
}

struct Raw {
    tenant_id: Uuid,
    interval_id: Uuid,
    allocation_id: Uuid,
    part_id: Uuid,
    project_id: Uuid,
    gpu_id: Uuid,
    model: String,
    bytes: i64,
    starts_at: At,
    ends_at: At,
    attested: bool,
}

impl Raw {
    fn parse(self) -> Result<IntervalRow, StoreError> {
        Ok(IntervalRow {
            tenant_id: self.tenant_id.into(),
            interval_id: self.interval_id.into(),
            allocation_id: self.allocation_id.into(),
            part_id: self.part_id.into(),
            project_id: self.project_id.into(),
            gpu_id: self.gpu_id.into(),
            model: self.model.parse().map_err(|_| StoreError::corrupt("interval", "model", &self.model))?,
            bytes: Bytes::from_i64(self.bytes),
            span: Span::new(self.starts_at.0, self.ends_at.0)
                .ok_or_else(|| StoreError::corrupt("interval", "ends_at", self.interval_id))?,
            attested: self.attested,
        })
    }
}

/// Intervals of a tenant that began before an instant and that no charge names.
///
/// # Errors
/// What the database says.
pub async fn uncharged(tx: &mut Tx, tenant: TenantId, before: Instant) -> Result<Vec<IntervalRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at, ends_at, attested
           from interval i
          where tenant_id = $1 and starts_at < $2
            and not exists (select 1 from charge c where c.tenant_id = $1 and c.source_id = i.interval_id)
          order by interval_id",
        tenant.uuid(),
        At(before) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Intervals by id.
///
/// # Errors
/// What the database says.
pub async fn by_ids(tx: &mut Tx, tenant: TenantId, ids: &[IntervalId]) -> Result<Vec<IntervalRow>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|i| i.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at, ends_at, attested
           from interval where tenant_id = $1 and interval_id = any($2) order by interval_id",
        tenant.uuid(),
        &ids
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Intervals of one tenant, or of all that the transaction sees, that share time with a span.
///
/// # Errors
/// What the database says.
pub async fn within(tx: &mut Tx, tenant: Option<TenantId>, span: Span) -> Result<Vec<IntervalRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at, ends_at, attested
           from interval where ($1::uuid is null or tenant_id = $1) and ends_at > $2 and starts_at < $3 order by interval_id",
        tenant.map(TenantId::uuid),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Intervals on some cards that share time with a span.
///
/// # Errors
/// What the database says.
pub async fn on_gpus(tx: &mut Tx, gpus: &[GpuId], span: Span) -> Result<Vec<IntervalRow>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at, ends_at, attested
           from interval where gpu_id = any($1) and ends_at > $2 and starts_at < $3",
        &ids,
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// The intervals of one allocation, in order.
///
/// # Errors
/// What the database says.
pub async fn of_allocation(
    tx: &mut Tx,
    tenant: TenantId,
    allocation: AllocationId,
) -> Result<Vec<IntervalRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select i.tenant_id, i.interval_id, i.allocation_id, i.part_id, i.project_id, i.gpu_id, i.model, i.bytes, i.starts_at,
            i.ends_at, i.attested
           from part p join interval i on i.tenant_id = p.tenant_id and i.part_id = p.part_id
          where p.tenant_id = $1 and p.allocation_id = $2 order by i.part_id, i.starts_at",
        tenant.uuid(),
        allocation.uuid()
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Why memory was kept without being billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnbilledKind {
    /// Placed, not yet confirmed.
    Held,
    /// It was not known whether the workload lived, or it had ended already.
    Unconfirmed,
}

impl UnbilledKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Unconfirmed => "unconfirmed",
        }
    }
}

/// Memory that was kept but is not billed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnbilledSpan {
    pub tenant_id: TenantId,
    pub unbilled_span_id: UnbilledSpanId,
    pub allocation_id: AllocationId,
    pub part_id: PartId,
    pub gpu_id: GpuId,
    pub kind: UnbilledKind,
    pub bytes: Bytes,
    pub span: Span,
}

/// Appends unbilled spans.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert_unbilled(tx: &mut Tx, rows: &[UnbilledSpan]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.unbilled_span_id.uuid()).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.allocation_id.uuid()).collect();
    let part: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let gpu: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let kind: Vec<String> = rows.iter().map(|r| r.kind.name().to_owned()).collect();
    let bytes: Vec<i64> = rows.iter().map(|r| r.bytes.as_i64()).collect();
    let starts: Vec<At> = rows.iter().map(|r| At(r.span.start())).collect();
    let ends: Vec<At> = rows.iter().map(|r| At(r.span.end())).collect();
    let done = sqlx::query!(
        "insert into unbilled_span (tenant_id, unbilled_span_id, allocation_id, part_id, gpu_id, kind, bytes, starts_at, ends_at)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::bigint[],
            $8::timestamptz[], $9::timestamptz[])",
        &tenant,
        &id,
        &allocation,
        &part,
        &gpu,
        &kind,
        &bytes,
        &starts as _,
        &ends as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("unbilled spans", rows.len(), done.rows_affected())
}

/// Unbilled spans on some cards that share time with a span: (card, kind, bytes, span).
///
/// # Errors
/// What the database says.
pub async fn unbilled_on_gpus(
    tx: &mut Tx,
    gpus: &[GpuId],
    span: Span,
) -> Result<Vec<(GpuId, UnbilledKind, Bytes, Span)>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    let rows = sqlx::query!(
        "select gpu_id, kind, bytes, starts_at, ends_at from unbilled_span
          where gpu_id = any($1) and ends_at > $2 and starts_at < $3",
        &ids,
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let kind = if r.kind == "held" { UnbilledKind::Held } else { UnbilledKind::Unconfirmed };
            (r.gpu_id.into(), kind, Bytes::from_i64(r.bytes), Span::clamped(r.starts_at.0, r.ends_at.0))
        })
        .collect())
}
