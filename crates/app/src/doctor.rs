//! What is wrong with a deployment, and what to do about it.

mod audit;
mod ledger;
mod server;
mod stream;
mod wall;
mod work;

use crate::{App, error::AppError};
use serde::Serialize;
use std::{fmt, time::Duration};
use store::{doctor, migrate};

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `schema`.
    pub check: &'static str,
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What to do; absent where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Good,
    /// Works, but somebody should look at it.
    Warning,
    /// Does not work, or will not for long.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

impl Finding {
    /// Something that is as it should be.
    pub fn good(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, severity: Severity::Good, what: what.into(), remedy: None }
    }

    /// Something to look at.
    pub fn warning(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, severity: Severity::Warning, what: what.into(), remedy: Some(remedy.into()) }
    }

    /// Something that does not work.
    pub fn problem(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, severity: Severity::Problem, what: what.into(), remedy: Some(remedy.into()) }
    }
}

/// Findings of one check that are shown one by one.
const SHOWN: usize = 20;
/// How long one check may take, unless everything is to be looked at.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much of the past is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The last day and the newest invoices: seconds, beside a server that works.
    Recent,
    /// Every hour, every invoice and every stream, from the first: as long as it takes.
    Everything,
}

/// Runs every check. A check that cannot be made is a problem; where Postgres or its schema is not as needed, the others
/// are not tried.
pub async fn examine(app: &App, url: &str, depth: Depth) -> Vec<Finding> {
    let mut findings = Vec::new();
    let server = match doctor::server(url).await {
        Ok(server) => server,
        Err(error) => {
            let remedy = "start it, or correct database.url; `gpuledger serve` goes on trying by itself";
            findings.push(Finding::problem("postgres", error.to_string(), remedy));
            return findings;
        }
    };
    findings.extend(server::version(&server));
    match migrate::check_schema(url).await {
        Ok(()) => findings.push(Finding::good("schema", "is that of this binary")),
        Err(error) => {
            let remedy = "bring schema and binary together: `gpuledger migrate`, or a newer gpuledger";
            findings.push(Finding::problem("schema", error.to_string(), remedy));
            return findings;
        }
    }
    findings.extend(server::role(&server));
    let patience = match depth {
        Depth::Recent => PATIENCE,
        Depth::Everything => Duration::MAX,
    };
    for (check, examined) in [
        ("clock", within(patience, server::clock(app)).await),
        ("durability", within(patience, server::durability(app)).await),
        ("connections", within(patience, server::connections(app)).await),
        ("backup", within(patience, server::archive(app)).await),
        ("rights", within(patience, wall::rights(app)).await),
        ("walls", within(patience, wall::walls(app)).await),
        ("months", within(patience, work::months(app)).await),
        ("operators", within(patience, work::operators(app)).await),
        ("keys", within(patience, work::signing_keys(app)).await),
        ("leadership", within(patience, work::leadership(app)).await),
        ("nodes", within(patience, work::nodes(app)).await),
        ("copies", within(patience, work::copies(app)).await),
        ("tasks", within(patience, work::tasks(app)).await),
        ("deadlines", within(patience, work::deadlines(app)).await),
        ("set-aside", within(patience, work::set_aside(app)).await),
        ("quotas", within(patience, ledger::quotas(app)).await),
        ("grants", within(patience, ledger::grants(app)).await),
        ("balance", within(patience, ledger::hours(app, depth)).await),
        ("numbers", within(patience, ledger::numbers(app)).await),
        ("invoices", within(patience, ledger::invoices(app, depth)).await),
        ("audit", within(patience, audit::audit(app)).await),
        ("streams", within(patience, stream::chains(app, depth)).await),
    ] {
        match examined {
            Ok(found) => findings.extend(shortened(check, found)),
            Err(error) => findings.push(Finding::problem(
                check,
                format!("could not be checked: {error}"),
                "mend this first, then run `gpuledger doctor` again",
            )),
        }
    }
    findings
}

/// The first of many findings of one check, and how many more there are.
fn shortened(check: &'static str, mut found: Vec<Finding>) -> Vec<Finding> {
    let more = found.split_off(SHOWN.min(found.len()));
    if let Some(worst) = more.iter().map(|finding| finding.severity).max() {
        let what = format!("and {} more", more.len());
        found.push(Finding { check, severity: worst, what, remedy: None });
    }
    found
}

async fn within(
    patience: Duration,
    check: impl Future<Output = Result<Vec<Finding>, AppError>>,
) -> Result<Vec<Finding>, AppError> {
    tokio::time::timeout(patience, check)
        .await
        .unwrap_or_else(|_| Err(AppError::Unavailable(format!("no answer within {patience:?}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_findings_are_shortened_and_stay_as_bad() {
        let many: Vec<Finding> = (0..25).map(|n| Finding::problem("nodes", n.to_string(), "look")).collect();
        let few = shortened("nodes", many.clone());
        assert_eq!(few.len(), 21);
        assert_eq!((few[20].severity, few[20].what.as_str()), (Severity::Problem, "and 5 more"));
        assert_eq!(shortened("nodes", many[..20].to_vec()), many[..20]);
    }
}
