//! Readings, in one table per month, and the marks of the streams that they come in.

use crate::{error::StoreError, time::At, tx::Tx};
use rust_decimal::Decimal;
use types::{
    AllocationId, ByteMillis, Bytes, GpuId, Instant, NodeId, PartId, ProjectId, ReadingId, RunId, Span, StreamId,
    TenantId, wire::Quality,
};
use uuid::Uuid;

/// A reading that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadingRow {
    pub tenant_id: TenantId,
    /// Names it in charges.
    pub reading_id: ReadingId,
    pub part_id: PartId,
    pub allocation_id: AllocationId,
    pub project_id: ProjectId,
    pub gpu_id: GpuId,
    /// The window, in the server's time.
    pub span: Span,
    pub granted: Bytes,
    pub used: Option<ByteMillis>,
    pub above: Option<ByteMillis>,
    pub peak: Option<Bytes>,
    pub covered_ms: u32,
    pub quality: Quality,
    /// What was added to the node's times.
    pub skew_ms: i64,
}

/// Where a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOrigin {
    pub stream_id: StreamId,
    pub sequence: i64,
    pub received_at: Instant,
}

/// As a `numeric(28,0)` column holds it.
///
/// # Errors
/// [`StoreError::Corrupt`] beyond 28 digits.
pub(crate) fn numeric(n: ByteMillis, column: &'static str) -> Result<Decimal, StoreError> {
    // 10^28 - 1 is inside the 96 bits of a Decimal; what is not would be cut silently
    Some(n.0)
        .filter(|n| n.abs() < 10_i128.pow(28))
        .and_then(|n| Decimal::try_from_i128_with_scale(n, 0).ok())
        .ok_or_else(|| StoreError::corrupt("reading", column, n))
}

/// From a `numeric(28,0)` column.
pub(crate) fn byte_millis(d: Decimal) -> ByteMillis {
    ByteMillis(d.trunc().mantissa())
}

/// Appends readings. The caller holds their tenants' periods ([`crate::period::share`]).
///
/// # Errors
/// The rule `reading_once_per_window`; [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[ReadingRow], origin: BatchOrigin) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let decimals = |get: fn(&ReadingRow) -> Option<ByteMillis>, column| {
        rows.iter().map(|r| get(r).map(|n| numeric(n, column)).transpose()).collect::<Result<Vec<_>, _>>()
    };
    let used: Vec<Option<Decimal>> = decimals(|r| r.used, "used")?;
    let above: Vec<Option<Decimal>> = decimals(|r| r.above, "above")?;
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let starts: Vec<At> = rows.iter().map(|r| At(r.span.start())).collect();
    let part: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let ends: Vec<At> = rows.iter().map(|r| At(r.span.end())).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.allocation_id.uuid()).collect();
    let project: Vec<Uuid> = rows.iter().map(|r| r.project_id.uuid()).collect();
    let gpu: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.reading_id.uuid()).collect();
    let granted: Vec<i64> = rows.iter().map(|r| r.granted.as_i64()).collect();
    let peak: Vec<Option<i64>> = rows.iter().map(|r| r.peak.map(Bytes::as_i64)).collect();
    let covered: Vec<i32> = rows.iter().map(|r| i32::try_from(r.covered_ms).unwrap_or(i32::MAX)).collect();
    let quality: Vec<String> = rows.iter().map(|r| r.quality.name().to_owned()).collect();
    let skew: Vec<i64> = rows.iter().map(|r| r.skew_ms).collect();
    let done = sqlx::query!(
        "insert into reading (tenant_id, starts_at, part_id, ends_at, allocation_id, project_id, gpu_id, reading_id, granted,
            used, above, peak, covered_ms, quality, skew_ms, stream_id, sequence, received_at)
         select r.*, $16, $17, $18 from unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::timestamptz[], $5::uuid[],
            $6::uuid[], $7::uuid[], $8::uuid[], $9::bigint[], $10::numeric[], $11::numeric[], $12::bigint[], $13::integer[],
            $14::text[], $15::bigint[]) as r",
        &tenant,
        &starts as _,
        &part,
        &ends as _,
        &allocation,
        &project,
        &gpu,
        &id,
        &granted,
        &used as &[Option<Decimal>],
        &above as &[Option<Decimal>],
        &peak as &[Option<i64>],
        &covered,
        &quality,
        &skew,
        origin.stream_id.uuid(),
        origin.sequence,
        At(origin.received_at) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("readings", rows.len(), done.rows_affected())
}

/// Makes the table of an instant's month exist.
///
/// # Errors
/// What the database says.
pub async fn make_month(tx: &mut Tx, at: Instant) -> Result<(), StoreError> {
    sqlx::query("select make_reading_month(($1::timestamptz at time zone 'UTC')::date)")
        .bind(At(at))
        .execute(tx.connection())
        .await?;
    Ok(())
}

