//! Which plan a tenant is on, over which time.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{Instant, PlanId, SubscriptionId, TenantId};
use uuid::Uuid;

/// A tenant's use of a plan over a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRow {
    pub tenant_id: TenantId,
    pub subscription_id: SubscriptionId,
    pub plan_id: PlanId,
    /// A whole minute.
    pub starts_at: Instant,
    /// Absent while no end is known.
    pub ends_at: Option<Instant>,
    pub created_at: Instant,
}

struct Raw {
    tenant_id: Uuid,
    subscription_id: Uuid,
    plan_id: Uuid,
    starts_at: At,
    ends_at: Option<At>,
    created_at: At,
}

impl From<Raw> for SubscriptionRow {
    fn from(r: Raw) -> Self {
        Self {
            tenant_id: r.tenant_id.into(),
            subscription_id: r.subscription_id.into(),
            plan_id: r.plan_id.into(),
            starts_at: r.starts_at.0,
            ends_at: r.ends_at.map(|t| t.0),
            created_at: r.created_at.0,
        }
    }
}

/// A new subscription.
///
/// # Errors
/// The rules `subscription_has_no_overlap`, `subscription_of_plan` and `subscription_of_tenant`.
pub async fn insert(tx: &mut Tx, row: &SubscriptionRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into subscription (tenant_id, subscription_id, plan_id, starts_at, ends_at, created_at)
         values ($1, $2, $3, $4, $5, $6)",
        row.tenant_id.uuid(),
        row.subscription_id.uuid(),
        row.plan_id.uuid(),
        At(row.starts_at) as _,
        row.ends_at.map(At) as _,
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The tenant's subscriptions in order of start, locked until the transaction ends.
///
/// # Errors
/// What the database says.
pub async fn lock_all(tx: &mut Tx, tenant: TenantId) -> Result<Vec<SubscriptionRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        "select tenant_id, subscription_id, plan_id, starts_at, ends_at, created_at from subscription
          where tenant_id = $1 order by starts_at for no key update",
        tenant.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(SubscriptionRow::from).collect())
}

/// Ends a subscription that had no end.
///
/// # Errors
/// The rule `subscription_is_not_empty`; [`StoreError::RowCount`] when it has an end.
pub async fn end(tx: &mut Tx, tenant: TenantId, subscription: SubscriptionId, at: Instant) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "update subscription set ends_at = $3 where tenant_id = $1 and subscription_id = $2 and ends_at is null",
        tenant.uuid(),
        subscription.uuid(),
        At(at) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("subscription ended", 1, done.rows_affected())
}

/// The end of the tenant's last issued period: nothing before it may change its price. The period stays shared-locked,
/// so that none is issued until the transaction ends.
///
/// # Errors
/// What the database says.
pub async fn lock_issued_until(tx: &mut Tx, tenant: TenantId) -> Result<Option<Instant>, StoreError> {
    let rows = sqlx::query!(
        "select ends_at, invoice_id from period where tenant_id = $1 order by ends_at desc for share",
        tenant.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().filter(|r| r.invoice_id.is_some()).map(|r| r.ends_at.0).max())
}

/// A page of a tenant's subscriptions in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: TenantId,
    after: Option<SubscriptionId>,
    limit: i64,
) -> Result<Vec<SubscriptionRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        "select tenant_id, subscription_id, plan_id, starts_at, ends_at, created_at from subscription
          where tenant_id = $1 and ($2::uuid is null or subscription_id > $2) order by subscription_id limit $3",
        tenant.uuid(),
        after.map(SubscriptionId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(SubscriptionRow::from).collect())
}
