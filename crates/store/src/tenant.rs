//! Tenants: who is billed.

use crate::{error::StoreError, time::At, tx::Tx};
use billing::Zone;
use types::{Currency, Instant, Name, TenantId};
use uuid::Uuid;

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRow {
    pub tenant_id: TenantId,
    /// Unique among tenants.
    pub name: Name,
    /// Decides where its billing periods begin.
    pub zone: Zone,
    /// Of its plans and invoices; never changes.
    pub currency: Currency,
    pub created_at: Instant,
}

struct Raw {
    tenant_id: Uuid,
    name: String,
    zone: String,
    currency: String,
    created_at: At,
}

impl Raw {
    fn parse(self) -> Result<TenantRow, StoreError> {
        Ok(TenantRow {
            tenant_id: self.tenant_id.into(),
            name: self.name.parse().map_err(|_| StoreError::corrupt("tenant", "name", &self.name))?,
            zone: self.zone.parse().map_err(|_| StoreError::corrupt("tenant", "zone", &self.zone))?,
            currency: self.currency.parse().map_err(|_| StoreError::corrupt("tenant", "currency", &self.currency))?,
            created_at: self.created_at.0,
        })
    }
}

/// A new tenant.
///
/// # Errors
/// The rule `tenant_name_is_unique`.
pub async fn insert(tx: &mut Tx, row: &TenantRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into tenant (tenant_id, name, zone, currency, created_at) values ($1, $2, $3, $4, $5)",
        row.tenant_id.uuid(),
        row.name.as_str(),
        row.zone.name(),
        row.currency.code(),
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// One tenant.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, tenant: TenantId) -> Result<Option<TenantRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, name, zone, currency, created_at from tenant where tenant_id = $1",
        tenant.uuid()
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of the tenants that the scope shows, in order of id.
///
/// # Errors
/// What the database says.
pub async fn page(tx: &mut Tx, after: Option<TenantId>, limit: i64) -> Result<Vec<TenantRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select tenant_id, name, zone, currency, created_at from tenant
          where $1::uuid is null or tenant_id > $1 order by tenant_id limit $2",
        after.map(TenantId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}
