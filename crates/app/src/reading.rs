//! Ingest: batches of readings in the order of their stream, each with the stream's mark in one transaction.

use crate::{
    App, Caller,
    error::AppError,
    node_refusal::{self, RefusalReason},
    principal::Principal,
};
use billing::period;
use metering::ingest::{self, Accepted, KnownPart, Sequence};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use store::{
    Scope, Tx, part,
    period::PeriodRow,
    reading::{self, BatchOrigin, Mark, ReadingRow},
    set_aside::{self, SetAsideRow},
};
use types::{
    Instant, NodeId, PartId, ReadingId, SetAsideId, StreamId, TenantId,
    wire::{BatchAck, Reading, ReadingBatch},
};

/// Takes a batch. What the acknowledgement says is durable. Rows that cannot be true are set aside one by one, so no batch
/// blocks its node and nothing is lost.
///
/// # Errors
/// [`AppError::Forbidden`] for anybody but a node, [`AppError::Invalid`] for a malformed batch, [`AppError::NotFound`] for
/// another node's stream, [`AppError::SequenceGap`] out of sequence, [`AppError::Conflict`] `another_agent_reports` from an
/// agent that does not speak for its node.
pub async fn ingest(app: &App, caller: &Caller, batch: &ReadingBatch) -> Result<BatchAck, AppError> {
    let Principal::Node { node, pool } = caller.principal else { return Err(AppError::Forbidden) };
    let result = take(app, node, batch).await;
    if let Err(error) = &result {
        node_refusal::note_error(app, node, pool, error).await;
    }
    result
}

async fn take(app: &App, node: NodeId, batch: &ReadingBatch) -> Result<BatchAck, AppError> {
    let sequence = check(batch)?;
    let now = app.clock.now();
    let skew_ms = now.since(batch.sent_at);
    let parts: Vec<PartId> = batch.readings.iter().map(|r| r.part_id).collect::<BTreeSet<_>>().into_iter().collect();
    let tenants = tenants_of(app, node, &parts).await?;
    app.make_months(batch, now).await?;

    let mut tx = app.store.begin("ingest", Scope::Batch(tenants.keys().copied().collect())).await?;
    let mark = mark(&mut tx, batch, node, now).await?;
    match ingest::sequence(u64::try_from(mark.sequence).unwrap_or(0), batch.sequence) {
        Sequence::Next => {}
        Sequence::Repeat => {
            metrics::counter!("gpuledger_reading_batches_total", "outcome" => "repeat").increment(1);
            let sequence = u64::try_from(mark.sequence).unwrap_or(0);
            return Ok(BatchAck { sequence, accepted: 0, set_aside: 0, skew_ms });
        }
        Sequence::Gap { expected } => {
            metrics::counter!("gpuledger_reading_batches_total", "outcome" => "gap").increment(1);
            return Err(AppError::SequenceGap { expected });
        }
    }
    let known = known_parts(&mut tx, node, &parts).await?;
    let judged = ingest::judge(&batch.readings, |part| known.get(part).copied(), now, skew_ms);
    let origin = BatchOrigin { stream_id: batch.stream_id, sequence, received_at: now };

    let rows = accepted_rows(app, &judged.accepted);
    let periods = periods_of(&rows, &tenants);
    store::period::share(&mut tx, &periods).await?;
    reading::insert(&mut tx, &rows, origin).await?;
    let mut read_to: BTreeMap<(TenantId, PartId), Instant> = BTreeMap::new();
    for accepted in &judged.accepted {
        let end = read_to.entry((accepted.part.tenant_id, accepted.reading.part_id)).or_insert(accepted.read_to);
        *end = (*end).max(accepted.read_to);
    }
    let read_to: Vec<_> = read_to.into_iter().map(|((tenant, part), end)| (tenant, part, end)).collect();
    part::set_read_to(&mut tx, &read_to).await?;
    let aside = aside_rows(app, batch, &judged.set_aside, &known, node, skew_ms, now);
    set_aside::insert(&mut tx, &aside, origin).await?;
    let head = link(&mark.head_hash, batch.stream_id, batch.sequence, &batch.readings)?;
    reading::move_mark(&mut tx, batch.stream_id, sequence, &head, now).await?;
    tx.commit().await?;

    metrics::counter!("gpuledger_reading_batches_total", "outcome" => "accepted").increment(1);
    metrics::counter!("gpuledger_readings_accepted_total").increment(rows.len() as u64);
    for (_, reason) in &judged.set_aside {
        metrics::counter!("gpuledger_readings_set_aside_total", "reason" => reason.name()).increment(1);
    }
    Ok(BatchAck {
        sequence: batch.sequence,
        accepted: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        set_aside: u32::try_from(aside.len()).unwrap_or(u32::MAX),
        skew_ms,
    })
}

