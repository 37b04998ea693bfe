//! Running other programs from the root of the repository.

use crate::Outcome;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the repository that Cargo runs us in: with outputs that another checkout shares, we may have been built
/// there.
pub fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = Path::new(&manifest);
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// A program with arguments, to be run in the root.
pub fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(root());
    command
}

/// Cargo, the one that runs us.
pub fn cargo(args: &[&str]) -> Command {
    program(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()), args)
}

/// The triple of this machine.
pub fn host() -> Result<String, String> {
    let version = output(&mut program("rustc", &["-vV"]))?;
    let version = String::from_utf8_lossy(&version).into_owned();
    version.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).ok_or("rustc names no host".into())
}

/// Where Cargo puts what it builds with a profile.
pub fn built(profile: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |set| root().join(set));
    target.join(profile)
}

/// Runs to the end; its failure is ours.
pub fn run(command: &mut Command) -> Outcome {
    let shown = shown(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed: {status}")),
        Err(e) => Err(format!("`{shown}` cannot be run: {e}")),
    }
}

/// Runs to the end and gives what it printed.
pub fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let shown = shown(command);
    let output = command.output().map_err(|e| format!("`{shown}` cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("`{shown}` failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// Whether a program can be run at all.
pub fn exists(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// What every build needs besides Rust.
pub fn require_compiler() -> Outcome {
    if exists(&mut program("cc", &["--version"])) {
        return Ok(());
    }
    Err("a C compiler is missing, which the cryptography needs: `apt-get install build-essential`".to_owned())
}

fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    [name.to_string_lossy()].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}
