//! Sums of what agents measured. What was reserved is summed from intervals, in `app`.

use crate::{error::StoreError, reading::byte_millis, time::At, tx::Tx};
use types::{ByteMillis, Bytes, Instant, ProjectId, Span, TenantId};

/// What was measured under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured<K> {
    pub key: K,
    pub used: ByteMillis,
    pub above: ByteMillis,
    /// Milliseconds of windows that nothing measured, in whole windows and in part.
    pub unknown_ms: i64,
    pub peak: Option<Bytes>,
}

/// Measured use of a tenant over a span, per project.
///
/// # Errors
/// What the database says.
pub async fn by_project(tx: &mut Tx, tenant: TenantId, span: Span) -> Result<Vec<Measured<ProjectId>>, StoreError> {
    let rows = sqlx::query!(
        r#"select project_id as key, coalesce(sum(used), 0)::numeric(28,0) as "used!", coalesce(sum(above), 0)::numeric(28,0) as "above!",
            sum(greatest(extract(epoch from ends_at - starts_at) * 1000 - covered_ms, 0))::bigint as "unknown!", max(peak) as peak
           from reading where tenant_id = $1 and starts_at >= $2 and starts_at < $3 group by 1 order by 1"#,
        tenant.uuid(),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Measured {
            key: r.key.into(),
            used: byte_millis(r.used),
            above: byte_millis(r.above),
            unknown_ms: r.unknown,
            peak: r.peak.map(Bytes::from_i64),
        })
        .collect())
}

/// Measured use of a tenant over a span, per GPU model.
///
/// # Errors
/// What the database says.
pub async fn by_model(tx: &mut Tx, tenant: TenantId, span: Span) -> Result<Vec<Measured<String>>, StoreError> {
    let rows = sqlx::query!(
        r#"select g.model as key, coalesce(sum(used), 0)::numeric(28,0) as "used!", coalesce(sum(above), 0)::numeric(28,0) as "above!",
            sum(greatest(extract(epoch from ends_at - starts_at) * 1000 - covered_ms, 0))::bigint as "unknown!", max(peak) as peak
           from reading join gpu g using (gpu_id)
          where tenant_id = $1 and starts_at >= $2 and starts_at < $3 group by 1 order by 1"#,
        tenant.uuid(),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Measured {
            key: r.key,
            used: byte_millis(r.used),
            above: byte_millis(r.above),
            unknown_ms: r.unknown,
            peak: r.peak.map(Bytes::from_i64),
        })
        .collect())
}

/// Measured use of a tenant over a span, per window start cut down to the UTC quarter of an hour: every zone's hours and
/// days are made of whole quarters.
///
/// # Errors
/// What the database says.
pub async fn by_quarter_hour(tx: &mut Tx, tenant: TenantId, span: Span) -> Result<Vec<Measured<Instant>>, StoreError> {
    let rows = sqlx::query!(
        r#"select date_bin('15 minutes', starts_at, 'epoch') as "key!: At", coalesce(sum(used), 0)::numeric(28,0) as "used!",
            coalesce(sum(above), 0)::numeric(28,0) as "above!",
            sum(greatest(extract(epoch from ends_at - starts_at) * 1000 - covered_ms, 0))::bigint as "unknown!", max(peak) as peak
           from reading where tenant_id = $1 and starts_at >= $2 and starts_at < $3 group by 1 order by 1"#,
        tenant.uuid(),
        At(span.start()) as _,
        At(span.end()) as _
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Measured {
            key: r.key.0,
            used: byte_millis(r.used),
            above: byte_millis(r.above),
            unknown_ms: r.unknown,
            peak: r.peak.map(Bytes::from_i64),
        })
        .collect())
}
