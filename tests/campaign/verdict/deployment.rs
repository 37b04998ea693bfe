//! What the product says of itself: the doctor's findings, and the logs of all processes.

use super::Wrong;
use crate::installation::Installation;
use serde_json::Value;
use std::time::{Duration, Instant};

/// What may be said at level ERROR in a run: the connection pool's own word when PostgreSQL dies while it greets.
const EXPECTED: [&str; 1] = ["sqlx_core::pool::inner: error returned from after_connect"];
/// What is so in each run on purpose: its clock is moved, and its Postgres archives nothing.
const ON_PURPOSE: [&str; 2] = ["clock", "backup"];
/// How long a failed task may take until it is good.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn check(installation: &Installation, wrong: &mut Wrong) {
    let since = Instant::now();
    // a task that met no Postgres is tried again shortly
    let mut bad = complaints(installation);
    while !bad.is_empty() && since.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bad = complaints(installation);
    }
    for finding in bad {
        wrong.unless(false, || format!("doctor: {finding}"));
    }
    for name in installation.names() {
        for line in installation.log(&name).lines() {
            let is_error = line.contains(" ERROR ") || line.contains("panicked at");
            let is_expected = EXPECTED.iter().any(|expected| line.contains(expected));
            wrong.unless(!is_error || is_expected, || format!("{name} said: {line}"));
        }
    }
}

/// What the doctor finds that is not good.
fn complaints(installation: &Installation) -> Vec<Value> {
    let (_, said) = installation.ask(&["doctor", "--json"]);
    let findings: Value = serde_json::from_str(&said).unwrap_or_default();
    match findings["findings"].as_array() {
        Some(all) => all
            .iter()
            .filter(|f| f["severity"] != "good" && !ON_PURPOSE.iter().any(|check| f["check"] == *check))
            .cloned()
            .collect(),
        None => vec![Value::String(said)],
    }
}