/// The readings of one part that begin in a span, in order.
///
/// # Errors
/// What the database says.
pub async fn of_part(
    tx: &mut Tx,
    tenant: TenantId,
    part: PartId,
    span: Span,
    limit: i64,
) -> Result<Vec<ReadingRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, starts_at, part_id, ends_at, allocation_id, project_id, gpu_id, reading_id, granted, used, above, peak,
            covered_ms, quality, skew_ms
           from reading where tenant_id = $1 and part_id = $2 and starts_at >= $3 and starts_at < $4
          order by starts_at limit $5",
        tenant.uuid(),
        part.uuid(),
        At(span.start()) as _,
        At(span.end()) as _,
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Readings of a tenant above what was granted, that began before an instant and that no charge names.
///
/// # Errors
/// What the database says.
pub async fn uncharged_above(tx: &mut Tx, tenant: TenantId, before: Instant) -> Result<Vec<ReadingRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, starts_at, part_id, ends_at, allocation_id, project_id, gpu_id, reading_id, granted, used, above, peak,
            covered_ms, quality, skew_ms
           from reading r
          where tenant_id = $1 and starts_at < $2 and above > 0
            and not exists (select 1 from charge c where c.tenant_id = $1 and c.source_id = r.reading_id)
          order by reading_id",
        tenant.uuid(),
        At(before) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Readings by id, of windows that begin in a span (which spares the other months' tables).
///
/// # Errors
/// What the database says.
pub async fn by_ids(
    tx: &mut Tx,
    tenant: TenantId,
    ids: &[ReadingId],
    span: Span,
) -> Result<Vec<ReadingRow>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select tenant_id, starts_at, part_id, ends_at, allocation_id, project_id, gpu_id, reading_id, granted, used, above, peak,
            covered_ms, quality, skew_ms
           from reading where tenant_id = $1 and reading_id = any($2) and starts_at >= $3 and starts_at < $4
          order by reading_id",
        tenant.uuid(),
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

struct Raw {
    tenant_id: Uuid,
    starts_at: At,
    part_id: Uuid,
    ends_at: At,
    allocation_id: Uuid,
    project_id: Uuid,
    gpu_id: Uuid,
    reading_id: Uuid,
    granted: i64,
    used: Option<Decimal>,
    above: Option<Decimal>,
    peak: Option<i64>,
    covered_ms: i32,
    quality: String,
    skew_ms: i64,
}

impl Raw {
    fn parse(self) -> Result<ReadingRow, StoreError> {
        Ok(ReadingRow {
            tenant_id: self.tenant_id.into(),
            reading_id: self.reading_id.into(),
            part_id: self.part_id.into(),
            allocation_id: self.allocation_id.into(),
            project_id: self.project_id.into(),
            gpu_id: self.gpu_id.into(),
            span: Span::clamped(self.starts_at.0, self.ends_at.0),
            granted: Bytes::from_i64(self.granted),
            used: self.used.map(byte_millis),
            above: self.above.map(byte_millis),
            peak: self.peak.map(Bytes::from_i64),
            covered_ms: u32::try_from(self.covered_ms).unwrap_or(0),
            quality: Quality::from_name(&self.quality)
                .ok_or_else(|| StoreError::corrupt("reading", "quality", &self.quality))?,
            skew_ms: self.skew_ms,
        })
    }
}

/// The mark of a stream: whose it is, the highest durable batch, and the head of its hash chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub node_id: NodeId,
    pub sequence: i64,
    pub head_hash: Vec<u8>,
    /// Which run of the agent speaks for the node; absent where none said.
    pub run_id: Option<RunId>,
}

/// Locks a stream's mark; `None` for a stream that is not known.
///
/// # Errors
/// What the database says.
pub async fn lock_mark(tx: &mut Tx, stream: StreamId) -> Result<Option<Mark>, StoreError> {
    let row = sqlx::query!(
        "select s.node_id, s.sequence, s.head_hash, n.run_id from stream s join node n using (node_id)
          where s.stream_id = $1 for update of s",
        stream.uuid()
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(row.map(|r| Mark {
        node_id: r.node_id.into(),
        sequence: r.sequence,
        head_hash: r.head_hash,
        run_id: r.run_id.map(RunId::from),
    }))
}

/// Makes a new stream known, before its first batch. Of two that do so at once, one waits and then finds it.
///
/// # Errors
/// What the database says.
pub async fn begin_stream(tx: &mut Tx, stream: StreamId, node: NodeId, now: Instant) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into stream (stream_id, node_id, sequence, head_hash, updated_at) values ($1, $2, 0, '', $3)
         on conflict do nothing",
        stream.uuid(),
        node.uuid(),
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Moves a stream's mark to the next batch.
///
/// # Errors
/// [`StoreError::RowCount`] when the mark is not where it was read.
pub async fn move_mark(
    tx: &mut Tx,
    stream: StreamId,
    sequence: i64,
    head_hash: &[u8],
    now: Instant,
) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update stream set sequence = $2::bigint, head_hash = $3, updated_at = $4 where stream_id = $1 and sequence = $2::bigint - 1",
        stream.uuid(),
        sequence,
        head_hash,
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("stream mark", 1, done.rows_affected())
}
