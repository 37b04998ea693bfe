//! `gpuledger doctor`: what is wrong with a deployment.

use crate::{
    certificate,
    config::Config,
    database,
    error::{CliError, exit},
    output,
};
use app::doctor::{Depth, Finding, Severity};
use postgres::Disk;
use serde_json::json;
use std::{path::Path, time::Duration};

/// The longest statement where everything is looked at.
const LONGEST_STATEMENT: Duration = Duration::from_secs(86_400);
/// A private Postgres with less room than this on its disk is near the end, in bytes.
const LITTLE_ROOM: u64 = 1 << 30;

/// How to report.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Look at everything since the beginning: make every invoice and every stream's chain again, and balance every hour
    ///
    /// After a restore, and from time to time. It reads the whole ledger, which takes as long as it takes.
    #[arg(long)]
    full: bool,
}

/// Checks everything and prints what was found; the exit status says whether there was a problem.
pub(crate) async fn run(file: Option<&Path>, args: DoctorArgs) -> Result<u8, CliError> {
    let depth = if args.full { Depth::Everything } else { Depth::Recent };
    let findings = examine(file, depth).await;
    if args.json {
        output::json(&json!({ "findings": findings }))?;
    } else {
        for finding in &findings {
            output::line(format_args!("{:<8} {:<12} {}", finding.severity.to_string(), finding.check, finding.what))?;
            if let Some(remedy) = &finding.remedy {
                output::line(format_args!("{:<21} -> {remedy}", ""))?;
            }
        }
    }
    let problems = findings.iter().filter(|f| f.severity == Severity::Problem).count();
    if problems > 0 {
        let noun = if problems == 1 { "problem" } else { "problems" };
        output::note(format_args!("{problems} {noun}"));
        return Ok(exit::FAILED);
    }
    Ok(exit::DONE)
}

async fn examine(file: Option<&Path>, depth: Depth) -> Vec<Finding> {
    let mut config = match Config::load(file) {
        Ok(config) => config,
        Err(error) => {
            let remedy = "correct it; `gpuledger config` shows every key";
            return vec![Finding::problem("config", error.to_string(), remedy)];
        }
    };
    let from = config.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
    let mut findings = vec![Finding::good("config", format!("is read from {from} and the environment"))];
    findings.extend(config.http.tls().map(|files| certificate::examine(&files)));
    let running = match database::find(config.postgres()).await {
        Ok(running) => running,
        Err(error) => {
            let remedy = "give database.url, or install PostgreSQL's server programs";
            findings.push(Finding::problem("postgres", error.explain(), remedy));
            return findings;
        }
    };
    findings.push(Finding::good("postgres", running.describe()));
    findings.extend(running.disk().map(disk));
    if depth == Depth::Everything {
        config.database.statement_timeout = LONGEST_STATEMENT;
    }
    match database::app(&config, running.url()) {
        Ok(app) => {
            findings.extend(app::doctor::examine(&app, running.url(), depth).await);
            app.store.close().await;
        }
        Err(error) => findings.push(Finding::problem("postgres", error.explain(), "correct database.url")),
    }
    database::leave(running).await;
    findings
}

/// The disk of a private Postgres: when it is full, nothing is taken any more.
fn disk(disk: Disk) -> Finding {
    const CHECK: &str = "disk";
    let percent = disk.free.saturating_mul(100) / disk.total.max(1);
    let what = format!("{} MiB of {} MiB are free where the data is ({percent} %)", disk.free >> 20, disk.total >> 20);
    let remedy = "make room on the disk, or move the data to a larger one";
    if percent < 5 || disk.free < LITTLE_ROOM {
        Finding::problem(CHECK, what, remedy)
    } else if percent < 15 {
        Finding::warning(CHECK, what, remedy)
    } else {
        Finding::good(CHECK, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_a_problem_before_it_is_full() {
        let of = |free, total| disk(Disk { free, total }).severity;
        assert_eq!(of(50 << 30, 100 << 30), Severity::Good);
        assert_eq!(of(14 << 30, 100 << 30), Severity::Warning);
        assert_eq!(of(4 << 30, 100 << 30), Severity::Problem);
        assert_eq!(of(900 << 20, 2 << 30), Severity::Problem);
        assert_eq!(of(0, 0), Severity::Problem);
    }
}
