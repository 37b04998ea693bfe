//! What the product says of itself: the doctor's findings, and the logs of all processes.

use super::Wrong;
use crate::installation::Installation;
use serde_json::Value;

/// What may be said at level ERROR in a run.
const EXPECTED: [&str; 0] = [];

pub fn check(installation: &Installation, wrong: &mut Wrong) {
    let (_, said) = installation.ask(&["doctor", "--json"]);
    let findings: Value = serde_json::from_str(&said).unwrap_or_default();
    let findings = findings["findings"].as_array().cloned().unwrap_or_default();
    wrong.unless(!findings.is_empty(), || format!("the doctor says nothing: {said}"));
    for finding in findings {
        // the clock of this run is moved on purpose
        let is_good = finding["severity"] == "good" || finding["check"] == "clock";
        wrong.unless(is_good, || format!("doctor: {finding}"));
    }
    for name in installation.names() {
        for line in installation.log(&name).lines() {
            let is_error = line.contains(" ERROR ") || line.contains("panicked at");
            let is_expected = EXPECTED.iter().any(|expected| line.contains(expected));
            wrong.unless(!is_error || is_expected, || format!("{name} said: {line}"));
        }
    }
}
