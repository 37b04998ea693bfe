//! One target, named by `GPULEDGER_FUZZ_TARGET`, under libFuzzer.

#![no_main]

use fuzz::TARGETS;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("GPULEDGER_FUZZ_TARGET").unwrap_or_default();
        let target = TARGETS.iter().find(|target| target.name == name);
        let target = target.unwrap_or_else(|| panic!("there is no target {name:?}"));
        let _ = RUN.set(target.run);
    },
    |data: &[u8]| {
        if let Some(run) = RUN.get() {
            run(data);
        }
    }
);
