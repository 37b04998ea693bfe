//! Whether agents' streams are whole: each chain is made again from the rows that came in it.

use super::{Depth, Finding};
use crate::{App, error::AppError, reading::link};
use std::collections::BTreeMap;
use store::{
    Scope,
    doctor::stream::{self, SentRow, StreamMark},
};
use types::{StreamId, wire::Reading};

const CHECK: &str = "streams";
/// The length of a head once a batch was taken.
const HASH: usize = 32;

pub(super) async fn chains(app: &App, depth: Depth) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin_snapshot("doctor.streams", Scope::Operator).await?;
    let marks = stream::marks(&mut tx).await?;
    let mut faults: Vec<String> = marks.iter().filter_map(mark_fault).collect();
    if depth == Depth::Everything {
        let mut streams: BTreeMap<StreamId, Chain> =
            marks.iter().map(|mark| (mark.stream_id, Chain::default())).collect();
        let mut unknown = None;
        stream::begin_rows(&mut tx).await?;
        loop {
            let rows = stream::next_rows(&mut tx).await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                match streams.get_mut(&row.stream_id) {
                    Some(chain) => chain.take(row)?,
                    None if unknown == Some(row.stream_id) => {}
                    None => {
                        unknown = Some(row.stream_id);
                        faults.push(format!("stream {} has rows and no mark", row.stream_id));
                    }
                }
            }
        }
        for mark in &marks {
            let chain = streams.remove(&mark.stream_id).unwrap_or_default();
            faults.extend(chain.fault(mark)?);
        }
    }
    if faults.is_empty() {
        return Ok(vec![Finding::good(
            CHECK,
            match depth {
                Depth::Recent => {
                    format!("{} have a mark; `gpuledger doctor --full` makes their chains again", marks.len())
                }
                Depth::Everything => format!("the chains of {} are identical when made again", marks.len()),
            },
        )]);
    }
    let remedy = "something changed readings, rows set aside or marks behind the service: compare with a backup";
    Ok(faults.into_iter().map(|what| Finding::problem(CHECK, what, remedy)).collect())
}

/// What is wrong with a mark by itself.
fn mark_fault(mark: &StreamMark) -> Option<String> {
    let due = if mark.sequence == 0 { 0 } else { HASH };
    (mark.head_hash.len() != due)
        .then(|| format!("stream {} of node {} has no head at batch {}", mark.stream_id, mark.node_id, mark.sequence))
}

/// A chain that is being made again.
#[derive(Default)]
struct Chain {
    head: Vec<u8>,
    /// Batches that the head covers.
    sequence: u64,
    /// The rows of the next batch that has any, those set aside first.
    batch: Vec<SentRow>,
}

impl Chain {
    fn take(&mut self, row: SentRow) -> Result<(), AppError> {
        if self.batch.last().is_some_and(|last| last.sequence != row.sequence) {
            self.close(row.stream_id)?;
        }
        self.batch.push(row);
        Ok(())
    }

    /// Links the batch that was gathered, and the empty ones before it.
    fn close(&mut self, stream: StreamId) -> Result<(), AppError> {
        let Some(first) = self.batch.first() else { return Ok(()) };
        let sequence = u64::try_from(first.sequence).unwrap_or(0);
        self.skip_to(stream, sequence.saturating_sub(1))?;
        let readings = in_order(std::mem::take(&mut self.batch));
        self.head = link(&self.head, stream, sequence, &readings)?;
        self.sequence = sequence;
        Ok(())
    }

    /// A batch without rows leaves none.
    fn skip_to(&mut self, stream: StreamId, sequence: u64) -> Result<(), AppError> {
        while self.sequence < sequence {
            self.sequence += 1;
            self.head = link(&self.head, stream, self.sequence, &[])?;
        }
        Ok(())
    }

    /// Where it does not end as its mark says.
    fn fault(mut self, mark: &StreamMark) -> Result<Option<String>, AppError> {
        let due = u64::try_from(mark.sequence).unwrap_or(0);
        let last = self.batch.first().map_or(self.sequence, |row| u64::try_from(row.sequence).unwrap_or(0));
        let (stream, node) = (mark.stream_id, mark.node_id);
        if last > due {
            return Ok(Some(format!("stream {stream} of node {node} has rows of batch {last}, its mark is at {due}")));
        }
        self.close(stream)?;
        self.skip_to(stream, due)?;
        Ok((self.head != mark.head_hash).then(|| {
            format!("stream {stream} of node {node}: its {due} batches, made again, do not give the head of its chain")
        }))
    }
}

/// A batch as it was sent: rows set aside stand at their places, accepted ones fill the others.
fn in_order(rows: Vec<SentRow>) -> Vec<Reading> {
    let (aside, accepted): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.row_number.is_some());
    let mut accepted = accepted.into_iter().map(|row| row.reading);
    let mut readings = Vec::new();
    for row in aside {
        let place = row.row_number.and_then(|place| usize::try_from(place).ok()).unwrap_or(0);
        while readings.len() < place
            && let Some(next) = accepted.next()
        {
            readings.push(next);
        }
        readings.push(row.reading);
    }
    readings.extend(accepted);
    readings
}
