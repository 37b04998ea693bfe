//! Rows of batches that could not be accepted, and what operators ruled on them.

use crate::{error::StoreError, reading::BatchOrigin, time::At, tx::Tx};
use types::{Instant, NodeId, PartId, SetAsideId, Span, StreamId, TenantId};
use uuid::Uuid;

/// A row that was set aside.
#[derive(Debug, Clone, PartialEq)]
pub struct SetAsideRow {
    pub set_aside_id: SetAsideId,
    pub node_id: NodeId,
    pub stream_id: StreamId,
    pub sequence: i64,
    pub row_number: i32,
    /// Whose part it speaks of, where that part is known.
    pub tenant_id: Option<TenantId>,
    pub part_id: PartId,
    pub starts_at: Instant,
    pub reason: String,
    /// The row as the agent sent it.
    pub reading: serde_json::Value,
    pub skew_ms: i64,
    pub received_at: Instant,
    pub ruling: Option<Ruling>,
}

/// What an operator ruled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    pub accepted: bool,
    pub ruled_by: String,
    pub ruled_at: Instant,
    pub note: Option<String>,
}

/// Keeps rows that were set aside.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[SetAsideRow], origin: BatchOrigin) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let id: Vec<Uuid> = rows.iter().map(|r| r.set_aside_id.uuid()).collect();
    let node: Vec<Uuid> = rows.iter().map(|r| r.node_id.uuid()).collect();
    let number: Vec<i32> = rows.iter().map(|r| r.row_number).collect();
    let tenant: Vec<Option<Uuid>> = rows.iter().map(|r| r.tenant_id.map(TenantId::uuid)).collect();
    let part: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let starts: Vec<At> = rows.iter().map(|r| At(r.starts_at)).collect();
    let reason: Vec<String> = rows.iter().map(|r| r.reason.clone()).collect();
    let reading: Vec<serde_json::Value> = rows.iter().map(|r| r.reading.clone()).collect();
    let skew: Vec<i64> = rows.iter().map(|r| r.skew_ms).collect();
    let done = sqlx::query!(
        "insert into set_aside (set_aside_id, node_id, row_number, tenant_id, part_id, starts_at, reason, reading, skew_ms,
            stream_id, sequence, received_at)
         select r.*, $10, $11, $12 from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::uuid[], $5::uuid[],
            $6::timestamptz[], $7::text[], $8::jsonb[], $9::bigint[]) as r",
        &id,
        &node,
        &number,
        &tenant as &[Option<Uuid>],
        &part,
        &starts as _,
        &reason,
        &reading,
        &skew,
        origin.stream_id.uuid(),
        origin.sequence,
        At(origin.received_at) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("rows set aside", rows.len(), done.rows_affected())
}

struct Raw {
    set_aside_id: Uuid,
    node_id: Uuid,
    stream_id: Uuid,
    sequence: i64,
    row_number: i32,
    tenant_id: Option<Uuid>,
    part_id: Uuid,
    starts_at: At,
    reason: String,
    reading: serde_json::Value,
    skew_ms: i64,
    received_at: At,
    ruling: Option<String>,
    ruled_by: Option<String>,
    ruled_at: Option<At>,
    note: Option<String>,
}

impl From<Raw> for SetAsideRow {
    fn from(r: Raw) -> Self {
        let ruling = r.ruling.zip(r.ruled_by).zip(r.ruled_at).map(|((ruling, ruled_by), at)| Ruling {
            accepted: ruling == "accepted",
            ruled_by,
            ruled_at: at.0,
            note: r.note,
        });
        Self {
            set_aside_id: r.set_aside_id.into(),
            node_id: r.node_id.into(),
            stream_id: r.stream_id.into(),
            sequence: r.sequence,
            row_number: r.row_number,
            tenant_id: r.tenant_id.map(TenantId::from),
            part_id: r.part_id.into(),
            starts_at: r.starts_at.0,
            reason: r.reason,
            reading: r.reading,
            skew_ms: r.skew_ms,
            received_at: r.received_at.0,
            ruling,
        }
    }
}

/// A page of rows set aside in order of id; only those not ruled on when `open_only`.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    open_only: bool,
    after: Option<SetAsideId>,
    limit: i64,
) -> Result<Vec<SetAsideRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        r#"select s.set_aside_id, s.node_id, s.stream_id, s.sequence, s.row_number, s.tenant_id, s.part_id, s.starts_at, s.reason,
            s.reading, s.skew_ms, s.received_at, r.ruling as "ruling?", r.ruled_by as "ruled_by?", r.ruled_at as "ruled_at?", r.note
           from set_aside s left join set_aside_ruling r using (set_aside_id)
          where (not $1 or r.ruling is null) and ($2::uuid is null or s.set_aside_id > $2)
          order by s.set_aside_id limit $3"#,
        open_only,
        after.map(SetAsideId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(SetAsideRow::from).collect())
}

/// One row set aside.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, id: SetAsideId) -> Result<Option<SetAsideRow>, StoreError> {
    let row = sqlx::query_as!(
        Raw,
        r#"select s.set_aside_id, s.node_id, s.stream_id, s.sequence, s.row_number, s.tenant_id, s.part_id, s.starts_at, s.reason,
            s.reading, s.skew_ms, s.received_at, r.ruling as "ruling?", r.ruled_by as "ruled_by?", r.ruled_at as "ruled_at?", r.note
           from set_aside s left join set_aside_ruling r using (set_aside_id) where s.set_aside_id = $1"#,
        id.uuid()
    )
    .fetch_optional(tx.connection())
    .await?;
    Ok(row.map(SetAsideRow::from))
}

/// How many rows of a tenant's parts, beginning in a span, wait for a ruling.
///
/// # Errors
/// What the database says.
pub async fn open_of_tenant(tx: &mut Tx, tenant: TenantId, span: Span) -> Result<i64, StoreError> {
    let count = sqlx::query_scalar!(
        "select count(*) from set_aside s where tenant_id = $1 and starts_at >= $2 and starts_at < $3
            and not exists (select 1 from set_aside_ruling r where r.set_aside_id = s.set_aside_id)",
        tenant.uuid(),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(count.unwrap_or(0))
}

/// Keeps a ruling.
///
/// # Errors
/// The rule `set_aside_ruled_once` when there is one.
pub async fn rule(tx: &mut Tx, id: SetAsideId, ruling: &Ruling) -> Result<(), StoreError> {
    let name = if ruling.accepted { "accepted" } else { "rejected" };
    sqlx::query!(
        "insert into set_aside_ruling (set_aside_id, ruling, ruled_by, ruled_at, note) values ($1, $2, $3, $4, $5)",
        id.uuid(),
        name,
        ruling.ruled_by,
        At(ruling.ruled_at) as _,
        ruling.note
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}
