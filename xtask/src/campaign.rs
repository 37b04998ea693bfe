//! `cargo xtask campaign crash`: builds the binary and the campaign, and runs it. docs/reliability.md says what it does.

use crate::{Outcome, step};

/// How a crash campaign runs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct CrashArgs {
    /// How many runs
    #[arg(long, default_value_t = 10)]
    runs: u64,
    /// The seed of the first run; each further one has the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs go on beside each other
    #[arg(long, default_value_t = 2)]
    jobs: u64,
}

pub fn crash(args: CrashArgs) -> Outcome {
    step::require_compiler()?;
    step::run(&mut step::cargo(&["build", "--quiet", "--workspace", "--bins"]))?;
    let built = step::built("debug");
    let numbers = [args.runs, args.seed, args.jobs].map(|number| number.to_string());
    let mut campaign = step::program(&built.join("crash-campaign").to_string_lossy(), &[]);
    step::run(campaign.args(numbers).env("GPULEDGER_BIN", built.join("gpuledger")))
}
