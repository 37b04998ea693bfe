//! `gpuledger doctor`: what is wrong with a deployment.

use crate::{
    certificate,
    config::Config,
    database,
    error::{CliError, exit},
    output,
};
use app::doctor::{Finding, Severity};
use serde_json::json;
use std::path::Path;

/// How to report.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Checks everything and prints what was found; the exit status says whether there was a problem.
pub(crate) async fn run(file: Option<&Path>, args: DoctorArgs) -> Result<u8, CliError> {
    let findings = examine(file).await;
    if args.json {
        output::json(&json!({ "findings": findings }))?;
    } else {
        for finding in &findings {
            output::line(format_args!("{:<8} {:<11} {}", finding.severity.to_string(), finding.check, finding.what))?;
            if let Some(remedy) = &finding.remedy {
                output::line(format_args!("{:<20} -> {remedy}", ""))?;
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

async fn examine(file: Option<&Path>) -> Vec<Finding> {
    let config = match Config::load(file) {
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
    match database::app(&config, running.url()) {
        Ok(app) => {
            findings.extend(app::doctor::examine(&app, running.url()).await);
            app.store.close().await;
        }
        Err(error) => findings.push(Finding::problem("postgres", error.explain(), "correct database.url")),
    }
    database::leave(running).await;
    findings
}
