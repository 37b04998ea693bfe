//! Rows of batches that could not be accepted: an operator looks at each and rules.

use crate::{
    App, Caller,
    audit::{self, Change},
    error::AppError,
    reading::periods_of,
};
use metering::ingest::SKEW_TOLERANCE_MS;
use serde_json::json;
use std::collections::BTreeMap;
use store::{
    Scope, Tx, part, period,
    reading::{self, BatchOrigin, ReadingRow},
    set_aside::{self, Ruling},
};
use types::{ReadingId, Remark, Role, SetAsideId, Span, wire::Reading};

pub use store::set_aside::SetAsideRow;

/// A page of rows set aside; only those that wait for a ruling when `open_only`.
///
/// # Errors
/// [`AppError::Forbidden`] for tenants.
pub async fn list(
    app: &App,
    caller: &Caller,
    open_only: bool,
    after: Option<SetAsideId>,
    limit: i64,
) -> Result<Vec<SetAsideRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk])?;
    let mut tx = app.store.begin("set_aside.list", Scope::Operator).await?;
    Ok(set_aside::page(&mut tx, open_only, after, limit).await?)
}

/// Rules on a row. An accepted one becomes a reading; where its period was issued already, the next invoice carries it
/// as a correction.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Conflict`] when it was ruled on before, or cannot be accepted:
/// its part is unknown, or its time is covered by another reading.
pub async fn rule(
    app: &App,
    caller: &Caller,
    id: SetAsideId,
    accept: bool,
    note: Option<Remark>,
) -> Result<SetAsideRow, AppError> {
    caller.require(&[Role::Operator])?;
    if accept {
        make_its_month(app, id).await?;
    }
    let mut tx = app.store.begin("set_aside.rule", Scope::Operator).await?;
    let row = set_aside::get(&mut tx, id).await?.ok_or(AppError::NotFound("row set aside"))?;
    let ruling = Ruling {
        accepted: accept,
        ruled_by: caller.actor().to_string(),
        ruled_at: app.clock.now(),
        note: note.map(String::from),
    };
    set_aside::rule(&mut tx, id, &ruling).await.map_err(|error| {
        if error.is_rule("set_aside_ruled_once") {
            AppError::conflict("already_ruled", "the row was ruled on before")
        } else {
            error.into()
        }
    })?;
    if accept {
        take(app, &mut tx, &row).await?;
    }
    let detail = json!({ "accepted": accept, "reason": row.reason, "note": ruling.note });
    let change = Change { tenant: row.tenant_id, action: "set_aside.rule", object: id.to_string(), detail };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(SetAsideRow { ruling: Some(ruling), ..row })
}

/// Makes the table of the month that a row lies in. Before the ruling's own transaction, which reads other months and
/// would be in its way.
async fn make_its_month(app: &App, id: SetAsideId) -> Result<(), AppError> {
    let mut tx = app.store.begin("set_aside.month", Scope::Operator).await?;
    let row = set_aside::get(&mut tx, id).await?.ok_or(AppError::NotFound("row set aside"))?;
    drop(tx);
    // one that cannot be accepted is told so by the ruling
    let sent = serde_json::from_value::<Reading>(row.reading.clone()).ok();
    match sent.and_then(|sent| window(&row, &sent).0) {
        Some(span) if row.ruling.is_none() => app.make_reading_month(span.start()).await,
        _ => Ok(()),
    }
}

/// A row's window in the server's time, absent when it is empty, and the milliseconds that are added for that.
fn window(row: &SetAsideRow, sent: &Reading) -> (Option<Span>, i64) {
    let skew = if row.skew_ms.abs() > SKEW_TOLERANCE_MS { row.skew_ms } else { 0 };
    let span = Span::new(sent.start.plus_millis(skew), sent.end.plus_millis(skew)).filter(|span| !span.is_empty());
    (span, skew)
}

/// Makes a reading of a row.
async fn take(app: &App, tx: &mut Tx, row: &SetAsideRow) -> Result<(), AppError> {
    let cannot = |why: &str| AppError::conflict("cannot_accept", format!("the row cannot be accepted: {why}"));
    let sent: Reading = serde_json::from_value(row.reading.clone())
        .map_err(|e| AppError::Internal(format!("a row set aside does not parse: {e}")))?;
    let parts = part::for_readings(tx, row.node_id, &[row.part_id]).await?;
    let Some((part, _)) = parts.into_iter().next() else { return Err(cannot("its node never had such a part")) };
    let (span, skew) = window(row, &sent);
    let span = span.ok_or_else(|| cannot("its window is empty"))?;
    let day_before = Span::clamped(span.start().plus_millis(-86_400_000), span.end());
    let near = reading::of_part(tx, part.tenant_id, part.part_id, day_before, i64::MAX).await?;
    if near.iter().any(|other| other.span.intersection(&span).is_some()) {
        return Err(cannot("its time is covered by another reading"));
    }
    let zone = store::tenant::get(tx, part.tenant_id).await?.ok_or(AppError::NotFound("tenant"))?.zone;
    let reading = ReadingRow {
        tenant_id: part.tenant_id,
        reading_id: app.id(ReadingId::new),
        part_id: part.part_id,
        allocation_id: part.allocation_id,
        project_id: part.project_id,
        gpu_id: part.gpu_id,
        span,
        granted: sent.granted,
        used: sent.used,
        above: sent.above,
        peak: sent.peak,
        covered_ms: sent.covered_ms,
        quality: sent.quality,
        skew_ms: skew,
    };
    let rows = [reading];
    period::share(tx, &periods_of(&rows, &BTreeMap::from([(part.tenant_id, zone)]))).await?;
    let origin = BatchOrigin { stream_id: row.stream_id, sequence: row.sequence, received_at: app.clock.now() };
    reading::insert(tx, &rows, origin).await.map_err(|error| match error {
        store::StoreError::Rule(rule) => cannot(&format!("it breaks the rule {rule}")),
        other => other.into(),
    })?;
    // by the node's clock, as ingest counts: no batch that comes later covers this time again
    Ok(part::set_read_to(tx, &[(part.tenant_id, part.part_id, sent.end)]).await?)
}
