//! `cargo xtask bench`: how fast the ledger is on this machine, beside what bare PostgreSQL does there in the same run.
//!
//! Absolute figures say more of a machine than of a program, so each bench measures a yardstick of its own, takes turns
//! with it, and gives the ratio. A bench is a file with `pub async fn run(&Settings) -> Outcome<Vec<Row>>`, a variant of
//! [`Bench`] and its arm in [`measure`].

#![expect(clippy::float_arithmetic, reason = "rates and ratios are measurements, not amounts")]
#![expect(clippy::print_stdout, reason = "a command line program speaks on its output")]

mod admission;
mod client;
mod close;
mod deployment;
mod idle;
mod ingest;
mod load;
mod postgres_server;
mod process;
mod row;
mod yardstick;

use clap::{Parser, ValueEnum};
use row::Row;
use std::{path::PathBuf, process::ExitCode, time::Instant};

/// Done, or a message for people.
type Outcome<T> = Result<T, String>;

/// Measures the ledger beside bare PostgreSQL.
#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Args {
    /// Which; all of them where none is named
    names: Vec<Bench>,
    /// Write the rows as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Everything once, small and short: shows that the benches work, and says nothing of speed
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Requests and releases of memory, through HTTP
    Admission,
    /// Readings, through HTTP
    Ingest,
    /// A month's invoices
    Close,
    /// Memory and time that server and agent take at rest
    Idle,
}

/// How large and how long.
#[derive(Debug, Clone, Copy)]
struct Settings {
    quick: bool,
    /// How often each side has its turn; the median counts.
    turns: usize,
}

impl Settings {
    /// The size for this run, of that of a smoke run and that of a measurement.
    const fn size<T: Copy>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

async fn measure(bench: Bench, settings: Settings) -> Outcome<Vec<Row>> {
    match bench {
        Bench::Admission => admission::run(settings).await,
        Bench::Ingest => ingest::run(settings).await,
        Bench::Close => close::run(settings).await,
        Bench::Idle => idle::run(settings).await,
    }
}

// the clients share the machine with what they measure: one thread is all they get
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Outcome<()> {
    let settings = Settings { quick: args.quick, turns: if args.quick { 1 } else { 3 } };
    let benches = if args.names.is_empty() { Bench::value_variants() } else { &args.names };
    let mut rows = Vec::new();
    for bench in benches {
        let since = Instant::now();
        rows.extend(measure(*bench, settings).await?);
        eprintln!("({} s)", since.elapsed().as_secs());
    }
    println!("{}", row::table(&rows));
    let Some(file) = args.json else { return Ok(()) };
    let shown = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let json = serde_json::to_string_pretty(&rows).map_err(|e| shown(&e))?;
    std::fs::write(&file, json).map_err(|e| shown(&e))
}
