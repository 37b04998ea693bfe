//! GPUs, what each could give from when on, and the scheduler's journal of what was given.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Bytes, GpuId, GpuModel, GpuUuid, Instant, NodeId, PoolId};
use uuid::Uuid;

/// A card as the ledger knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRow {
    pub gpu_id: GpuId,
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub uuid: GpuUuid,
    pub model: GpuModel,
    pub memory_total: Bytes,
    pub driver_overhead: Option<Bytes>,
    pub allocatable: Bytes,
    /// Held and active together: never more than `allocatable`.
    pub granted: Bytes,
    pub removed_at: Option<Instant>,
    pub created_at: Instant,
}

struct Raw {
    gpu_id: Uuid,
    node_id: Uuid,
    pool_id: Uuid,
    uuid: String,
    model: String,
    memory_total: i64,
    driver_overhead: Option<i64>,
    allocatable: i64,
    granted: i64,
    removed_at: Option<At>,
    created_at: At,
}

impl Raw {
    fn parse(self) -> Result<GpuRow, StoreError> {
        Ok(GpuRow {
            gpu_id: self.gpu_id.into(),
            node_id: self.node_id.into(),
            pool_id: self.pool_id.into(),
            uuid: self.uuid.parse().map_err(|_| StoreError::corrupt("gpu", "uuid", &self.uuid))?,
            model: self.model.parse().map_err(|_| StoreError::corrupt("gpu", "model", &self.model))?,
            memory_total: Bytes::from_i64(self.memory_total),
            driver_overhead: self.driver_overhead.map(Bytes::from_i64),
            allocatable: Bytes::from_i64(self.allocatable),
            granted: Bytes::from_i64(self.granted),
            removed_at: self.removed_at.map(|t| t.0),
            created_at: self.created_at.0,
        })
    }
}

/// A card that a node reported for the first time.
///
/// # Errors
/// The rule `gpu_uuid_is_unique` when another node has it.
pub async fn insert(tx: &mut Tx, gpu: &GpuRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into gpu_model (model, first_seen_at) values ($1, $2) on conflict do nothing",
        gpu.model.as_str(),
        At(gpu.created_at) as _
    )
    .execute(tx.connection())
    .await?;
    sqlx::query!(
        "insert into gpu (gpu_id, node_id, pool_id, uuid, model, memory_total, driver_overhead, allocatable, granted, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9)",
        gpu.gpu_id.uuid(),
        gpu.node_id.uuid(),
        gpu.pool_id.uuid(),
        gpu.uuid.as_str(),
        gpu.model.as_str(),
        gpu.memory_total.as_i64(),
        gpu.driver_overhead.map(Bytes::as_i64),
        gpu.allocatable.as_i64(),
        At(gpu.created_at) as _
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// What a card is now: where it is, how much it can give, whether it is gone.
///
/// # Errors
/// The rule `gpu_never_over` when more is granted than would remain.
pub async fn update(tx: &mut Tx, gpu: &GpuRow) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update gpu set node_id = $2, pool_id = $3, memory_total = $4, driver_overhead = $5, allocatable = $6, removed_at = $7
          where gpu_id = $1",
        gpu.gpu_id.uuid(),
        gpu.node_id.uuid(),
        gpu.pool_id.uuid(),
        gpu.memory_total.as_i64(),
        gpu.driver_overhead.map(Bytes::as_i64),
        gpu.allocatable.as_i64(),
        gpu.removed_at.map(At) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("gpu", 1, done.rows_affected())
}

/// What is granted on each of some cards.
///
/// # Errors
/// The rule `gpu_never_over`, the second wall behind the scheduler's own count.
pub async fn set_granted(tx: &mut Tx, rows: &[(GpuId, Bytes)]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = rows.iter().map(|r| r.0.uuid()).collect();
    let granted: Vec<i64> = rows.iter().map(|r| r.1.as_i64()).collect();
    let done = sqlx::query!(
        "update gpu g set granted = r.granted from unnest($1::uuid[], $2::bigint[]) as r (gpu_id, granted)
          where g.gpu_id = r.gpu_id",
        &ids,
        &granted
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("granted", rows.len(), done.rows_affected())
}

/// The card of this name, wherever it is.
///
/// # Errors
/// What the database says.
pub async fn by_uuid(tx: &mut Tx, uuid: &GpuUuid) -> Result<Option<GpuRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select gpu_id, node_id, pool_id, uuid, model, memory_total, driver_overhead, allocatable, granted, removed_at, created_at
           from gpu where uuid = $1",
        uuid.as_str()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of cards in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    pool: Option<PoolId>,
    node: Option<NodeId>,
    after: Option<GpuId>,
    limit: i64,
) -> Result<Vec<GpuRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select gpu_id, node_id, pool_id, uuid, model, memory_total, driver_overhead, allocatable, granted, removed_at, created_at
           from gpu
          where ($1::uuid is null or pool_id = $1) and ($2::uuid is null or node_id = $2)
            and ($3::uuid is null or gpu_id > $3)
          order by gpu_id limit $4",
        pool.map(PoolId::uuid),
        node.map(NodeId::uuid),
        after.map(GpuId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Some cards by id.
///
/// # Errors
/// What the database says.
pub async fn by_ids(tx: &mut Tx, gpus: &[GpuId]) -> Result<Vec<GpuRow>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select gpu_id, node_id, pool_id, uuid, model, memory_total, driver_overhead, allocatable, granted, removed_at, created_at
           from gpu where gpu_id = any($1) order by gpu_id",
        &ids
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// One entry of the capacity journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub gpu_id: GpuId,
    pub sequence: i64,
    pub at: Instant,
    pub allocatable: Bytes,
    pub in_service: bool,
}

