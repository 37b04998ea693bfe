//! `cargo xtask attack`: Schemathesis over the served document, with the credential of each role. Its versions are those
//! of `xtask/attack/requirements.txt`, in a virtual environment under `target`; the server and the world that it attacks
//! are set up by `tests/it/attack.rs`.

use crate::{Outcome, step, test};
use sha2::{Digest, Sha256};
use std::{fs, path::PathBuf};

/// Which, how much, and from where on.
#[derive(clap::Args)]
pub struct Attack {
    /// Only as this role; as each where absent. `none` has no credential, `node` that of a node.
    #[arg(long, value_parser = ["none", "viewer", "member", "node", "tenant_admin", "billing_clerk", "operator"])]
    role: Option<String>,
    /// Generated requests of each operation and phase.
    #[arg(long, default_value_t = 50)]
    examples: u32,
    /// The same seed makes the same requests.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// Try every edge of every parameter as operator and tenant_admin alone.
    #[arg(long)]
    short: bool,
}

const SEED: u64 = 20_261_201;

impl Attack {
    /// What there is time for with every change.
    pub const SHORT: Self = Self { role: None, examples: 3, seed: SEED, short: true };

    pub fn run(&self) -> Outcome {
        let folder = step::root().join("xtask/attack");
        let target = step::built("attack");
        let program = program(&target, &folder.join("requirements.txt"))?;
        let told = [
            ("PROGRAM", program.display().to_string()),
            ("FOLDER", folder.display().to_string()),
            ("REPORTS", target.join("reports").display().to_string()),
            ("ROLE", self.role.clone().unwrap_or_default()),
            ("EXAMPLES", self.examples.to_string()),
            ("SEED", self.seed.to_string()),
            ("SHORT", self.short.to_string()),
        ];
        let told = told.map(|(name, value)| (format!("GPULEDGER_ATTACK_{name}"), value));
        test::ignored("attack::", &told)
    }
}

/// The program in its virtual environment, made anew when the requirements change.
fn program(target: &std::path::Path, requirements: &std::path::Path) -> Result<PathBuf, String> {
    let failed = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let wanted = fs::read(requirements).map_err(|e| failed("requirements.txt", &e))?;
    let wanted = hex::encode(Sha256::digest(wanted));
    let (folder, stamp) = (target.join("python"), target.join("python/requirements.sha256"));
    let program = folder.join("bin/schemathesis");
    if program.is_file() && fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(program);
    }
    let shown = folder.display().to_string();
    step::run(&mut step::program("python3", &["-m", "venv", "--clear", &shown])).map_err(|e| {
        format!("{e}\nSchemathesis needs Python 3.10 or newer with venv: `apt-get install python3-venv`")
    })?;
    let pip = folder.join("bin/pip").display().to_string();
    let install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"];
    step::run(step::program(&pip, &install).arg(requirements)).map_err(|e| {
        format!("{e}\nSchemathesis comes from the Python package index, which must be reachable the first time")
    })?;
    fs::write(&stamp, wanted).map_err(|e| failed("requirements.sha256", &e))?;
    Ok(program)
}
