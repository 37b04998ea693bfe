//! `cargo xtask openapi`: the document is generated from the handlers and committed, so that a change of the API is
//! seen in review.

use crate::{Outcome, step};
use std::fs;

pub fn run(check: bool) -> Outcome {
    step::run(&mut step::cargo(&["build", "--quiet", "--package", "gpuledger"]))?;
    let binary = step::built("debug").join("gpuledger");
    let generated = step::output(&mut step::program(&binary.to_string_lossy(), &["openapi"]))?;
    let path = step::root().join("openapi/openapi.json");
    let committed = fs::read(&path).unwrap_or_default();
    if committed == generated {
        return Ok(());
    }
    if check {
        return Err("openapi/openapi.json is not what the handlers say: renew it with `cargo xtask openapi`".to_owned());
    }
    fs::write(&path, generated).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("openapi/openapi.json is renewed");
    Ok(())
}
