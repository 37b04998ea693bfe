//! Whether PostgreSQL is fit for a ledger: version, role, clock, durability, connections, archive of its log.

use super::Finding;
use crate::{App, error::AppError};
use store::{
    Scope,
    doctor::{self, Server},
};

/// The oldest Postgres that is supported.
const OLDEST_POSTGRES: i32 = 150_000;
/// How far the clocks of this machine and of Postgres may lie apart, in milliseconds.
const SKEW_MS: i64 = 2_000;

pub(super) fn version(server: &Server) -> Vec<Finding> {
    const CHECK: &str = "postgres";
    if server.version_number < OLDEST_POSTGRES {
        let what = format!("PostgreSQL {} is older than 15", server.version);
        return vec![Finding::problem(CHECK, what, "move the database to PostgreSQL 15 or newer")];
    }
    if server.is_in_recovery {
        let what = format!("PostgreSQL {} is in recovery: it shows the ledger and takes no writes", server.version);
        let remedy = "after a restore, `select pg_wal_replay_resume()` or a start without recovery.signal ends it; a \
                      standby is no place for the service: correct database.url";
        return vec![Finding::problem(CHECK, what, remedy)];
    }
    vec![Finding::good(CHECK, format!("PostgreSQL {} answers", server.version))]
}

pub(super) fn role(server: &Server) -> Vec<Finding> {
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
    if role.makes_temporary_objects {
        findings.push(Finding::problem(
            CHECK,
            "gpuledger_service may make temporary objects, which would shadow the ledger's",
            "revoke temporary on the database from public, as its owner",
        ));
    }
    if findings.is_empty() {
        let what = "gpuledger_service is neither superuser nor exempt from row security, and may be taken";
        let beside = if role.is_all_there_is {
            format!("the user {} has nothing beside it", server.user)
        } else {
            // no fault: a private Postgres has one user
            format!("the user {} has more than it (see database.owner_url)", server.user)
        };
        findings.push(Finding::good(CHECK, format!("{what}; {beside}")));
    }
    findings
}

pub(super) async fn clock(app: &App) -> Result<Vec<Finding>, AppError> {
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

pub(super) async fn durability(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "durability";
    let mut tx = app.store.begin("doctor.durability", Scope::Operator).await?;
    let settings = doctor::server::durability(&mut tx).await?;
    let off = [
        (!settings.fsync).then_some("fsync is off"),
        (!settings.full_page_writes).then_some("full_page_writes is off"),
        (settings.synchronous_commit == "off").then_some("synchronous_commit is off"),
    ];
    let off: Vec<&str> = off.into_iter().flatten().collect();
    if off.is_empty() {
        return Ok(vec![Finding::good(CHECK, "what is acknowledged is on disk")]);
    }
    let what = format!("{}: what was acknowledged can be gone after a crash", off.join(", "));
    Ok(vec![Finding::problem(CHECK, what, "set them to on in postgresql.conf, and for the service's role, and reload")])
}

pub(super) async fn connections(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "connections";
    let mut tx = app.store.begin("doctor.connections", Scope::Operator).await?;
    let theirs = doctor::server::connections(&mut tx).await?;
    let ours = i32::try_from(app.store.connections().most).unwrap_or(i32::MAX);
    let room = theirs.most - theirs.reserved;
    let figures = format!(
        "each server may open {ours} (database.connections) of the {room} that PostgreSQL takes (max_connections), {} of \
         which are in use",
        theirs.used
    );
    let remedy = "raise max_connections, or lower database.connections, so that all servers together fit";
    Ok(vec![if ours > room || theirs.used >= room {
        Finding::problem(CHECK, figures, remedy)
    } else if theirs.used > room / 10 * 9 {
        Finding::warning(CHECK, figures, remedy)
    } else {
        Finding::good(CHECK, figures)
    }])
}

pub(super) async fn archive(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "backup";
    let mut tx = app.store.begin("doctor.archive", Scope::Operator).await?;
    let archive = doctor::server::archive(&mut tx).await?;
    if !archive.is_on {
        let what = "PostgreSQL does not archive its log: what came after the last dump is gone with the disk";
        let remedy = "set archive_mode and archive_command, and take base backups: see Backup in the operator's guide";
        return Ok(vec![Finding::warning(CHECK, what, remedy)]);
    }
    let fails = archive.last_failed_at.is_some_and(|failed| archive.last_archived_at.is_none_or(|last| last < failed));
    if fails {
        let at = archive.last_failed_at.map_or_else(String::new, |at| at.to_string());
        let file = archive.last_failed_file.unwrap_or_default();
        let what = format!("archiving fails: {} times, last at {at} with {file}", archive.failures);
        let remedy =
            "PostgreSQL's log has what archive_command said; until it succeeds the log fills the server's disk";
        return Ok(vec![Finding::problem(CHECK, what, remedy)]);
    }
    Ok(vec![match archive.last_archived_at {
        Some(at) => Finding::good(CHECK, format!("the log is archived, last at {at}")),
        None => Finding::good(CHECK, "the log is archived, none of it yet"),
    }])
}
