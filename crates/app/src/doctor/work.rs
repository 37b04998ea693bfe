//! Whether the work goes on: leaders, nodes, tasks, deadlines, and what they need.

use super::Finding;
use crate::{App, error::AppError};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use store::{Scope, doctor, node_refusal::RefusalReason, signing_key};

/// How long a task may be overdue before nobody seems to run it, in milliseconds.
const OVERDUE_MS: i64 = 300_000;
/// The same for the deadlines of allocations, in seconds.
const DEADLINE_S: u32 = 300;

pub(super) async fn months(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn operators(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.operators", Scope::Operator).await?;
    Ok(vec![if store::user::has_operator(&mut tx).await? {
        Finding::good("operators", "there is one who can log in")
    } else {
        let remedy = "run `gpuledger admin init --email you@example.com --name \"Your Name\"`";
        Finding::warning("operators", "nobody can log in as an operator", remedy)
    }])
}

pub(super) async fn leadership(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn nodes(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn copies(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn tasks(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn set_aside(app: &App) -> Result<Vec<Finding>, AppError> {
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

/// Whether the newest pair signs what its public half verifies: the private half is a secret, so only this is said.
pub(super) async fn signing_keys(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "keys";
    let mut tx = app.store.begin("doctor.keys", Scope::Operator).await?;
    let keys = signing_key::current(&mut tx).await?;
    let broken: Vec<Finding> = keys
        .iter()
        .filter(|key| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.private_key)
                .map_or(true, |pair| pair.public_key().as_ref() != key.public_key.as_slice())
        })
        .map(|key| {
            Finding::problem(
                CHECK,
                format!("the signing key {} of {} is not a pair: no token made with it holds", key.kid, key.created_at),
                format!(
                    "update signing_key set retired_at = now() where kid = '{}'; the next login makes another",
                    key.kid
                ),
            )
        })
        .collect();
    if !broken.is_empty() {
        return Ok(broken);
    }
    Ok(vec![Finding::good(
        CHECK,
        match keys.len() {
            0 => "no signing key yet: the first login makes one".to_owned(),
            count => format!("{count} signing keys, each a pair"),
        },
    )])
}

pub(super) async fn deadlines(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "deadlines";
    let mut tx = app.store.begin("doctor.deadlines", Scope::Operator).await?;
    let overdue = doctor::ledger::overdue(&mut tx, f64::from(DEADLINE_S)).await?;
    if overdue.is_empty() {
        return Ok(vec![Finding::good(CHECK, "no allocation is past its deadline")]);
    }
    Ok(overdue
        .into_iter()
        .map(|late| {
            let what =
                format!("allocation {} is open although its {} was {}", late.allocation_id, late.deadline, late.at);
            Finding::problem(CHECK, what, "its pool's leader ends it: see to it that one leads, and read its log")
        })
        .collect())
}
