//! What a tenant reserved and used: by project, GPU model, hour or day.

use crate::{App, Caller, error::AppError};
use billing::Zone;
use std::collections::BTreeMap;
use store::{Scope, interval, part, usage};
use types::{ByteMillis, Bytes, Instant, Role, Span, TenantId};

/// What usage is summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Project,
    Model,
    /// Hours of the tenant's clock.
    Hour,
    /// Days of the tenant's calendar.
    Day,
}

/// Usage of a tenant over a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub tenant_id: TenantId,
    pub zone: Zone,
    pub span: Span,
    pub rows: Vec<UsageRow>,
}

/// Usage under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// A project's id, a model's name, or the instant at which the hour or day begins.
    pub key: String,
    /// Memory held while confirmed, final or so far.
    pub reserved: ByteMillis,
    /// Memory measured.
    pub used: ByteMillis,
    /// Memory measured above what was granted.
    pub above: ByteMillis,
    /// Milliseconds of windows, in whole or in part, that nothing measured: use then is not zero, but unknown.
    pub unknown_ms: i64,
    /// The highest use that was seen in one window of one part.
    pub peak: Option<Bytes>,
}

/// Bytes that were held over a span, and what they count under.
struct Held {
    project: String,
    model: String,
    bytes: Bytes,
    span: Span,
}

/// Sums a tenant's usage over a span, up to now.
///
/// # Errors
/// [`AppError::NotFound`] for another tenant; [`AppError::Invalid`] for more than 400 days, or 31 by the hour.
pub async fn usage(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    span: Span,
    by: By,
) -> Result<Usage, AppError> {
    caller.require(&Role::ALL)?;
    let tenant_id = caller.tenant(tenant)?;
    let longest_days = if by == By::Hour { 31 } else { 400 };
    // an hour more, because a month with a change of the clock may be longer
    if span.millis() > longest_days * 86_400_000 + 3_600_000 {
        return Err(AppError::invalid("to", format!("must be at most {longest_days} days after from")));
    }
    let mut tx = app.store.begin_snapshot("usage", Scope::Tenant(tenant_id)).await?;
    let zone = store::tenant::get(&mut tx, tenant_id).await?.ok_or(AppError::NotFound("tenant"))?.zone;
    let held = held(&mut tx, tenant_id, span, app.clock.now()).await?;
    let mut rows: BTreeMap<String, UsageRow> = BTreeMap::new();
    match by {
        By::Project => {
            reserve(&mut rows, &held, |h| h.project.clone());
            for m in usage::by_project(&mut tx, tenant_id, span).await? {
                measure(&mut rows, m.key.to_string(), &m);
            }
        }
        By::Model => {
            reserve(&mut rows, &held, |h| h.model.clone());
            for m in usage::by_model(&mut tx, tenant_id, span).await? {
                measure(&mut rows, m.key.clone(), &m);
            }
        }
        By::Hour | By::Day => {
            let edges = edges(span, &zone, by);
            for h in &held {
                for piece in h.span.cut_at(edges.iter().copied()) {
                    row(&mut rows, bucket(&edges, piece.start())).reserved += piece.of(h.bytes);
                }
            }
            for m in usage::by_quarter_hour(&mut tx, tenant_id, span).await? {
                measure(&mut rows, bucket(&edges, m.key.max(span.start())), &m);
            }
        }
    }
    Ok(Usage { tenant_id, zone, span, rows: rows.into_values().collect() })
}

/// Intervals, and open meters so far, cut to the span.
async fn held(tx: &mut store::Tx, tenant: TenantId, span: Span, now: Instant) -> Result<Vec<Held>, AppError> {
    let mut held = Vec::new();
    let mut add = |project: types::ProjectId, model: &types::GpuModel, bytes, from, to| {
        if let Some(span) = Span::clamped(from, to).intersection(&span) {
            held.push(Held { project: project.to_string(), model: model.as_str().to_owned(), bytes, span });
        }
    };
    for i in interval::within(tx, Some(tenant), span).await? {
        add(i.project_id, &i.model, i.bytes, i.span.start(), i.span.end());
    }
    for p in part::open_of_tenant(tx, Some(tenant), span.end()).await? {
        if let Some(metered_to) = p.metered_to {
            add(p.project_id, &p.model, p.bytes, metered_to, p.unconfirmed_since.unwrap_or(now));
        }
    }
    Ok(held)
}

fn row(rows: &mut BTreeMap<String, UsageRow>, key: String) -> &mut UsageRow {
    rows.entry(key).or_insert_with_key(|key| UsageRow {
        key: key.clone(),
        reserved: ByteMillis::ZERO,
        used: ByteMillis::ZERO,
        above: ByteMillis::ZERO,
        unknown_ms: 0,
        peak: None,
    })
}

fn reserve(rows: &mut BTreeMap<String, UsageRow>, held: &[Held], key: impl Fn(&Held) -> String) {
    for h in held {
        row(rows, key(h)).reserved += h.span.of(h.bytes);
    }
}

fn measure<K>(rows: &mut BTreeMap<String, UsageRow>, key: String, measured: &usage::Measured<K>) {
    let row = row(rows, key);
    row.used += measured.used;
    row.above += measured.above;
    row.unknown_ms += measured.unknown_ms;
    row.peak = row.peak.max(measured.peak);
}

/// The starts of the tenant's hours or days that lie in the span, and the span's own start, in order.
fn edges(span: Span, zone: &Zone, by: By) -> Vec<Instant> {
    let mut edges = vec![span.start()];
    let mut at = span.start();
    while let Some(next) = next_edge(at, zone, by).filter(|next| *next > at && *next < span.end()) {
        edges.push(next);
        at = next;
    }
    edges
}

fn next_edge(at: Instant, zone: &Zone, by: By) -> Option<Instant> {
    let local = at.to_jiff().in_tz(zone.name()).ok()?;
    let next = match by {
        By::Day => local.tomorrow().ok()?.start_of_day().ok()?,
        // the next full hour of the local clock, so that a zone half an hour off has its own hours
        _ => {
            let into =
                i64::from(local.minute()) * 60_000 + i64::from(local.second()) * 1000 + i64::from(local.millisecond());
            return Some(at.plus_millis(3_600_000 - into));
        }
    };
    Instant::from_jiff(next.timestamp()).ok()
}

fn bucket(edges: &[Instant], at: Instant) -> String {
    let after = edges.partition_point(|edge| *edge <= at);
    edges.get(after.saturating_sub(1)).map_or_else(|| at.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: &str, to: &str) -> Span {
        Span::new(from.parse().unwrap(), to.parse().unwrap()).unwrap()
    }

    #[test]
    fn hours_and_days_are_the_tenants_own() {
        let zone: Zone = "Asia/Kolkata".parse().unwrap();
        let hours = edges(span("2026-11-01T00:00:00Z", "2026-11-01T02:00:00Z"), &zone, By::Hour);
        let texts: Vec<String> = hours.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["2026-11-01T00:00:00Z", "2026-11-01T00:30:00Z", "2026-11-01T01:30:00Z"]);
        // the day on which New York's clocks go back has 25 hours
        let zone: Zone = "America/New_York".parse().unwrap();
        let day = span("2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z");
        assert_eq!(edges(day, &zone, By::Day).len(), 1);
        assert_eq!(edges(day, &zone, By::Hour).len(), 25);
    }
}
