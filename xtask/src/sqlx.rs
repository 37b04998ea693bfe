//! `cargo xtask sqlx`: each query of `store` is described in `.sqlx`, so that a build needs no database. The
//! descriptions come from the compiler itself, which asks a database that has the migrations applied.

use crate::{Outcome, step};
use postgres::{Place, Running, Settings};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

const RENEW: &str = "renew them with `cargo xtask sqlx`";

pub fn run(check: bool) -> Outcome {
    let fresh = describe()?;
    let folder = step::root().join(".sqlx");
    let committed = read(&folder)?;
    if fresh == committed {
        return Ok(());
    }
    if check {
        let stale = committed.keys().filter(|name| !fresh.contains_key(*name)).count();
        let missing = fresh.iter().filter(|(name, text)| committed.get(*name) != Some(*text)).count();
        return Err(format!(
            ".sqlx does not describe the queries of store: {missing} missing or changed, {stale} left over; {RENEW}"
        ));
    }
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for name in committed.keys().filter(|name| !fresh.contains_key(*name)) {
        fs::remove_file(folder.join(name)).map_err(|e| e.to_string())?;
    }
    for (name, text) in &fresh {
        fs::write(folder.join(name), text).map_err(|e| e.to_string())?;
    }
    println!(".sqlx is renewed: {} queries", fresh.len());
    Ok(())
}

/// Each query's description, by file name.
type Descriptions = BTreeMap<OsString, Vec<u8>>;

fn read(folder: &Path) -> Result<Descriptions, String> {
    let mut descriptions = Descriptions::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(descriptions);
    };
    for entry in entries {
        let entry = entry.map_err(|e| e.to_string())?;
        descriptions.insert(entry.file_name(), fs::read(entry.path()).map_err(|e| e.to_string())?);
    }
    Ok(descriptions)
}

fn describe() -> Result<Descriptions, String> {
    let settings = Settings::new(env::var("DATABASE_URL").ok(), Place::Ephemeral);
    let server = postgres::find(&settings).map_err(|none| none.to_string())?;
    let database = format!("gpuledger_sqlx_{}", std::process::id());
    psql(&server, server.url(), &["-c", &format!("CREATE DATABASE {database}")])?;
    let folder = step::built("sqlx").join(std::process::id().to_string());
    let described = migrate(&server, &server.url_of(&database)).and_then(|()| {
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        compile(&server.url_of(&database), &folder)?;
        read(&folder)
    });
    // what is left of the folder disturbs nobody
    let _ = fs::remove_dir_all(&folder);
    psql(&server, server.url(), &["-c", &format!("DROP DATABASE {database} WITH (FORCE)")])?;
    described
}

fn migrate(server: &Running, url: &str) -> Outcome {
    let folder = step::root().join("migrations");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "sql"))
        .collect();
    files.sort();
    files.iter().try_for_each(|file| psql(server, url, &["-1", "-f", &file.to_string_lossy()]))
}

fn psql(server: &Running, url: &str, args: &[&str]) -> Outcome {
    let psql = server.programs().map_or_else(|| PathBuf::from("psql"), |folder| folder.join("psql"));
    let mut command = step::program(&psql.to_string_lossy(), &["-qX", "-v", "ON_ERROR_STOP=1"]);
    command.env("PGOPTIONS", "-c client_min_messages=warning").args(args).arg(url);
    step::output(&mut command).map(drop)
}

/// Lets the compiler look at every query of `store`, for which it must believe that the crate has changed.
fn compile(url: &str, folder: &Path) -> Outcome {
    let source = step::root().join("crates/store/src/lib.rs");
    let failed = |e: std::io::Error| format!("{}: {e}", source.display());
    let file = fs::OpenOptions::new().append(true).open(&source).map_err(failed)?;
    let before = file.metadata().and_then(|meta| meta.modified()).map_err(failed)?;
    file.set_modified(now()).map_err(failed)?;
    let compiled = step::run(
        step::cargo(&["check", "--quiet", "--package", "store", "--all-targets"])
            .env("SQLX_OFFLINE", "false")
            .env("SQLX_OFFLINE_DIR", folder)
            .env("DATABASE_URL", url),
    );
    // nothing else has to be built again for it
    file.set_modified(before).map_err(failed)?;
    compiled
}

#[expect(clippy::disallowed_methods, reason = "the time stamp of a file, not a fact of the ledger")]
fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
