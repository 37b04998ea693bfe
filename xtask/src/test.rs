//! `cargo xtask test`: one Postgres for all tests, the real binary built, then every test.

use crate::{Outcome, step};
use nix::sys::signal::{SigSet, Signal};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Stdio},
};

/// How the tests learn of their Postgres.
const URL_VARIABLE: &str = "GPULEDGER_TEST_DATABASE_URL";

/// Runs tests that are ignored otherwise, named by their beginning, with these variables.
pub fn ignored(name: &str, environment: &[(String, String)]) -> Outcome {
    let features = build()?;
    let postgres = Postgres::start()?;
    let mut tests = step::cargo(&["test", "--quiet", "--workspace", "--test", "it"]);
    tests
        .args(features)
        .args(["--", "--ignored", "--nocapture", name])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env(URL_VARIABLE, &postgres.url)
        .env("GPULEDGER_BIN", step::built("debug").join("gpuledger"));
    step::run(&mut tests)
}

/// Builds everything, once for all selections of tests; gives the features that it was built with.
fn build() -> Result<&'static [&'static str], String> {
    step::require_compiler()?;
    let features: &[&str] = if docker_has_postgres() { &["--features", "it/containers"] } else { &[] };
    // the same selection of packages and targets as the tests', so that nothing is built twice
    step::run(step::cargo(&["build", "--workspace", "--all-targets"]).args(features))?;
    // Ctrl-C is for the tests: they end, then we stop Postgres. Children do not inherit this.
    SigSet::from_iter([Signal::SIGINT]).thread_block().map_err(|e| e.to_string())?;
    Ok(features)
}

pub fn run(args: &[String]) -> Outcome {
    let nextest = step::exists(&mut step::cargo(&["nextest", "--version"]));
    if !nextest {
        println!("cargo-nextest is not installed (`cargo install cargo-nextest --locked`): running with cargo test");
    }
    let features = build()?;
    let postgres = Postgres::start()?;
    let mut tests = step::cargo(if nextest { &["nextest", "run", "--workspace"] } else { &["test", "--workspace"] });
    tests
        .args(features)
        .args(args)
        .env(URL_VARIABLE, &postgres.url)
        .env("GPULEDGER_BIN", step::built("debug").join("gpuledger"));
    step::run(&mut tests)
}

/// Whether Docker answers and has an image of Postgres: only then is its client library worth building.
fn docker_has_postgres() -> bool {
    step::output(&mut step::program("docker", &["image", "ls", "--format", "{{.Repository}}"])).is_ok_and(|names| {
        String::from_utf8_lossy(&names).lines().any(|name| name.rsplit('/').next() == Some("postgres"))
    })
}

/// The tests' Postgres, held by a process that ends when our end of its input closes.
struct Postgres {
    url: String,
    holder: Child,
}

impl Postgres {
    fn start() -> Result<Self, String> {
        let path = step::built("debug").join("test-postgres");
        let mut holder = step::program(&path.to_string_lossy(), &[])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{} cannot be run: {e}", path.display()))?;
        let mut lines = BufReader::new(holder.stdout.take().ok_or("no output")?).lines();
        match (lines.next(), lines.next()) {
            (Some(Ok(url)), Some(Ok(description))) => {
                println!("tests run on {description}");
                Ok(Self { url, holder })
            }
            // it has said why
            _ => Err("no Postgres for the tests".to_owned()),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // an error means that it is gone already
        let _ = self.holder.wait();
    }
}
