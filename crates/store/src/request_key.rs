//! The keys that make a repeated request harmless.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{AllocationId, Instant, TenantId};
use uuid::Uuid;

/// A request's key with what was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    pub tenant_id: TenantId,
    pub key: String,
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    pub answer: KeyAnswer,
}

/// What was decided under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyAnswer {
    /// Placed or queued: look at the allocation as it stands now.
    Allocation(AllocationId),
    /// Refused, with what the caller was told.
    Refusal(serde_json::Value),
}

/// What is known under these keys.
///
/// # Errors
/// What the database says.
pub async fn find(tx: &mut Tx, keys: &[(TenantId, String)]) -> Result<Vec<RequestKey>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<Uuid> = keys.iter().map(|k| k.0.uuid()).collect();
    let texts: Vec<String> = keys.iter().map(|k| k.1.clone()).collect();
    let rows = sqlx::query!(
        "select tenant_id, key, body_hash, allocation_id, refusal from request_key
          where (tenant_id, key) in (select * from unnest($1::uuid[], $2::text[]))",
        &tenants,
        &texts
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let body_hash =
                r.body_hash.try_into().map_err(|_| StoreError::corrupt("request_key", "body_hash", &r.key))?;
            let answer = match (r.allocation_id, r.refusal) {
                (Some(id), None) => KeyAnswer::Allocation(id.into()),
                (None, Some(refusal)) => KeyAnswer::Refusal(refusal),
                _ => return Err(StoreError::corrupt("request_key", "refusal", &r.key)),
            };
            Ok(RequestKey { tenant_id: r.tenant_id.into(), key: r.key, body_hash, answer })
        })
        .collect()
}

/// Keeps what was decided. A key that another transaction claimed meanwhile breaks the rule `request_key_key`, and with
/// it the whole transaction, so that nothing is decided twice.
///
/// # Errors
/// The rule `request_key_key`.
pub async fn insert(tx: &mut Tx, keys: &[RequestKey], now: Instant) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = keys.iter().map(|k| k.tenant_id.uuid()).collect();
    let texts: Vec<String> = keys.iter().map(|k| k.key.clone()).collect();
    let hashes: Vec<Vec<u8>> = keys.iter().map(|k| k.body_hash.to_vec()).collect();
    let mut allocations: Vec<Option<Uuid>> = Vec::with_capacity(keys.len());
    let mut refusals: Vec<Option<serde_json::Value>> = Vec::with_capacity(keys.len());
    for key in keys {
        match &key.answer {
            KeyAnswer::Allocation(id) => {
                allocations.push(Some(id.uuid()));
                refusals.push(None);
            }
            KeyAnswer::Refusal(refusal) => {
                allocations.push(None);
                refusals.push(Some(refusal.clone()));
            }
        }
    }
    let done = sqlx::query!(
        "insert into request_key (tenant_id, key, body_hash, allocation_id, refusal, created_at)
         select r.*, $6 from unnest($1::uuid[], $2::text[], $3::bytea[], $4::uuid[], $5::jsonb[]) as r",
        &tenants,
        &texts,
        &hashes,
        &allocations as &[Option<Uuid>],
        &refusals as &[Option<serde_json::Value>],
        At(now) as _
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("request keys", keys.len(), done.rows_affected())
}

/// Forgets keys older than an instant.
///
/// # Errors
/// What the database says.
pub async fn forget_before(tx: &mut Tx, before: Instant) -> Result<u64, StoreError> {
    let done =
        sqlx::query!("delete from request_key where created_at < $1", At(before) as _).execute(tx.connection()).await?;
    Ok(done.rows_affected())
}
