//! What is wrong with a deployment, and what to do about it.

use crate::{App, Caller, balance, error::AppError};
use billing::invoice::{CHAIN_START, chain};
use serde::Serialize;
use std::{fmt, time::Duration};
use store::{
    Scope,
    doctor::{self, Series, Server},
    migrate,
    node_refusal::RefusalReason,
};
use types::Span;

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

/// The oldest Postgres that is supported.
const OLDEST_POSTGRES: i32 = 150_000;
/// How far the clocks of this machine and of Postgres may lie apart, in milliseconds.
const SKEW_MS: i64 = 2_000;
/// How long a task may be overdue before nobody seems to run it, in milliseconds.
const OVERDUE_MS: i64 = 300_000;
/// Findings of one check that are shown one by one.
const SHOWN: usize = 20;
/// How long one check may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every check. A check that cannot be made is a problem; where Postgres or its schema is not as needed, the others
/// are not tried.
pub async fn examine(app: &App, url: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let server = match doctor::server(url).await {
        Ok(server) => server,
        Err(error) => {
            let remedy = "start it, or correct database.url; `gpuledger serve` goes on trying by itself";
            findings.push(Finding::problem("postgres", error.to_string(), remedy));
            return findings;
        }
    };
    findings.push(version(&server));
    match migrate::check_schema(url).await {
        Ok(()) => findings.push(Finding::good("schema", "is that of this binary")),
        Err(error) => {
            let remedy = "bring schema and binary together: `gpuledger migrate`, or a newer gpuledger";
            findings.push(Finding::problem("schema", error.to_string(), remedy));
            return findings;
        }
    }
    findings.extend(role(&server));
    for (check, examined) in [
        ("clock", within(clock(app)).await),
        ("rights", within(rights(app)).await),
        ("walls", within(walls(app)).await),
        ("months", within(months(app)).await),
        ("operators", within(operators(app)).await),
        ("leadership", within(leadership(app)).await),
        ("nodes", within(nodes(app)).await),
        ("copies", within(copies(app)).await),
        ("tasks", within(tasks(app)).await),
        ("balance", within(hours(app)).await),
        ("invoices", within(invoices(app)).await),
        ("set-aside", within(set_aside(app)).await),
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

async fn within(check: impl Future<Output = Result<Vec<Finding>, AppError>>) -> Result<Vec<Finding>, AppError> {
    tokio::time::timeout(PATIENCE, check)
        .await
        .unwrap_or_else(|_| Err(AppError::Unavailable(format!("no answer within {PATIENCE:?}"))))
}

fn version(server: &Server) -> Finding {
    if server.version_number < OLDEST_POSTGRES {
        let what = format!("PostgreSQL {} is older than 15", server.version);
        return Finding::problem("postgres", what, "move the database to PostgreSQL 15 or newer");
    }
    Finding::good("postgres", format!("PostgreSQL {} answers", server.version))
}

fn role(server: &Server) -> Vec<Finding> {
    const CHECK: &str = "role";
    let Some(role) = server.role else {
        let what = "the role gpuledger_service does not exist";
        return vec![Finding::problem(CHECK, what, "run `gpuledger migrate` as the schema's owner")];
    };
    let mut findings = Vec::new();
    if role.is_superuser || role.bypasses_row_security {
        findings.push(Finding::problem(
            CHECK,
            "gpuledger_service can bypass row security: nothing but the server's own care parts the tenants",
            "alter role gpuledger_service nosuperuser nobypassrls",
        ));
    }
    if !role.may_be_taken {
        findings.push(Finding::problem(
            CHECK,
            format!("the user {} may not work as gpuledger_service", server.user),
            format!("grant gpuledger_service to {}", server.user),
        ));
    }
    if findings.is_empty() {
        let what = "gpuledger_service is neither superuser nor exempt from row security, and may be taken";
        findings.push(Finding::good(CHECK, what));
    }
    findings
}

async fn clock(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.clock", Scope::Operator).await?;
    let before = app.clock.now();
    let theirs = doctor::clock(&mut tx).await?;
    let after = app.clock.now();
    let ours = before.plus_millis(after.since(before) / 2);
    let skew = theirs.since(ours);
    Ok(vec![if skew.abs() > SKEW_MS {
        let what = format!("the clock of Postgres is {skew} ms ahead of this machine's");
        Finding::problem("clock", what, "run an NTP client on both machines")
    } else {
        Finding::good("clock", format!("Postgres and this machine differ by {} ms", skew.abs()))
    }])
}

async fn rights(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.rights", Scope::Operator).await?;
    let excessive = doctor::excessive_rights(&mut tx).await?;
    if excessive.is_empty() {
        return Ok(vec![Finding::good("rights", "the service cannot change or delete what is append-only")]);
    }
    Ok(excessive
        .into_iter()
        .map(|(table, right)| match right.as_str() {
            "OWNER" => Finding::problem(
                "rights",
                format!("gpuledger_service owns {table}, so no right and no row security binds it there"),
                format!("alter table {table} owner to the schema's owner"),
            ),
            right => Finding::problem(
                "rights",
                format!("gpuledger_service has the right {right} on {table}, which is append-only"),
                format!("revoke {right} on {table} from gpuledger_service"),
            ),
        })
        .collect())
}

async fn walls(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.walls", Scope::Operator).await?;
    let open = doctor::tables_without_wall(&mut tx).await?;
    if open.is_empty() {
        return Ok(vec![Finding::good("walls", "row security holds every table with tenants' rows")]);
    }
    Ok(open
        .into_iter()
        .map(|table| {
            Finding::problem(
                "walls",
                format!("row security does not hold {table}"),
                format!("alter table {table} enable row level security, with the policy tenant_wall"),
            )
        })
        .collect())
}

async fn months(app: &App) -> Result<Vec<Finding>, AppError> {
    let now = app.clock.now();
    let months: Vec<String> =
        [now, now.plus_secs(31 * 86_400)].iter().map(|t| t.to_jiff().strftime("%Y_%m").to_string()).collect();
    let mut tx = app.store.begin("doctor.months", Scope::Operator).await?;
    let missing = doctor::months_without_table(&mut tx, &months).await?;
    if missing.is_empty() {
        return Ok(vec![Finding::good("months", "tables for this and the next month of readings exist")]);
    }
    let what = format!("no table of readings for {}", missing.join(" and "));
    Ok(vec![Finding::problem("months", what, "the task make_months makes them: keep a `gpuledger serve` running")])
}

async fn operators(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.operators", Scope::Operator).await?;
    Ok(vec![if store::user::has_operator(&mut tx).await? {
        Finding::good("operators", "there is one who can log in")
    } else {
        let remedy = "run `gpuledger admin init --email you@example.com --name \"Your Name\"`";
        Finding::warning("operators", "nobody can log in as an operator", remedy)
    }])
}

async fn leadership(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.leadership", Scope::Operator).await?;
    let leads = doctor::leads(&mut tx).await?;
    if leads.is_empty() {
        return Ok(vec![Finding::warning("leadership", "there is no pool yet", "make one: POST /v1/pools")]);
    }
    Ok(leads
        .into_iter()
        .map(|pool| match (pool.is_led, pool.term) {
            (true, Some(term)) => Finding::good("leadership", format!("pool {} is led, term {term}", pool.name)),
            _ => Finding::problem(
                "leadership",
                format!("nobody leads pool {}: no request is decided and no meter moves", pool.name),
                "start `gpuledger serve`; if it runs, its log says why it cannot take the lease",
            ),
        })
        .collect())
}

async fn nodes(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.nodes", Scope::Operator).await?;
    let silent = doctor::silent_nodes(&mut tx).await?;
    if silent.is_empty() {
        return Ok(vec![Finding::good("nodes", "none is silent")]);
    }
    Ok(silent
        .into_iter()
        .map(|node| {
            let since = match node.last_heard {
                Some(at) => format!("was last heard at {at}"),
                None => "has never reported".to_owned(),
            };
            Finding::problem(
                "nodes",
                format!("node {} of pool {} {since}", node.hostname, node.pool),
                "look at `gpuledger agent` on that host, or remove the node if it is gone for good",
            )
        })
        .collect())
}

async fn copies(app: &App) -> Result<Vec<Finding>, AppError> {
    let since = app.clock.now().plus_secs(-86_400);
    let mut tx = app.store.begin("doctor.copies", Scope::Operator).await?;
    let refused = doctor::refused_nodes(&mut tx, since).await?;
    if refused.is_empty() {
        return Ok(vec![Finding::good("copies", "nothing that held a node's credential was refused in the last day")]);
    }
    Ok(refused
        .into_iter()
        .map(|node| {
            let what = match node.reason {
                RefusalReason::AnotherAgentReports => "another boot or run of its agent reported while the first lived",
                RefusalReason::FormerBoot => "a boot that is over reported",
                RefusalReason::SupersededCredential => "a credential that was replaced was used",
            };
            Finding::problem(
                "copies",
                format!(
                    "node {} of pool {}: {what}, {} times, last at {}",
                    node.hostname, node.pool, node.times, node.last_at
                ),
                "find the host that was copied from it (its agent's log says that it is refused), and let it join as a node of \
                 its own; if you do not know it, revoke the node's credential and let the node join again",
            )
        })
        .collect())
}

async fn tasks(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.tasks", Scope::Operator).await?;
    let tasks = doctor::tasks(&mut tx).await?;
    let now = app.clock.now();
    if tasks.is_empty() {
        let remedy = "start `gpuledger serve`, which runs them";
        return Ok(vec![Finding::warning("tasks", "no recurring task has run yet", remedy)]);
    }
    let mut findings = Vec::new();
    for task in &tasks {
        if let Some(error) = &task.last_error {
            let remedy = "it is tried again when next due; the server's log has more";
            findings.push(Finding::problem("tasks", format!("{} failed: {error}", task.name), remedy));
        }
        if now.since(task.due_at) > OVERDUE_MS {
            let what = format!("{} was due at {} and has not run", task.name, task.due_at);
            findings.push(Finding::problem("tasks", what, "start `gpuledger serve`, which runs it"));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::good("tasks", "each ran when due, without an error"));
    }
    Ok(findings)
}

async fn hours(app: &App) -> Result<Vec<Finding>, AppError> {
    let now = app.clock.now();
    let day = Span::clamped(now.plus_secs(-86_400), now);
    let hours = balance::of(app, &Caller::system(), None, day).await?;
    let wrong = balance::imbalances(&hours);
    if wrong.is_empty() {
        let what = format!("the hours of the last day balance on {} GPUs", hours.len());
        return Ok(vec![Finding::good("balance", what)]);
    }
    let remedy = "invoices over these hours are refused until they balance or are waived; the hour's terms are at \
                  GET /v1/balance";
    Ok(wrong
        .into_iter()
        .map(|i| {
            let what =
                format!("GPU {} is off by {} byte-milliseconds in the hour of {}", i.gpu_id, i.difference, i.hour);
            Finding::problem("balance", what, remedy)
        })
        .collect())
}

async fn invoices(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin_snapshot("doctor.invoices", Scope::Operator).await?;
    let all = doctor::series(&mut tx).await?;
    let faults: Vec<String> = all.iter().flat_map(series_faults).collect();
    if faults.is_empty() {
        let issued: usize = all.iter().map(|series| series.links.len()).sum();
        return Ok(vec![Finding::good("invoices", format!("{issued} numbers without a gap, their chain intact"))]);
    }
    let remedy = "something changed the ledger behind the service: compare with a backup before issuing more";
    Ok(faults.into_iter().map(|what| Finding::problem("invoices", what, remedy)).collect())
}

/// Gaps and breaks of one series, in words.
fn series_faults(series: &Series) -> Vec<String> {
    let mut faults = Vec::new();
    let mut previous = CHAIN_START.to_owned();
    let mut next = 1;
    for link in &series.links {
        if link.serial != next {
            faults.push(format!("series {}: {} follows {}", series.series, link.serial, next - 1));
        }
        next = link.serial + 1;
        let Some(invoice) = &link.invoice else {
            faults.push(format!("series {}: number {} has no invoice", series.series, link.serial));
            continue;
        };
        let serial = u64::try_from(link.serial).unwrap_or(0);
        if invoice.previous_hash != previous || chain(&invoice.previous_hash, serial, &invoice.digest) != invoice.hash {
            faults.push(format!("series {}: the chain breaks at {}", series.series, invoice.number));
        }
        previous.clone_from(&invoice.hash);
    }
    if next - 1 != series.last_serial {
        faults.push(format!(
            "series {} counts to {}, the last number is {}",
            series.series,
            series.last_serial,
            next - 1
        ));
    }
    if series.last_serial > 0 && previous != series.head_hash {
        faults.push(format!("series {}: the head of the chain is not its last invoice", series.series));
    }
    faults
}

async fn set_aside(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.set_aside", Scope::Operator).await?;
    let waiting = doctor::waiting_rows(&mut tx).await?;
    if waiting.is_empty() {
        return Ok(vec![Finding::good("set-aside", "no row waits for a ruling")]);
    }
    Ok(waiting
        .into_iter()
        .map(|w| {
            let what = format!("{} readings wait for a ruling since {}: {}", w.rows, w.oldest, w.reason);
            Finding::warning("set-aside", what, format!("accept or reject them, beginning with {}", w.example))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::doctor::{Link, LinkedInvoice};

    fn series(count: i64) -> Series {
        let mut head_hash = String::new();
        let mut previous = CHAIN_START.to_owned();
        let links = (1..=count)
            .map(|serial| {
                let digest = format!("digest {serial}");
                let hash = chain(&previous, serial.try_into().unwrap(), &digest);
                let previous_hash = std::mem::replace(&mut previous, hash.clone());
                head_hash.clone_from(&hash);
                let number = format!("GL-{serial:06}");
                Link { serial, invoice: Some(LinkedInvoice { number, digest, previous_hash, hash }) }
            })
            .collect();
        Series { series: "GL".into(), last_serial: count, head_hash, links }
    }

    #[test]
    fn many_findings_are_shortened_and_stay_as_bad() {
        let many: Vec<Finding> = (0..25).map(|n| Finding::problem("nodes", n.to_string(), "look")).collect();
        let few = shortened("nodes", many.clone());
        assert_eq!(few.len(), 21);
        assert_eq!((few[20].severity, few[20].what.as_str()), (Severity::Problem, "and 5 more"));
        assert_eq!(shortened("nodes", many[..20].to_vec()), many[..20]);
    }

    #[test]
    fn an_untouched_series_has_no_faults() {
        assert_eq!(series_faults(&series(0)), [] as [&str; 0]);
        assert_eq!(series_faults(&series(3)), [] as [&str; 0]);
    }

    #[test]
    fn every_way_to_tamper_with_a_series_is_seen() {
        let tampered = |tamper: fn(&mut Series)| {
            let mut series = series(3);
            tamper(&mut series);
            series_faults(&series).join("; ")
        };
        let removed = tampered(|s| drop(s.links.remove(1)));
        assert!(removed.contains("3 follows 1") && removed.contains("breaks at GL-000003"), "{removed}");
        let cut = tampered(|s| drop(s.links.pop()));
        assert!(cut.contains("counts to 3, the last number is 2") && cut.contains("head"), "{cut}");
        let emptied = tampered(|s| s.links[1].invoice = None);
        assert!(emptied.contains("number 2 has no invoice"), "{emptied}");
        let changed = tampered(|s| s.links[1].invoice.as_mut().unwrap().digest = "another".into());
        assert!(changed.contains("breaks at GL-000002"), "{changed}");
    }
}
