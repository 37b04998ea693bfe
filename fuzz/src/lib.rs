//! What is thrown at the parsers of outside input. A target is a function of bytes that panics when a property is broken;
//! whatever it does otherwise is fine. `tests/short.rs` runs each over its corpus and seeded mutations of it, with every
//! run of the tests; `cargo xtask fuzz` lets libFuzzer search, guided by coverage.

#![expect(clippy::unwrap_used, reason = "a panic is how a target tells what it found")]

mod batch;
mod body;
mod credential;
mod csv;
mod draw;
mod query;
mod smi;
mod unit;

pub use body::BODIES;

/// One thing to attack.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its corpus is the folder of this name.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Fragments of good input, from which mutations are made too.
    pub words: &'static [&'static str],
}

/// Every target.
pub const TARGETS: [Target; 7] = [
    Target { name: "batch", run: batch::run, words: &[] },
    Target { name: "body", run: body::run, words: body::WORDS },
    Target { name: "credential", run: credential::run, words: credential::WORDS },
    Target { name: "csv", run: csv::run, words: &["=", "+", "-", "@", "\t", "\r\n", "\"", ",", "'"] },
    Target { name: "query", run: query::run, words: query::WORDS },
    Target { name: "smi", run: smi::run, words: smi::WORDS },
    Target { name: "unit", run: unit::run, words: unit::WORDS },
];
