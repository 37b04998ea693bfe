//! `cargo xtask bench`: builds what is measured and what measures, and runs it.

use crate::{Outcome, step};

/// Measures. A smoke run takes what a test run has built already.
pub fn run(args: &[String]) -> Outcome {
    step::require_compiler()?;
    let quick = args.iter().any(|arg| arg == "--quick");
    let (profile, folder) = if quick { ("dev", "debug") } else { ("release", "release") };
    let build = ["build", "--profile", profile, "--package", "gpuledger", "--package", "it", "--bin", "gpuledger"];
    step::run(step::cargo(&build).args(["--bin", "bench"]))?;
    let built = step::built(folder);
    let mut bench = step::program(&built.join("bench").to_string_lossy(), &[]);
    step::run(bench.args(args).env("GPULEDGER_BIN", built.join("gpuledger")))
}
