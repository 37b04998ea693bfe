//! Parts: the devices of allocations, and the open state of their meters.

use crate::{error::StoreError, time::At, tx::Tx};
use billing::Zone;
use types::{AllocationId, Bytes, GpuId, GpuModel, Instant, NodeId, PartId, PoolId, ProjectId, TenantId};
use uuid::Uuid;

/// One device of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PartRow {
    pub tenant_id: TenantId,
    pub part_id: PartId,
    pub allocation_id: AllocationId,
    pub project_id: ProjectId,
    pub pool_id: PoolId,
    pub node_id: NodeId,
    pub gpu_id: GpuId,
    pub model: GpuModel,
    pub bytes: Bytes,
    pub held_from: Instant,
    pub active_from: Option<Instant>,
    /// Final intervals reach up to here.
    pub metered_to: Option<Instant>,
    /// Since when it is not known whether the workload lives.
    pub unconfirmed_since: Option<Instant>,
    /// Readings reach up to here.
    pub read_to: Option<Instant>,
    pub ended_at: Option<Instant>,
}

struct Raw {
    tenant_id: Uuid,
    part_id: Uuid,
    allocation_id: Uuid,
    project_id: Uuid,
    pool_id: Uuid,
    node_id: Uuid,
    gpu_id: Uuid,
    model: String,
    bytes: i64,
    held_from: At,
    active_from: Option<At>,
    metered_to: Option<At>,
    unconfirmed_since: Option<At>,
    read_to: Option<At>,
    ended_at: Option<At>,
}

impl Raw {
    fn parse(self) -> Result<PartRow, StoreError> {
        Ok(PartRow {
            tenant_id: self.tenant_id.into(),
            part_id: self.part_id.into(),
            allocation_id: self.allocation_id.into(),
            project_id: self.project_id.into(),
            pool_id: self.pool_id.into(),
            node_id: self.node_id.into(),
            gpu_id: self.gpu_id.into(),
            model: self.model.parse().map_err(|_| StoreError::corrupt("part", "model", &self.model))?,
            bytes: Bytes::from_i64(self.bytes),
            held_from: self.held_from.0,
            active_from: self.active_from.map(|t| t.0),
            metered_to: self.metered_to.map(|t| t.0),
            unconfirmed_since: self.unconfirmed_since.map(|t| t.0),
            read_to: self.read_to.map(|t| t.0),
            ended_at: self.ended_at.map(|t| t.0),
        })
    }
}

