//! Every millisecond of every part is metered once, from confirmation to the end, and never past the last sign of life.

use super::{Wrong, millis_of};
use crate::{
    facts::{AllocationRow, Facts, HistoryRow, IntervalRow, PartRow},
    installation::Installation,
    record::Known,
    run::World,
};
use reqwest::Method;
use std::collections::BTreeMap;

pub fn check(world: &World, facts: &Facts, wrong: &mut Wrong) {
    let record = world.record.inner();
    let allocations: BTreeMap<&str, &AllocationRow> =
        facts.allocations.iter().map(|row| (row.id.as_str(), row)).collect();
    for part in &facts.parts {
        let intervals: Vec<&IntervalRow> = facts.intervals.iter().filter(|row| row.part == part.id).collect();
        let Some(allocation) = allocations.get(part.allocation.as_str()) else {
            wrong.unless(false, || format!("part {} belongs to nothing", part.id));
            continue;
        };
        wrong.unless(part.ended_at == allocation.ended_at && part.active_from == allocation.active_since, || {
            format!("{part:?} has other times than {allocation:?}")
        });
        let Some(from) = part.active_from else {
            wrong.unless(intervals.is_empty(), || {
                format!("{} was never confirmed, and is metered: {intervals:?}", part.allocation)
            });
            continue;
        };
        let mut at = from;
        for interval in &intervals {
            let follows = interval.starts_at == at && interval.bytes == part.bytes && interval.gpu == part.gpu;
            wrong.unless(follows, || format!("{}: {interval:?} does not follow {at}", part.allocation));
            at = interval.ends_at;
        }
        let end = facts.history.iter().rfind(|change| change.allocation == part.allocation);
        let known = record.known.get(&part.allocation).cloned().unwrap_or_default();
        check_end(part, from, at, allocation, end, &known, wrong);
        check_unbilled(part, from, at, facts, wrong);
    }
}

/// Where the meter of a part stopped: `until`.
fn check_end(
    part: &PartRow,
    from: i64,
    until: i64,
    allocation: &AllocationRow,
    end: Option<&HistoryRow>,
    known: &Known,
    wrong: &mut Wrong,
) {
    let id = &part.allocation;
    let Some(ended) = allocation.ended_at else { return };
    let lived_until = end.and_then(|end| millis_of(end.lived_until.as_deref()?));
    wrong.unless(until <= ended, || format!("{id}: metered to {until}, past its end at {ended}"));
    match allocation.cause.as_str() {
        // to the very instant that its owner saw
        "owner" => wrong.unless(until == ended, || format!("{id}: released at {ended}, metered to {until}")),
        "exited" => {
            let told = known.exit.map(|(at, _)| at.clamp(from, ended));
            wrong.unless(told == Some(until), || format!("{id}: ended at {told:?} by its node, metered to {until}"));
        }
        "max_duration" => {
            let longest = from + i64::from(allocation.max_duration_s.unwrap_or(0)) * 1000;
            wrong.unless(until >= longest, || format!("{id}: may run to {longest}, metered to {until}"));
        }
        "vanished" | "node_lost" | "node_rebooted" => {
            let sign =
                known.last_sign.unwrap_or(from).max(known.confirm.and_then(|sent| sent.answered).unwrap_or(from));
            wrong.unless(until <= sign, || format!("{id}: metered to {until}, the last sign of life was by {sign}"));
        }
        other => wrong.unless(false, || format!("{id}: ended by {other}, which nothing in the run explains")),
    }
    if allocation.cause != "owner" {
        wrong.unless(lived_until.is_none_or(|lived| lived.clamp(from, ended) == until), || {
            format!("{id}: lived until {lived_until:?}, metered to {until}")
        });
    }
}

/// Before confirmation and after the last sign of life, what was kept is on record as not billed.
fn check_unbilled(part: &PartRow, from: i64, until: i64, facts: &Facts, wrong: &mut Wrong) {
    let spans = facts.unbilled.iter().filter(|row| row.part == part.id);
    let sum =
        |kind: &str| spans.clone().filter(|row| row.kind == kind).map(|row| row.ends_at - row.starts_at).sum::<i64>();
    let (held, unconfirmed) = (sum("held"), sum("unconfirmed"));
    let after = part.ended_at.map_or(0, |ended| ended - until);
    wrong.unless(held == from - part.held_from, || {
        format!("{}: held for {held} ms, confirmed after {}", part.allocation, from - part.held_from)
    });
    wrong.unless(unconfirmed == after, || format!("{}: unconfirmed for {unconfirmed} ms of {after}", part.allocation));
}

/// Every hour of every card balances, and is metered as the intervals say.
pub async fn check_hours(world: &World, installation: &Installation, facts: &Facts, wrong: &mut Wrong) {
    let client = installation.client().with(&world.operator_key);
    let at = |millis: i64| types::Instant::from_millis(millis).unwrap();
    let (from, to) = (world.edge_ms - 2 * 86_400_000, world.edge_ms + 40 * 86_400_000);
    for gpu in &facts.gpus {
        let path = format!("/v1/balance?gpu_id={}&from={}&to={}", gpu.id, at(from), at(to));
        let answer = client.send(client.request(Method::GET, &path)).await;
        let balance = &answer.json["items"][0];
        wrong.unless(answer.status == 200 && balance["balances"] == true, || {
            let hours = balance["hours"].as_array().into_iter().flatten();
            let odd: Vec<_> = hours.filter(|hour| hour["balances"] != true).take(3).collect();
            format!("card {} does not balance: {} {odd:?}", gpu.id, answer.status)
        });
        let hours = balance["hours"].as_array().into_iter().flatten();
        let sum = |field: &str| -> i128 {
            hours.clone().map(|hour| hour[field].as_str().and_then(|text| text.parse::<i128>().ok()).unwrap_or(0)).sum()
        };
        let of = |bytes: i64, starts_at: i64, ends_at: i64| i128::from(bytes) * i128::from(ends_at - starts_at);
        let over =
            hours.clone().filter_map(|hour| super::millis(&hour["hour"])).max().map_or(0, |hour| hour + 3_600_000);
        let metered: i128 = facts
            .intervals
            .iter()
            .filter(|row| row.gpu == gpu.id)
            .map(|row| of(row.bytes, row.starts_at, row.ends_at.min(over).max(row.starts_at.min(over))))
            .sum();
        wrong.unless(sum("metered") == metered, || {
            format!("card {}: hours say {} byte-ms metered, intervals {metered}", gpu.id, sum("metered"))
        });
    }
}
