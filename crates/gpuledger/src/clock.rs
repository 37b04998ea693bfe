//! The present time of servers and agents: the machine's clock, which tests may move.
//!
//! Tests with real processes cannot wait for the end of a month. They move the clock of the binary that they built by
//! `GPULEDGER_TEST_CLOCK_MS`. Only a build with debug assertions can; any other refuses to start while the variable is
//! set, so that no installation bills by a clock that somebody moved.

use crate::error::CliError;
use std::env;
use types::Clock;

const MOVED: &str = "GPULEDGER_TEST_CLOCK_MS";

/// The clock that this process lives by.
pub(crate) fn clock() -> Result<Clock, CliError> {
    match env::var_os(MOVED) {
        None => Ok(Clock::System),
        Some(by_ms) => moved(&by_ms.to_string_lossy(), cfg!(debug_assertions)),
    }
}

fn moved(by_ms: &str, is_for_tests: bool) -> Result<Clock, CliError> {
    if !is_for_tests {
        return Err(CliError::Usage(format!("{MOVED} is set, and only builds for tests let their clock be moved")));
    }
    let by_ms =
        by_ms.parse::<i64>().map_err(|e| CliError::Usage(format!("{MOVED} must be whole milliseconds: {e}")))?;
    tracing::warn!(by_ms, "the clock is moved for a test");
    Ok(Clock::Moved(by_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_for_tests_has_its_clock_moved() {
        assert!(matches!(moved("60000", true), Ok(Clock::Moved(60_000))));
        assert!(moved("1m", true).is_err());
        assert!(moved("60000", false).is_err());
    }
}