fn check(batch: &ReadingBatch) -> Result<i64, AppError> {
    if batch.readings.len() > ReadingBatch::MAX_READINGS {
        let rule = format!("must not hold more than {}", ReadingBatch::MAX_READINGS);
        return Err(AppError::invalid("readings", rule));
    }
    match i64::try_from(batch.sequence) {
        Ok(sequence) if sequence >= 1 => Ok(sequence),
        _ => Err(AppError::invalid("sequence", "must be 1 or more")),
    }
}

/// The batch's tenants with their zones: found by the parts that this node really has, so a batch can name no other.
async fn tenants_of(app: &App, node: NodeId, parts: &[PartId]) -> Result<BTreeMap<TenantId, billing::Zone>, AppError> {
    let mut tx = app.store.begin("ingest_tenants", Scope::Operator).await?;
    Ok(part::tenants_of(&mut tx, node, parts).await?.into_iter().collect())
}

async fn mark(tx: &mut Tx, batch: &ReadingBatch, node: NodeId, now: Instant) -> Result<Mark, AppError> {
    let known = match reading::lock_mark(tx, batch.stream_id).await? {
        None if batch.sequence == 1 => {
            reading::begin_stream(tx, batch.stream_id, node, now).await?;
            reading::lock_mark(tx, batch.stream_id).await?
        }
        known => known,
    };
    match known {
        Some(mark) if mark.node_id == node => match (mark.run_id, batch.run_id) {
            (Some(speaks), Some(sends)) if speaks != sends => {
                let detail = "another agent speaks for this node: its reports are taken, this one's are not";
                Err(AppError::conflict(RefusalReason::AnotherAgentReports.name(), detail))
            }
            _ => Ok(mark),
        },
        // another node's stream, or one that never began here: the latter starts at 1
        Some(_) => Err(AppError::NotFound("stream")),
        None => Err(AppError::SequenceGap { expected: 1 }),
    }
}

async fn known_parts(tx: &mut Tx, node: NodeId, parts: &[PartId]) -> Result<BTreeMap<PartId, KnownPart>, AppError> {
    let rows = part::for_readings(tx, node, parts).await?;
    Ok(rows
        .into_iter()
        .filter_map(|(row, device_bytes)| {
            let known = KnownPart {
                tenant_id: row.tenant_id,
                project_id: row.project_id,
                allocation_id: row.allocation_id,
                gpu_id: row.gpu_id,
                device_bytes,
                active_from: row.active_from?,
                ended: row.ended_at,
                read_to: row.read_to,
            };
            Some((row.part_id, known))
        })
        .collect())
}

/// The rows' ids rise in the order of the batch: with them, and the places of the rows set aside, the batch can be put
/// together again as it was sent, and so can the stream's chain.
fn accepted_rows(app: &App, accepted: &[Accepted]) -> Vec<ReadingRow> {
    let mut ids: Vec<ReadingId> = accepted.iter().map(|_| app.id(ReadingId::new)).collect();
    ids.sort_unstable();
    ids.into_iter().zip(accepted).map(|(id, accepted)| accepted_row(id, accepted)).collect()
}

fn accepted_row(reading_id: ReadingId, accepted: &Accepted) -> ReadingRow {
    let reading = &accepted.reading;
    ReadingRow {
        tenant_id: accepted.part.tenant_id,
        reading_id,
        part_id: reading.part_id,
        allocation_id: accepted.part.allocation_id,
        project_id: accepted.part.project_id,
        gpu_id: accepted.part.gpu_id,
        span: types::Span::clamped(reading.start, reading.end),
        granted: reading.granted,
        used: reading.used,
        above: reading.above,
        peak: reading.peak,
        covered_ms: reading.covered_ms,
        quality: reading.quality,
        skew_ms: if accepted.flagged { accepted.skew_ms } else { 0 },
    }
}

