//! Every acknowledged allocation is there, once, in a state that follows; no answer was taken back.

use super::{FINAL, Wrong, millis};
use crate::{
    facts::{AllocationRow, Facts, HistoryRow},
    record::{Asked, Known, Sent, Settled},
    run::World,
};
use serde_json::Value;
use std::collections::BTreeMap;

pub fn check(world: &World, facts: &Facts, wrong: &mut Wrong) {
    let record = world.record.inner();
    let rows: BTreeMap<&str, &AllocationRow> = facts.allocations.iter().map(|row| (row.id.as_str(), row)).collect();
    let keys: BTreeMap<(&str, &str), Option<&str>> =
        facts.keys.iter().map(|row| ((row.tenant.as_str(), row.key.as_str()), row.allocation.as_deref())).collect();
    for asked in &record.asked {
        let tenant = world.tenants[asked.tenant].id.as_str();
        let stored = keys.get(&(tenant, asked.key.as_str()));
        match &asked.answer {
            Some(Settled::Allocation(id)) => {
                wrong.unless(stored == Some(&Some(id)), || {
                    format!("{} got {id}, the ledger says {stored:?}", asked.key)
                });
            }
            Some(Settled::Refused(why)) => {
                wrong.unless(stored == Some(&None), || {
                    format!("{} was refused ({why}), the ledger says {stored:?}", asked.key)
                });
            }
            // whoever gave up may have been served or not
            None => {}
        }
        if let Some(Some(id)) = stored {
            let row = rows.get(id);
            wrong.unless(row.is_some_and(|row| is_as_asked(row, asked, tenant)), || {
                format!("{} is not what {} asked for: {row:?}", id, asked.key)
            });
        }
    }
    // nothing was granted that nobody asked for, and no key has two
    let mut of_keys: Vec<&str> = facts.keys.iter().filter_map(|row| row.allocation.as_deref()).collect();
    of_keys.sort_unstable();
    let all: Vec<&str> = rows.keys().copied().collect();
    wrong.unless(of_keys == all, || format!("{} keys have allocations, but there are {}", of_keys.len(), all.len()));
    for row in &facts.keys {
        let was_asked =
            record.asked.iter().any(|asked| asked.key == row.key && world.tenants[asked.tenant].id == row.tenant);
        wrong.unless(was_asked, || format!("nobody sent the key {}", row.key));
    }
    for (id, known) in &record.known {
        match rows.get(id.as_str()) {
            Some(row) => {
                let history: Vec<&HistoryRow> = facts.history.iter().filter(|h| h.allocation == *id).collect();
                check_one(row, known, &history, wrong);
            }
            None => wrong.unless(false, || format!("{id} was acknowledged and is gone")),
        }
    }
}

fn is_as_asked(row: &AllocationRow, asked: &Asked, tenant: &str) -> bool {
    row.tenant == tenant
        && i128::from(row.memory) == asked.memory
        && i128::from(row.gpus) == asked.gpus
        && row.max_duration_s.map(i64::from) == asked.max_duration_s
}

fn check_one(row: &AllocationRow, known: &Known, history: &[&HistoryRow], wrong: &mut Wrong) {
    let id = &row.id;
    // what was shown and what is final stays so
    for (at, view) in &known.views {
        for (field, now) in [("active_since", row.active_since), ("ended_at", row.ended_at)] {
            let shown = millis(&view[field]);
            wrong.unless(shown.is_none() || shown == now, || {
                format!("{id}: {field} was shown as {shown:?} at {at}, and is {now:?}")
            });
        }
        let state = view["state"].as_str().unwrap_or_default();
        let stays = !FINAL.contains(&state) || (state == row.state && view["cause"] == row.cause.as_str());
        wrong.unless(stays, || {
            format!("{id}: was {state} ({}) at {at}, and is {} ({})", view["cause"], row.state, row.cause)
        });
        let follows = history.iter().any(|h| h.to_state == state);
        wrong.unless(follows, || format!("{id}: was {state} at {at}, which its history does not know"));
        check_parts(id, view, wrong);
    }
    check_history(row, history, wrong);
    // each change that somebody must have wanted was wanted, within the time of asking
    let asked = |cause: &str| match cause {
        "confirmed" => Some(known.confirm),
        "owner" => Some(known.release),
        "cancelled" => Some(known.cancel.or(known.release)),
        "exited" => Some(known.exit.map(|(_, sent)| sent)),
        _ => None,
    };
    for change in history {
        let Some(sent) = asked(&change.cause) else { continue };
        let covers = |sent: Option<Sent>| sent.is_some_and(|sent| sent.covers(change.at));
        let both = change.cause == "cancelled" && covers(known.release);
        wrong.unless(covers(sent) || both, || {
            format!("{id}: {} at {}, but it was asked for in {sent:?}", change.cause, change.at)
        });
    }
    // an acknowledged end is an end
    let acknowledged = |sent: Option<Sent>| sent.is_some_and(|sent| sent.answered.is_some());
    let is_over = FINAL.contains(&row.state.as_str());
    wrong.unless(is_over || !acknowledged(known.release), || {
        format!("{id}: its release was acknowledged, and it is {}", row.state)
    });
    wrong.unless(is_over, || format!("{id}: everything was released, and it is {}", row.state));
}

/// One card twice would be one part too few.
fn check_parts(id: &str, view: &Value, wrong: &mut Wrong) {
    let parts: Vec<&str> =
        view["parts"].as_array().into_iter().flatten().filter_map(|part| part["gpu_id"].as_str()).collect();
    let mut cards = parts.clone();
    cards.sort_unstable();
    cards.dedup();
    let wanted = view["request"]["gpus"].as_u64().unwrap_or(1);
    let fits = parts.is_empty() || (cards.len() == parts.len() && cards.len() as u64 == wanted);
    wrong.unless(fits, || format!("{id}: {wanted} cards were wanted, and it has {parts:?}"));
}

/// The changes follow one another and lead to what it is.
fn check_history(row: &AllocationRow, history: &[&HistoryRow], wrong: &mut Wrong) {
    let id = &row.id;
    let mut state: Option<&str> = None;
    for change in history {
        wrong.unless(change.from_state.as_deref() == state, || format!("{id}: {change:?} follows {state:?}"));
        wrong.unless(state.is_none_or(|state| !FINAL.contains(&state)), || {
            format!("{id}: {change:?} comes after its end")
        });
        state = Some(&change.to_state);
    }
    wrong.unless(state == Some(&row.state), || format!("{id}: its history ends {state:?}, and it is {}", row.state));
    let confirmed = history.iter().filter(|change| change.cause == "confirmed").count();
    wrong.unless(confirmed <= 1, || format!("{id}: was confirmed {confirmed} times"));
}
