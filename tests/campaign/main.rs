//! Crash campaigns: real processes under load are killed at random moments and started again, and what they then say is
//! compared with an independent model of what was acknowledged. `cargo xtask campaign crash` runs this; a seed makes the
//! world, each client's operations and the kills. docs/reliability.md says what is checked.

#![expect(clippy::unwrap_used, reason = "a campaign that cannot go on ends")]
#![expect(clippy::print_stdout, reason = "progress and verdict are what this program is for")]

mod facts;
mod installation;
mod kill;
mod member;
mod node;
mod operator;
mod plan;
mod postmaster;
mod record;
mod run;
mod verdict;

use run::Outcome;
use std::{
    env,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// What is to be run.
struct Wanted {
    runs: u64,
    /// Of the first run; each further one has the next.
    seed: u64,
    /// How many runs go on beside each other: most of a run is waiting for leases.
    jobs: u64,
}

fn wanted() -> Option<Wanted> {
    let numbers: Vec<u64> = env::args().skip(1).map(|text| text.parse().ok()).collect::<Option<_>>()?;
    let [runs, seed, jobs] = numbers[..] else { return None };
    Some(Wanted { runs, seed, jobs: jobs.clamp(1, 16) })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(wanted) = wanted() else {
        eprintln!("usage: crash-campaign RUNS SEED JOBS");
        return ExitCode::FAILURE;
    };
    let folder = folder();
    let template = Arc::new(installation::Template::make(&folder).await);
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let (done, mut outcomes) = mpsc::unbounded_channel();
    for _ in 0..wanted.jobs {
        let (next, done, template, folder) = (next.clone(), done.clone(), template.clone(), folder.clone());
        tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::SeqCst);
                if n >= wanted.runs {
                    return;
                }
                let seed = wanted.seed.wrapping_add(n);
                let place = folder.join(format!("run-{seed}"));
                // on a task of its own, so that a panic fails this run alone
                let run = tokio::spawn(run::run(seed, place.clone(), template.clone()));
                let outcome = run.await.unwrap_or_else(|e| Outcome::broken(seed, place, &e.to_string()));
                let _ = done.send(outcome);
            }
        });
    }
    drop(done);
    let mut sums = Sums::default();
    while let Some(outcome) = outcomes.recv().await {
        sums.add(&outcome);
        report(&outcome, &sums, wanted.runs, started.elapsed());
    }
    println!("{}", sums.text(started.elapsed()));
    installation::remove(&template.folder);
    if sums.failed.is_empty() {
        installation::remove(&folder);
        return ExitCode::SUCCESS;
    }
    println!("failed seeds: {:?}; logs and databases are kept in {}", sums.failed, folder.display());
    ExitCode::FAILURE
}

/// A folder that a Postgres under another user can reach.
fn folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("gpuledger-campaign-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// What all runs so far came to.
#[derive(Default)]
struct Sums {
    runs: u64,
    operations: u64,
    kills: u64,
    invoices: u64,
    readings: u64,
    failed: Vec<u64>,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.operations += outcome.operations;
        self.kills += outcome.kills;
        self.invoices += outcome.invoices;
        self.readings += outcome.readings;
        if !outcome.violations.is_empty() {
            self.failed.push(outcome.seed);
        }
    }

    fn text(&self, took: Duration) -> String {
        format!(
            "{} runs, {} operations acknowledged, {} kills, {} invoices, {} readings, {} runs failed, {} s",
            self.runs,
            self.operations,
            self.kills,
            self.invoices,
            self.readings,
            self.failed.len(),
            took.as_secs()
        )
    }
}

fn report(outcome: &Outcome, sums: &Sums, runs: u64, took: Duration) {
    let verdict = if outcome.violations.is_empty() { "good" } else { "VIOLATED" };
    println!(
        "{:>4}/{runs} seed {} {verdict}: {} operations, {} in {} ms, after {} s",
        sums.runs,
        outcome.seed,
        outcome.operations,
        outcome.killed,
        outcome.took.as_millis(),
        took.as_secs()
    );
    if outcome.violations.is_empty() {
        return;
    }
    println!("  again: cargo xtask campaign crash --runs 1 --seed {}", outcome.seed);
    println!("  kept:  {}", shown(&outcome.place));
    for violation in outcome.violations.iter().take(40) {
        println!("  - {violation}");
    }
    if outcome.violations.len() > 40 {
        println!("  - and {} more", outcome.violations.len() - 40);
    }
    // an error means that nobody reads any more
    let _ = std::io::stdout().flush();
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
