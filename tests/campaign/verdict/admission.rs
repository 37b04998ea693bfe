//! Quotas and cards: never over at any time, and in the end what is open and nothing else.

use super::{FINAL, Wrong};
use crate::{facts::Facts, run::World};
use std::collections::{BTreeMap, BTreeSet};

pub fn check(world: &World, facts: &Facts, wrong: &mut Wrong) {
    for (number, tenant) in world.tenants.iter().enumerate() {
        replay(world, facts, number, &tenant.id, wrong);
    }
    check_cards(facts, wrong);
}

/// A limit, and from when until when it can have been in force.
struct InForce {
    from: i64,
    until: i64,
    bytes: Option<i128>,
    allocations: Option<i64>,
}

/// The limits of a tenant: each from its first sending until the next one was acknowledged.
fn limits(world: &World, tenant: usize) -> Vec<InForce> {
    let planned = &world.plan.tenants[tenant];
    let first = InForce {
        from: i64::MIN,
        until: i64::MAX,
        bytes: Some(planned.limit_bytes),
        allocations: planned.limit_allocations,
    };
    let mut all = vec![first];
    for limit in world.record.inner().limits.iter().filter(|limit| limit.tenant == tenant) {
        if let (Some(last), Some(answered)) = (all.last_mut(), limit.sent.answered) {
            last.until = answered;
        }
        let (bytes, allocations) = (limit.bytes, limit.allocations);
        all.push(InForce { from: limit.sent.first, until: i64::MAX, bytes, allocations });
    }
    all
}

/// Goes through a tenant's history and adds up what it holds.
fn replay(world: &World, facts: &Facts, number: usize, tenant: &str, wrong: &mut Wrong) {
    let limits = limits(world, number);
    let sizes: BTreeMap<&str, i128> =
        facts.allocations.iter().map(|row| (row.id.as_str(), i128::from(row.memory) * i128::from(row.gpus))).collect();
    let mut held: BTreeSet<&str> = BTreeSet::new();
    let mut used = 0_i128;
    for change in facts.history.iter().filter(|change| change.tenant == tenant) {
        let size = sizes.get(change.allocation.as_str()).copied().unwrap_or(0);
        if change.to_state == "held" {
            wrong.unless(held.insert(&change.allocation), || format!("{} was granted twice", change.allocation));
            used += size;
            let count = i64::try_from(held.len()).unwrap();
            // the time of a grant is that of its decision, and the limit was read a moment before or after
            let fits = limits
                .iter()
                .filter(|limit| {
                    limit.from.saturating_sub(50) <= change.at && change.at <= limit.until.saturating_add(50)
                })
                .any(|limit| {
                    limit.bytes.is_none_or(|most| used <= most) && limit.allocations.is_none_or(|most| count <= most)
                });
            wrong.unless(fits, || {
                format!(
                    "tenant {number} holds {used} bytes in {count} allocations at {}: over every limit then",
                    change.at
                )
            });
        } else if FINAL.contains(&change.to_state.as_str()) && held.remove(change.allocation.as_str()) {
            used -= size;
        }
    }
    for row in facts.quotas.iter().filter(|row| row.tenant == tenant) {
        let counted = (i128::from(row.used_bytes), i64::from(row.used_allocations));
        let open = (used, i64::try_from(held.len()).unwrap());
        wrong.unless(counted == open, || {
            format!("the quota of tenant {number} ({}) counts {counted:?}, open is {open:?}", row.level)
        });
        if row.level == "tenant" {
            let last = limits.last().map(|limit| (limit.bytes, limit.allocations));
            let stored = (row.limit_bytes.map(i128::from), row.limit_allocations.map(i64::from));
            wrong.unless(last == Some(stored), || {
                format!("the limits of tenant {number} are {stored:?}, last acknowledged was {last:?}")
            });
        }
    }
}

/// No card ever gave more than it has.
fn check_cards(facts: &Facts, wrong: &mut Wrong) {
    for gpu in &facts.gpus {
        // ends before starts, as spans are half-open
        let mut changes: Vec<(i64, i128)> = Vec::new();
        for part in facts.parts.iter().filter(|part| part.gpu == gpu.id) {
            changes.push((part.held_from, i128::from(part.bytes)));
            changes.extend(part.ended_at.map(|at| (at, -i128::from(part.bytes))));
        }
        changes.sort_unstable();
        let mut granted = 0;
        for (at, change) in changes {
            granted += change;
            wrong.unless(granted <= i128::from(gpu.allocatable), || {
                format!("card {} gave {granted} of {} bytes at {at}", gpu.id, gpu.allocatable)
            });
        }
        wrong.unless(granted == i128::from(gpu.granted), || {
            format!("card {} counts {} bytes, its parts are {granted}", gpu.id, gpu.granted)
        });
    }
}
