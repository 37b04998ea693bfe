//! Randomness that a failing test can be run with again.

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{env, thread};

const VARIABLE: &str = "GPULEDGER_TEST_SEED";

/// The seed of a test, printed when the test fails. `GPULEDGER_TEST_SEED` sets it.
#[derive(Debug)]
pub struct Seed(u64);

impl Seed {
    /// A new one, or the given one.
    ///
    /// # Panics
    /// When the given one is no number: running with another would mislead.
    #[must_use]
    pub fn new() -> Self {
        Self(match env::var(VARIABLE) {
            Ok(text) => match text.parse() {
                Ok(seed) => seed,
                Err(e) => panic!("{VARIABLE}={text}: {e}"),
            },
            Err(_) => rand::rng().next_u64(),
        })
    }

    /// A generator that gives the same numbers for the same seed.
    #[must_use]
    pub fn generator(&self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }
}

impl Default for Seed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("run it again with {VARIABLE}={}", self.0);
        }
    }
}
