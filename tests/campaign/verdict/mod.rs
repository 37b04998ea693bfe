//! The verdict: what was acknowledged against what stands in the ledger, with sums of its own.

mod admission;
mod allocation;
mod deployment;
mod invoice;
mod meter;
mod reading;

use crate::{facts::Facts, installation::Installation, run::World};
use types::Instant;

/// Everything that is wrong, in words, by what stood in the ledger `before` the last loss of power and at the end.
pub async fn of(world: &World, installation: &Installation, before: &Facts, facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    allocation::check(world, facts, &mut wrong);
    admission::check(world, before, &mut wrong);
    admission::check(world, facts, &mut wrong);
    meter::check(world, facts, &mut wrong);
    meter::check_hours(world, installation, facts, &mut wrong).await;
    reading::check(world, facts, &mut wrong);
    invoice::check(world, facts, &mut wrong);
    invoice::check_verification(world, installation, facts, &mut wrong).await;
    deployment::check(installation, &mut wrong).await;
    wrong.0
}

/// Collects violations.
#[derive(Debug, Default)]
pub struct Wrong(Vec<String>);

impl Wrong {
    /// Notes a violation unless this holds.
    pub fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }
}

/// A point in time of an answer, in milliseconds.
fn millis(value: &serde_json::Value) -> Option<i64> {
    Some(value.as_str()?.parse::<Instant>().ok()?.as_millis())
}

/// Like [`millis`], of a text.
fn millis_of(text: &str) -> Option<i64> {
    Some(text.parse::<Instant>().ok()?.as_millis())
}

const FINAL: [&str; 5] = ["released", "expired", "cancelled", "preempted", "lost"];
