//! Where tables that say the same thing twice differ: quota use, granted bytes, deadlines; and which invoices there are.

use crate::{error::StoreError, tx::Tx};
use types::{AllocationId, GpuId, Instant, InvoiceId, TenantId};
use uuid::Uuid;

/// A quota row whose use is not what the open allocations take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaDifference {
    pub tenant_id: TenantId,
    /// The tenant itself, or a project of it.
    pub scope_id: Uuid,
    /// `tenant` or `project`.
    pub level: String,
    pub used_bytes: i64,
    pub used_allocations: i32,
    /// What held and active allocations take.
    pub open_bytes: i64,
    pub open_allocations: i64,
}

/// Compares every quota row with the allocations. The transaction must see one instant's state.
///
/// # Errors
/// What the database says.
pub async fn quota_differences(tx: &mut Tx) -> Result<Vec<QuotaDifference>, StoreError> {
    let rows = sqlx::query!(
        r#"with by_project as (
             select tenant_id, project_id, sum(memory * gpus) as bytes, count(*) as allocations
               from allocation where state in ('held', 'active') group by tenant_id, project_id),
           open as (
             select tenant_id, project_id as scope_id, bytes, allocations from by_project
             union all
             select tenant_id, tenant_id, sum(bytes), sum(allocations) from by_project group by tenant_id)
           select q.tenant_id, q.scope_id, q.level, q.used_bytes, q.used_allocations,
             coalesce(o.bytes, 0)::bigint as "open_bytes!", coalesce(o.allocations, 0)::bigint as "open_allocations!"
             from quota q left join open o using (tenant_id, scope_id)
            where q.used_bytes <> coalesce(o.bytes, 0) or q.used_allocations <> coalesce(o.allocations, 0)
            order by q.tenant_id, q.level desc, q.scope_id"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| QuotaDifference {
            tenant_id: r.tenant_id.into(),
            scope_id: r.scope_id,
            level: r.level,
            used_bytes: r.used_bytes,
            used_allocations: r.used_allocations,
            open_bytes: r.open_bytes,
            open_allocations: r.open_allocations,
        })
        .collect())
}

/// A GPU of which row, parts and journal say different things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantDifference {
    pub gpu_id: GpuId,
    /// As its own row says.
    pub granted: i64,
    /// What the parts on it that have not ended take.
    pub of_parts: i64,
    /// What the journal says last: held and granted together.
    pub in_journal: i64,
}

/// Compares every GPU's granted bytes with its parts and with its journal. The transaction must see one instant's state.
///
/// # Errors
/// What the database says.
pub async fn grant_differences(tx: &mut Tx) -> Result<Vec<GrantDifference>, StoreError> {
    let rows = sqlx::query!(
        r#"select g.gpu_id, g.granted, coalesce(p.bytes, 0)::bigint as "of_parts!", coalesce(o.bytes, 0) as "in_journal!"
             from gpu g
             left join (select gpu_id, sum(bytes) as bytes from part where ended_at is null group by gpu_id) p using (gpu_id)
             left join lateral (
                 select held + granted as bytes from occupancy where gpu_id = g.gpu_id order by sequence desc limit 1) o on true
            where g.granted <> coalesce(p.bytes, 0) or g.granted <> coalesce(o.bytes, 0)
            order by g.gpu_id"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| GrantDifference {
            gpu_id: r.gpu_id.into(),
            granted: r.granted,
            of_parts: r.of_parts,
            in_journal: r.in_journal,
        })
        .collect())
}

/// An allocation whose deadline has passed and that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    pub allocation_id: AllocationId,
    /// `hold_until`, `ends_by` or `lost_by`.
    pub deadline: String,
    pub at: Instant,
}

/// Allocations that should have ended more than `seconds` ago, by the server's clock.
///
/// # Errors
/// What the database says.
pub async fn overdue(tx: &mut Tx, seconds: f64) -> Result<Vec<Overdue>, StoreError> {
    let rows = sqlx::query!(
        r#"select a.allocation_id, d.deadline as "deadline!", d.at as "at!"
             from allocation a cross join lateral (values
                ('hold_until', case when a.state = 'held' then a.hold_until end),
                ('ends_by', case when a.state = 'active' then a.ends_by end),
                ('lost_by', case when a.state = 'active' then a.lost_by end)) as d (deadline, at)
            where a.ended_at is null and d.at < clock_timestamp() - make_interval(secs => $1)
            order by d.at, a.allocation_id"#,
        seconds
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Overdue { allocation_id: r.allocation_id.into(), deadline: r.deadline, at: r.at.0 })
        .collect())
}

/// The newest invoices of all tenants, with their numbers.
///
/// # Errors
/// What the database says.
pub async fn newest_invoices(tx: &mut Tx, limit: i64) -> Result<Vec<(InvoiceId, String)>, StoreError> {
    let rows =
        sqlx::query!("select invoice_id, number from invoice order by issued_at desc, serial desc limit $1", limit)
            .fetch_all(tx.connection())
            .await?;
    Ok(rows.into_iter().map(|r| (r.invoice_id.into(), r.number)).collect())
}

/// When the first GPU's first hour began; absent where there is none.
///
/// # Errors
/// What the database says.
pub async fn first_capacity(tx: &mut Tx) -> Result<Option<Instant>, StoreError> {
    let at = sqlx::query_scalar!("select min(at) from gpu_capacity").fetch_one(tx.connection()).await?;
    Ok(at.map(|t| t.0))
}
