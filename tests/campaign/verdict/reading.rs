//! Batches: each acknowledged one is there exactly once, and none is lost.

use super::Wrong;
use crate::{facts::Facts, run::World};
use serde_json::Value;
use std::collections::BTreeMap;

/// Part, start, end, and what was used.
type Reading = (String, i64, i64, Option<String>);

pub fn check(world: &World, facts: &Facts, wrong: &mut Wrong) {
    let record = world.record.inner();
    for row in &facts.set_aside {
        wrong.unless(false, || {
            format!("a row of batch {} of {} was set aside: {}", row.sequence, row.stream, row.reason)
        });
    }
    let mut stored: BTreeMap<(&str, i64), Vec<Reading>> = BTreeMap::new();
    for row in &facts.readings {
        // by the node's clock: a skew above two seconds, which a slow upload looks like, is corrected and marked
        let (start, end) = (row.starts_at - row.skew_ms, row.ends_at - row.skew_ms);
        let reading = (row.part.clone(), start, end, row.used.clone());
        stored.entry((&row.stream, row.sequence)).or_default().push(reading);
    }
    for batch in &record.batches {
        let mut kept: Vec<_> = batch.readings.iter().filter_map(reading).collect();
        kept.sort_unstable();
        let sequence = i64::try_from(batch.sequence).unwrap();
        let mut there = stored.remove(&(batch.stream.as_str(), sequence)).unwrap_or_default();
        there.sort_unstable();
        let skews = facts.readings.iter().filter(|row| row.stream == batch.stream && row.sequence == sequence);
        for row in skews.filter(|row| row.skew_ms != 0) {
            let is_slow = (2_001..=batch.slowest_ms).contains(&row.skew_ms);
            wrong.unless(is_slow, || {
                format!("corrected by {} ms, on its way for {}: {row:?}", row.skew_ms, batch.slowest_ms)
            });
        }
        wrong.unless(batch.acknowledged.is_some(), || {
            format!("batch {sequence} of {} was never acknowledged", batch.stream)
        });
        wrong.unless(there == kept, || {
            format!("batch {sequence} of {}: {kept:?} was sent, {there:?} is there", batch.stream)
        });
        let accepted = batch.acknowledged.map_or(0, |(accepted, _)| accepted);
        // 0 where the only answer that was read was a repeat's
        wrong.unless(accepted == 0 || accepted == kept.len() as u64, || {
            format!("batch {sequence} of {}: {accepted} of {} rows were acknowledged", batch.stream, kept.len())
        });
    }
    // what is left is the real agent's: one stream, without a gap, from a spool that never lost its place
    let scripted = |node: &str| record.nodes.values().any(|id| id == node);
    let streams: Vec<_> = facts.streams.iter().filter(|stream| !scripted(&stream.node)).collect();
    wrong.unless(streams.len() <= 1, || format!("the agent began {} streams: its spool lost its place", streams.len()));
    for stream in streams {
        for sequence in 1..=stream.sequence {
            wrong.unless(stored.remove(&(stream.id.as_str(), sequence)).is_some(), || {
                format!("the agent's batch {sequence} left no reading")
            });
        }
    }
    wrong.unless(stored.is_empty(), || format!("nobody sent {stored:?}"));
    for spooled in &record.spooled {
        let same = facts
            .readings
            .iter()
            .filter(|row| row.part == spooled.0 && row.starts_at - row.skew_ms == spooled.1)
            .collect::<Vec<_>>();
        let is_there = same.len() == 1 && same[0].ends_at - same[0].skew_ms == spooled.2 && same[0].used == spooled.3;
        wrong.unless(is_there, || format!("the agent kept {spooled:?}, in the ledger is {same:?}"));
    }
    let mut by_node: Vec<_> =
        facts.readings.iter().map(|row| (&row.part, row.starts_at - row.skew_ms, row.ends_at - row.skew_ms)).collect();
    by_node.sort_unstable();
    for pair in by_node.windows(2) {
        let follows = pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
        wrong.unless(follows, || format!("two readings of one time: {pair:?}"));
    }
}

fn reading(row: &Value) -> Option<Reading> {
    let text = |field: &str| row[field].as_str().map(str::to_owned);
    Some((text("part_id")?, super::millis(&row["start"])?, super::millis(&row["end"])?, text("used")))
}
