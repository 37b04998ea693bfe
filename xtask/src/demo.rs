//! `cargo xtask demo`.

use crate::{Outcome, step};
use std::{env, os::unix::process::CommandExt, process::Command};

/// Builds the binary and becomes it, so that Ctrl-C reaches it directly and nothing is left when it ends.
pub fn run(args: &[String]) -> Outcome {
    step::require_compiler()?;
    if env::var_os("DATABASE_URL").is_none() {
        // better said before the build than after it
        postgres::look(&postgres::Lookup::system()).map_err(|none| none.to_string())?;
    }
    step::run(&mut step::cargo(&["build", "--profile", "demo", "--package", "gpuledger"]))?;
    let binary = step::built("demo").join("gpuledger");
    let error = Command::new(&binary).arg("demo").args(args).current_dir(step::root()).exec();
    Err(format!("{} cannot be run: {error}", binary.display()))
}