/// The periods, in their tenants' zones, that the readings begin in.
pub(crate) fn periods_of(rows: &[ReadingRow], zones: &BTreeMap<TenantId, billing::Zone>) -> Vec<PeriodRow> {
    let mut periods: BTreeSet<PeriodRow> = BTreeSet::new();
    let mut last: BTreeMap<TenantId, types::Span> = BTreeMap::new();
    for row in rows {
        if last.get(&row.tenant_id).is_some_and(|span| span.contains(row.span.start())) {
            continue;
        }
        let Some(zone) = zones.get(&row.tenant_id) else { continue };
        let period = period::month_of(row.span.start(), zone);
        last.insert(row.tenant_id, period.span);
        periods.insert(PeriodRow { tenant_id: row.tenant_id, label: period.label, span: period.span });
    }
    periods.into_iter().collect()
}

fn aside_rows(
    app: &App,
    batch: &ReadingBatch,
    judged: &[(usize, ingest::SetAsideReason)],
    known: &BTreeMap<PartId, KnownPart>,
    node_id: NodeId,
    skew_ms: i64,
    now: Instant,
) -> Vec<SetAsideRow> {
    judged
        .iter()
        .filter_map(|(index, reason)| {
            let reading = batch.readings.get(*index)?;
            Some(SetAsideRow {
                set_aside_id: app.id(SetAsideId::new),
                node_id,
                stream_id: batch.stream_id,
                sequence: i64::try_from(batch.sequence).unwrap_or(i64::MAX),
                row_number: i32::try_from(*index).unwrap_or(i32::MAX),
                tenant_id: known.get(&reading.part_id).map(|part| part.tenant_id),
                part_id: reading.part_id,
                starts_at: reading.start,
                reason: reason.name().to_owned(),
                reading: serde_json::json!(reading),
                skew_ms,
                received_at: now,
                ruling: None,
            })
        })
        .collect()
}

/// The head of a stream's hash chain after a batch, from the head before it: it covers what the agent wrote to its spool,
/// not when it sent it.
pub(crate) fn link(head: &[u8], stream: StreamId, sequence: u64, readings: &[Reading]) -> Result<Vec<u8>, AppError> {
    let readings = serde_json::to_vec(readings).map_err(|e| AppError::Internal(e.to_string()))?;
    let mut hash = Sha256::new();
    hash.update(head);
    hash.update(stream.uuid().as_bytes());
    hash.update(sequence.to_be_bytes());
    hash.update(&readings);
    Ok(hash.finalize().to_vec())
}

impl App {
    /// Makes the tables of the months that a batch's rows may fall in.
    async fn make_months(&self, batch: &ReadingBatch, now: Instant) -> Result<(), AppError> {
        // rows of the future and of the far past are set aside, so no batch can make tables at will
        let earliest = now.plus_secs(-400 * 86_400);
        let latest = now.plus_secs(2 * 86_400);
        let starts = batch.readings.iter().map(|r| r.start).filter(|t| *t >= earliest && *t <= latest);
        // windows lie close together, and each has the month of its day
        let days: BTreeSet<i64> = starts.chain([now]).map(|t| t.as_millis().div_euclid(86_400_000)).collect();
        for day in days {
            self.make_reading_month(Instant::EPOCH.plus_secs(day * 86_400)).await?;
        }
        Ok(())
    }

    /// Makes the table of an instant's month, once.
    pub(crate) async fn make_reading_month(&self, at: Instant) -> Result<(), AppError> {
        let date = at.to_jiff().to_zoned(jiff::tz::TimeZone::UTC).date();
        let month = i32::from(date.year()) * 12 + i32::from(date.month());
        if self.months.lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains(&month) {
            return Ok(());
        }
        let mut tx = self.store.begin("make_month", Scope::Operator).await?;
        reading::make_month(&mut tx, at).await?;
        tx.commit().await?;
        self.months.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(month);
        Ok(())
    }
}
