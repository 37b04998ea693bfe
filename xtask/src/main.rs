//! The project's own commands: `cargo xtask demo`, `test`, `bench`, `campaign`, `attack`, `fuzz`, `tidy`, `openapi`, `sqlx`
//! and `ci`. What has a branch in it is written here in Rust rather than in a script; `.ci/run` calls the same verbs that
//! people type.

#![expect(clippy::print_stdout, reason = "a command line program speaks on its output")]

mod attack;
mod bench;
mod campaign;
mod ci;
mod demo;
mod fuzz;
mod openapi;
mod sqlx;
mod step;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build, then run the demonstration with its own Postgres until Ctrl-C.
    Demo {
        /// Passed on to `gpuledger demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run every test, on one Postgres that is found or started for them.
    Test {
        /// Passed on to `cargo nextest run` (or `cargo test`, where nextest is not installed).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure how fast the ledger is, beside bare Postgres in the same run. `--help` names the benches.
    Bench {
        /// Passed on: names of benches, `--json FILE`, `--quick`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Kill real processes under load, over and over, and compare with what was acknowledged: docs/reliability.md.
    #[command(subcommand)]
    Campaign(Campaign),
    /// Throw generated requests at the served API with the credential of each role, and compare with the document.
    Attack(attack::Attack),
    /// Let libFuzzer search for what breaks the parsers of outside input.
    Fuzz {
        /// Only this one of `fuzz/corpus`.
        target: Option<String>,
        /// For each target.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Check the rules of the code's shape. Each violation comes with the rule's reason.
    Tidy {
        /// Record the checksums of new migrations, which are frozen from then on.
        #[arg(long)]
        bless: bool,
    },
    /// Renew openapi/openapi.json from the handlers.
    Openapi {
        /// Change nothing; fail if it is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Renew .sqlx, the descriptions of all queries, from a database with the migrations applied.
    Sqlx {
        /// Change nothing; fail if they are out of date.
        #[arg(long)]
        check: bool,
    },
    /// Everything that has to pass before a change is merged.
    Ci,
}

#[derive(Subcommand)]
enum Campaign {
    /// Kill server, agent and Postgres with SIGKILL at random moments.
    Crash(campaign::CrashArgs),
}

/// Done, or a message for people.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let outcome = match Xtask::parse().verb {
        Verb::Demo { args } => demo::run(&args),
        Verb::Test { args } => test::run(&args),
        Verb::Bench { args } => bench::run(&args),
        Verb::Campaign(Campaign::Crash(args)) => campaign::crash(args),
        Verb::Attack(attack) => attack.run(),
        Verb::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Verb::Tidy { bless } => tidy::run(bless),
        Verb::Openapi { check } => openapi::run(check),
        Verb::Sqlx { check } => sqlx::run(check),
        Verb::Ci => ci::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