/// New parts.
///
/// # Errors
/// [`StoreError::RowCount`] when not every row was written.
pub async fn insert(tx: &mut Tx, rows: &[PartRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let allocation: Vec<Uuid> = rows.iter().map(|r| r.allocation_id.uuid()).collect();
    let project: Vec<Uuid> = rows.iter().map(|r| r.project_id.uuid()).collect();
    let pool: Vec<Uuid> = rows.iter().map(|r| r.pool_id.uuid()).collect();
    let node: Vec<Uuid> = rows.iter().map(|r| r.node_id.uuid()).collect();
    let gpu: Vec<Uuid> = rows.iter().map(|r| r.gpu_id.uuid()).collect();
    let model: Vec<String> = rows.iter().map(|r| r.model.as_str().to_owned()).collect();
    let bytes: Vec<i64> = rows.iter().map(|r| r.bytes.as_i64()).collect();
    let held_from: Vec<At> = rows.iter().map(|r| At(r.held_from)).collect();
    let active_from: Vec<Option<At>> = rows.iter().map(|r| r.active_from.map(At)).collect();
    let metered_to: Vec<Option<At>> = rows.iter().map(|r| r.metered_to.map(At)).collect();
    let unconfirmed: Vec<Option<At>> = rows.iter().map(|r| r.unconfirmed_since.map(At)).collect();
    let ended: Vec<Option<At>> = rows.iter().map(|r| r.ended_at.map(At)).collect();
    let done = sqlx::query!(
        "insert into part (tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from,
            active_from, metered_to, unconfirmed_since, ended_at)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[],
            $9::bigint[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[])",
        &tenant,
        &id,
        &allocation,
        &project,
        &pool,
        &node,
        &gpu,
        &model,
        &bytes,
        &held_from as _,
        &active_from as _,
        &metered_to as _,
        &unconfirmed as _,
        &ended as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("parts", rows.len(), done.rows_affected())
}

/// The changed state of parts that had not ended. Their rows are locked in the order of their ids first, as ingest does,
/// so that neither waits for the other in a circle.
///
/// # Errors
/// [`StoreError::RowCount`] when one of them had ended, or is missing.
pub async fn update(tx: &mut Tx, rows: &[PartRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenant: Vec<Uuid> = rows.iter().map(|r| r.tenant_id.uuid()).collect();
    let id: Vec<Uuid> = rows.iter().map(|r| r.part_id.uuid()).collect();
    let active_from: Vec<Option<At>> = rows.iter().map(|r| r.active_from.map(At)).collect();
    let metered_to: Vec<Option<At>> = rows.iter().map(|r| r.metered_to.map(At)).collect();
    let unconfirmed: Vec<Option<At>> = rows.iter().map(|r| r.unconfirmed_since.map(At)).collect();
    let ended: Vec<Option<At>> = rows.iter().map(|r| r.ended_at.map(At)).collect();
    let done = sqlx::query!(
        "with r as (select * from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
                $6::timestamptz[]) as r (tenant_id, part_id, active_from, metered_to, unconfirmed_since, ended_at)),
              locked as (select p.tenant_id, p.part_id from part p join r using (tenant_id, part_id)
                where p.ended_at is null order by p.part_id for update of p)
         update part p set active_from = r.active_from, metered_to = r.metered_to,
            unconfirmed_since = r.unconfirmed_since, ended_at = r.ended_at
           from r join locked using (tenant_id, part_id)
          where p.tenant_id = r.tenant_id and p.part_id = r.part_id
            and (p.metered_to is null or p.metered_to <= r.metered_to)",
        &tenant,
        &id,
        &active_from as _,
        &metered_to as _,
        &unconfirmed as _,
        &ended as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("open parts", rows.len(), done.rows_affected())
}

/// Every part of a pool that has not ended, for the scheduler.
///
/// # Errors
/// What the database says.
pub async fn open_of_pool(tx: &mut Tx, pool: PoolId) -> Result<Vec<PartRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from, active_from,
            metered_to, unconfirmed_since, read_to, ended_at
           from part where pool_id = $1 and ended_at is null order by part_id",
        pool.uuid()
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// The parts of some allocations, in order.
///
/// # Errors
/// What the database says.
pub async fn of_allocations(tx: &mut Tx, allocations: &[AllocationId]) -> Result<Vec<PartRow>, StoreError> {
    let ids: Vec<Uuid> = allocations.iter().map(|a| a.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from, active_from,
            metered_to, unconfirmed_since, read_to, ended_at
           from part where allocation_id = any($1) order by part_id",
        &ids
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Parts of a tenant that held memory at some time in a span and whose meters are open.
///
/// # Errors
/// What the database says.
pub async fn open_of_tenant(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    before: Instant,
) -> Result<Vec<PartRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from, active_from,
            metered_to, unconfirmed_since, read_to, ended_at
           from part where ($1::uuid is null or tenant_id = $1) and ended_at is null and held_from < $2 order by part_id",
        tenant.map(TenantId::uuid),
        At(before) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Parts on some GPUs that are open and began before an instant.
///
/// # Errors
/// What the database says.
pub async fn open_on_gpus(tx: &mut Tx, gpus: &[GpuId], before: Instant) -> Result<Vec<PartRow>, StoreError> {
    let ids: Vec<Uuid> = gpus.iter().map(|g| g.uuid()).collect();
    sqlx::query_as!(
        Raw,
        "select tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from, active_from,
            metered_to, unconfirmed_since, read_to, ended_at
           from part where gpu_id = any($1) and ended_at is null and held_from < $2 order by part_id",
        &ids,
        At(before) as _
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// The cards that a tenant held memory on at some time in a span.
///
/// # Errors
/// What the database says.
pub async fn gpus_of_tenant(tx: &mut Tx, tenant: TenantId, span: types::Span) -> Result<Vec<GpuId>, StoreError> {
    let rows = sqlx::query_scalar!(
        "select distinct gpu_id from part
          where tenant_id = $1 and held_from < $3 and (ended_at is null or ended_at > $2) order by gpu_id",
        tenant.uuid(),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(GpuId::from).collect())
}

/// Parts of one node by id, with the whole memory of their cards: what readings are judged against. Where the
/// transaction's scope is a batch, their rows are locked in the order of their ids.
///
/// # Errors
/// What the database says.
pub async fn for_readings(tx: &mut Tx, node: NodeId, parts: &[PartId]) -> Result<Vec<(PartRow, Bytes)>, StoreError> {
    let ids: Vec<Uuid> = parts.iter().map(|p| p.uuid()).collect();
    let rows = sqlx::query!(
        "select p.tenant_id, p.part_id, p.allocation_id, p.project_id, p.pool_id, p.node_id, p.gpu_id, p.model, p.bytes,
            p.held_from, p.active_from, p.metered_to, p.unconfirmed_since, p.read_to, p.ended_at, g.memory_total
           from part p join gpu g using (gpu_id)
          where p.part_id = any($1) and p.node_id = $2 order by p.part_id for update of p",
        &ids,
        node.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let memory = Bytes::from_i64(r.memory_total);
            let part = Raw {
                tenant_id: r.tenant_id,
                part_id: r.part_id,
                allocation_id: r.allocation_id,
                project_id: r.project_id,
                pool_id: r.pool_id,
                node_id: r.node_id,
                gpu_id: r.gpu_id,
                model: r.model,
                bytes: r.bytes,
                held_from: r.held_from,
                active_from: r.active_from,
                metered_to: r.metered_to,
                unconfirmed_since: r.unconfirmed_since,
                read_to: r.read_to,
                ended_at: r.ended_at,
            }
            .parse()?;
            Ok((part, memory))
        })
        .collect()
}

/// The tenants of some parts of one node, with their zones.
///
/// # Errors
/// What the database says.
pub async fn tenants_of(tx: &mut Tx, node: NodeId, parts: &[PartId]) -> Result<Vec<(TenantId, Zone)>, StoreError> {
    let ids: Vec<Uuid> = parts.iter().map(|p| p.uuid()).collect();
    let rows = sqlx::query!(
        "select tenant_id, zone from tenant
          where tenant_id in (select tenant_id from part where part_id = any($1) and node_id = $2) order by tenant_id",
        &ids,
        node.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let zone = r.zone.parse().map_err(|_| StoreError::corrupt("tenant", "zone", &r.zone))?;
            Ok((r.tenant_id.into(), zone))
        })
        .collect()
}

/// Moves the end of what was read, of parts that [`for_readings`] locked.
///
/// # Errors
/// [`StoreError::RowCount`] when one is missing.
pub async fn set_read_to(tx: &mut Tx, rows: &[(TenantId, PartId, Instant)]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = rows.iter().map(|r| r.0.uuid()).collect();
    let parts: Vec<Uuid> = rows.iter().map(|r| r.1.uuid()).collect();
    let ends: Vec<At> = rows.iter().map(|r| At(r.2)).collect();
    let done = sqlx::query!(
        "update part p set read_to = greatest(p.read_to, r.read_to)
           from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as r (tenant_id, part_id, read_to)
          where p.tenant_id = r.tenant_id and p.part_id = r.part_id",
        &tenants,
        &parts,
        &ends as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("marks of readings", rows.len(), done.rows_affected())
}
