//! `cargo xtask ci`: what has to pass before a change is merged. All steps run, so that one report names all that is
//! wrong.

use crate::{Outcome, attack::Attack, bench, openapi, sqlx, step, test, tidy};
use std::time::{Duration, Instant};

/// A step's name and what it does.
type Step = (&'static str, fn() -> Outcome);

const STEPS: [Step; 8] = [
    ("formatting", || step::run(&mut step::cargo(&["fmt", "--all", "--check"]))),
    ("tidy", || tidy::run(false)),
    ("queries", || sqlx::run(true)),
    ("clippy", || {
        step::run(&mut step::cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]))
    }),
    ("openapi", || openapi::run(true)),
    ("tests", || test::run(&[])),
    ("attack", || Attack::SHORT.run()),
    // that the benches work: figures of a smoke run mean nothing, so there is no threshold
    ("benches", || bench::run(&["--quick".to_owned()])),
];

pub fn run() -> Outcome {
    let start = Instant::now();
    let mut report: Vec<(&str, Duration, Outcome)> = Vec::new();
    for (name, step) in STEPS {
        println!("== {name}");
        let since = Instant::now();
        let outcome = step();
        if let Err(message) = &outcome {
            println!("{message}");
        }
        report.push((name, since.elapsed(), outcome));
    }
    println!("== summary");
    for (name, took, outcome) in &report {
        println!("{name:<12} {:>5} s  {}", took.as_secs(), if outcome.is_ok() { "passed" } else { "FAILED" });
    }
    println!("{:<12} {:>5} s", "all", start.elapsed().as_secs());
    let failed: Vec<&str> = report.iter().filter(|(_, _, o)| o.is_err()).map(|(name, _, _)| *name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
