//! `cargo xtask fuzz`: libFuzzer over the targets of `fuzz`, guided by coverage. The short run that the tests make needs
//! nothing of this.

use crate::{Outcome, step};
use std::{fs, path::Path};

/// What the compiler puts in for libFuzzer: counters of edges and what is compared. All of it is there in the stable
/// compiler; only sanitizers are not, and there is no unsafe code of ours for them to look at.
const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                           -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                           -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

pub fn run(target: Option<&str>, seconds: u32) -> Outcome {
    let root = step::root();
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let targets = match target {
        Some(target) => vec![target.to_owned()],
        None => corpora(&root.join("fuzz/corpus"))?,
    };
    let guided = root.join("fuzz/guided");
    // the product's own versions of everything
    let lock = guided.join("Cargo.lock");
    fs::copy(root.join("Cargo.lock"), &lock).map_err(|e| failed(&lock, e))?;
    let output = step::built("guided");
    let host = step::host()?;
    let mut build = step::cargo(&["build", "--release", "--target", &host]);
    build.current_dir(&guided).env("RUSTFLAGS", INSTRUMENTS).env("CARGO_TARGET_DIR", &output);
    step::run(&mut build)?;
    let binary = output.join(&host).join("release/guided");
    let mut broken = Vec::new();
    for target in targets {
        let (found, known) = (output.join("corpus").join(&target), root.join("fuzz/corpus").join(&target));
        let crashes = output.join("crashes").join(&target);
        for folder in [&found, &crashes] {
            fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        }
        println!("== {target}");
        let mut fuzz = step::program(&binary.to_string_lossy(), &[]);
        fuzz.env("GPULEDGER_FUZZ_TARGET", &target)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", crashes.display()))
            .args([&found, &known]);
        if let Err(message) = step::run(&mut fuzz) {
            println!("{message}\nwhat broke it is in {}: put it into {}", crashes.display(), known.display());
            broken.push(target);
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(format!("broken: {}", broken.join(", "))) }
}

/// Each target has a folder of its name.
fn corpora(folder: &Path) -> Result<Vec<String>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
