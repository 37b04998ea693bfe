//! The append-only log of every change by a person or key: a hash chain for each tenant, and one for the platform.

use crate::{error::StoreError, time::At, tx::Tx};
use types::{AuditId, Instant, TenantId};
use uuid::Uuid;

/// One change. What concerns no tenant stands under the nil id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Absent for what concerns the platform.
    pub tenant_id: Option<TenantId>,
    pub audit_id: AuditId,
    pub at: Instant,
    /// Who: `user:`, `key:` or `node:` and an id, or `system`.
    pub actor: String,
    /// What was done, such as `tenant.create`.
    pub action: String,
    /// The id of what it was done to.
    pub object: String,
    /// What changed, without secrets.
    pub detail: serde_json::Value,
    pub request_id: Option<String>,
    /// Absent for entries that are older than the chains; such are written no more.
    pub place: Option<Place>,
}

/// Where an entry stands in its log's chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// From 1, without gaps.
    pub sequence: i64,
    /// Over the entry, its number and the hash before it: 64 hexadecimal digits.
    pub hash: String,
}

/// A log's chain as its control row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub last_sequence: i64,
    pub hash: String,
    /// What the first link follows: it seals the entries that are older than the chain, where there are any.
    pub origin: String,
}

/// What a chain with nothing before it begins with.
pub const ORIGIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

fn column(tenant: Option<TenantId>) -> Uuid {
    tenant.map_or(Uuid::nil(), TenantId::uuid)
}

fn tenant(column: Uuid) -> Option<TenantId> {
    (!column.is_nil()).then(|| column.into())
}

/// Locks a log's chain until the end of the transaction; gives its last number and its head.
///
/// # Errors
/// What the database says.
pub async fn lock_chain(tx: &mut Tx, tenant: Option<TenantId>) -> Result<(i64, String), StoreError> {
    // the update changes nothing: it makes the one statement lock the row that is there, or the one it makes
    let row = sqlx::query!(
        "insert into audit_chain (tenant_id, last_sequence, head_hash, origin) values ($1, 0, $2, $2)
         on conflict (tenant_id) do update set last_sequence = audit_chain.last_sequence
         returning last_sequence, head_hash",
        column(tenant),
        ORIGIN
    )
    .fetch_one(tx.connection())
    .await?;
    Ok((row.last_sequence, row.head_hash))
}

/// Appends one change, in the transaction that makes it, and moves its chain to it.
///
/// # Errors
/// The rule `audit_is_chained` for an entry without a place; [`StoreError::RowCount`] when the chain is not where
/// [`lock_chain`] found it.
pub async fn insert(tx: &mut Tx, row: &AuditRow) -> Result<(), StoreError> {
    let place = row.place.as_ref();
    let done = sqlx::query!(
        "with entry as (
            insert into audit (tenant_id, audit_id, at, actor, action, object, detail, request_id, sequence, hash)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9::bigint, $10))
         update audit_chain set last_sequence = $9::bigint, head_hash = $10
          where tenant_id = $1 and last_sequence = $9::bigint - 1",
        column(row.tenant_id),
        row.audit_id.uuid(),
        At(row.at) as _,
        row.actor,
        row.action,
        row.object,
        row.detail,
        row.request_id,
        place.map(|p| p.sequence),
        place.map(|p| p.hash.as_str()),
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("chain of the audit log", 1, done.rows_affected())
}

struct Raw {
    tenant_id: Uuid,
    audit_id: Uuid,
    at: At,
    actor: String,
    action: String,
    object: String,
    detail: serde_json::Value,
    request_id: Option<String>,
    sequence: Option<i64>,
    hash: Option<String>,
}

impl From<Raw> for AuditRow {
    fn from(r: Raw) -> Self {
        Self {
            tenant_id: tenant(r.tenant_id),
            audit_id: r.audit_id.into(),
            at: r.at.0,
            actor: r.actor,
            action: r.action,
            object: r.object,
            detail: r.detail,
            request_id: r.request_id,
            place: r.sequence.zip(r.hash).map(|(sequence, hash)| Place { sequence, hash }),
        }
    }
}

/// A page of one tenant's log, or of all that the scope shows where no tenant is given; the newest first. `before` is
/// the entry that the page before ended with.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<AuditRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        "select tenant_id, audit_id, at, actor, action, object, detail, request_id, sequence, hash from audit
          where ($1::uuid is null or tenant_id = $1) and ($2::uuid is null or audit_id < $2)
          order by audit_id desc limit $3",
        tenant.map(TenantId::uuid),
        before.map(AuditId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(AuditRow::from).collect())
}

/// Every log that the scope shows, with its chain; no head where entries stand in no chain at all.
///
/// # Errors
/// What the database says.
pub async fn chains(tx: &mut Tx) -> Result<Vec<(Option<TenantId>, Option<Head>)>, StoreError> {
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", c.last_sequence as "last_sequence?", c.head_hash as "head_hash?", c.origin as "origin?"
             from audit_chain c full join (select distinct tenant_id from audit) a using (tenant_id) order by tenant_id"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let head = r.last_sequence.zip(r.head_hash).zip(r.origin);
            (tenant(r.tenant_id), head.map(|((last_sequence, hash), origin)| Head { last_sequence, hash, origin }))
        })
        .collect())
}

/// The entries of a log's chain behind a number, in order.
///
/// # Errors
/// What the database says.
pub async fn links(tx: &mut Tx, tenant: Option<TenantId>, after: i64, limit: i64) -> Result<Vec<AuditRow>, StoreError> {
    let rows = sqlx::query_as!(
        Raw,
        "select tenant_id, audit_id, at, actor, action, object, detail, request_id, sequence, hash from audit
          where tenant_id = $1 and sequence > $2 order by sequence limit $3",
        column(tenant),
        after,
        limit
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(AuditRow::from).collect())
}

/// What seals the entries of a log that are older than its chain: computed as the migration did that began the chains.
///
/// # Errors
/// What the database says.
pub async fn seal_of_unchained(tx: &mut Tx, tenant: Option<TenantId>) -> Result<Option<String>, StoreError> {
    let seal = sqlx::query_scalar!(
        "select encode(sha256(convert_to(string_agg(concat_ws('|', audit_id, extract(epoch from at), actor, action,
            object, detail, request_id), E'\n' order by audit_id), 'UTF8')), 'hex')
           from audit where tenant_id = $1 and sequence is null",
        column(tenant)
    )
    .fetch_one(tx.connection())
    .await?;
    Ok(seal)
}