/// Appends to the capacity journal.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert_capacity(tx: &mut Tx, rows: &[Capacity]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let gpus: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let sequences: Vec<i64> = rows.iter().map(|r| r.sequence).collect();
    let at: Vec<At> = rows.iter().map(|r| At(r.at)).collect();
    let allocatable: Vec<i64> = rows.iter().map(|r| r.allocatable.as_i64()).collect();
    let in_service: Vec<bool> = rows.iter().map(|r| r.in_service).collect();
    let done = sqlx::query!(
        "insert into gpu_capacity (gpu_id, sequence, at, allocatable, in_service)
         select * from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::bigint[], $5::boolean[])",
        &gpus,
        &sequences,
        &at as _,
        &allocatable,
        &in_service
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("capacity", rows.len(), done.rows_affected())
}

/// The capacity journals of some cards, in order.
///
/// # Errors
/// What the database says.
pub async fn capacity_of(tx: &mut Tx, gpus: &[GpuId]) -> Result<Vec<Capacity>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    let rows = sqlx::query!(
        "select gpu_id, sequence, at, allocatable, in_service from gpu_capacity where gpu_id = any($1) order by gpu_id, sequence",
        &ids
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Capacity {
            gpu_id: r.gpu_id.into(),
            sequence: r.sequence,
            at: r.at.0,
            allocatable: Bytes::from_i64(r.allocatable),
            in_service: r.in_service,
        })
        .collect())
}

/// One entry of the occupancy journal: a card's bytes from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    pub gpu_id: GpuId,
    pub sequence: i64,
    pub at: Instant,
    pub held: Bytes,
    pub granted: Bytes,
    pub slack: Bytes,
    pub free: Bytes,
}

/// Appends to the occupancy journal.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert_occupancy(tx: &mut Tx, rows: &[Occupancy]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let gpus: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let sequences: Vec<i64> = rows.iter().map(|r| r.sequence).collect();
    let at: Vec<At> = rows.iter().map(|r| At(r.at)).collect();
    let held: Vec<i64> = rows.iter().map(|r| r.held.as_i64()).collect();
    let granted: Vec<i64> = rows.iter().map(|r| r.granted.as_i64()).collect();
    let slack: Vec<i64> = rows.iter().map(|r| r.slack.as_i64()).collect();
    let free: Vec<i64> = rows.iter().map(|r| r.free.as_i64()).collect();
    let done = sqlx::query!(
        "insert into occupancy (gpu_id, sequence, at, held, granted, slack, free)
         select * from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])",
        &gpus,
        &sequences,
        &at as _,
        &held,
        &granted,
        &slack,
        &free
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("occupancy", rows.len(), done.rows_affected())
}

/// The occupancy journals of some cards over a span: each card's last entry before it, and all within it, in order.
///
/// # Errors
/// What the database says.
pub async fn occupancy_of(tx: &mut Tx, gpus: &[GpuId], span: types::Span) -> Result<Vec<Occupancy>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    let rows = sqlx::query!(
        "select o.gpu_id, o.sequence, o.at, o.held, o.granted, o.slack, o.free
           from (select g.gpu_id, coalesce((select b.sequence from occupancy b where b.gpu_id = g.gpu_id and b.at <= $2
                    order by b.at desc, b.sequence desc limit 1), 0) as first
                   from unnest($1::uuid[]) as g (gpu_id)) g
           join occupancy o on o.gpu_id = g.gpu_id and o.sequence >= g.first and o.at < $3
          order by o.gpu_id, o.sequence",
        &ids,
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Occupancy {
            gpu_id: r.gpu_id.into(),
            sequence: r.sequence,
            at: r.at.0,
            held: Bytes::from_i64(r.held),
            granted: Bytes::from_i64(r.granted),
            slack: Bytes::from_i64(r.slack),
            free: Bytes::from_i64(r.free),
        })
        .collect())
}

/// The last sequences of one card's journals, and whether it was in service: (occupancy, capacity, in service).
///
/// # Errors
/// What the database says.
pub async fn journal_head(tx: &mut Tx, gpu: GpuId) -> Result<(i64, i64, bool), StoreError> {
    let row = sqlx::query!(
        r#"select coalesce((select max(sequence) from occupancy where gpu_id = $1), 0) as "occupancy!",
                coalesce((select max(sequence) from gpu_capacity where gpu_id = $1), 0) as "capacity!",
                coalesce((select in_service from gpu_capacity where gpu_id = $1 order by sequence desc limit 1), false)
                    as "in_service!""#,
        gpu.uuid()
    )
    .fetch_one(tx.connection())
    .await?;
    Ok((row.occupancy, row.capacity, row.in_service))
}

/// The last sequence of each journal of a pool's cards: (card, occupancy, capacity, in service).
///
/// # Errors
/// What the database says.
pub async fn journal_heads(tx: &mut Tx, pool: PoolId) -> Result<Vec<(GpuId, i64, i64, bool)>, StoreError> {
    let rows = sqlx::query!(
        r#"select g.gpu_id,
                coalesce((select max(o.sequence) from occupancy o where o.gpu_id = g.gpu_id), 0) as "occupancy!",
                coalesce(c.sequence, 0) as "capacity!", coalesce(c.in_service, false) as "in_service!"
           from gpu g left join lateral
                (select sequence, in_service from gpu_capacity c where c.gpu_id = g.gpu_id order by sequence desc limit 1) c on true
          where g.pool_id = $1"#,
        pool.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(|r| (r.gpu_id.into(), r.occupancy, r.capacity, r.in_service)).collect())
}
