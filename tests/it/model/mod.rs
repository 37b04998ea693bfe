//! Random histories through the real product, against a naive model that knows only the rules.
//!
//! Each history has two pools, three tenants in zones whose months begin at different instants, and runs through the
//! end of two months and New York's change of the clock. After each step the model and the product must agree on every
//! allocation, placement and quota; now and then, and at the end, on every millisecond of every card, and on every
//! charge of every invoice.

mod admission;
mod history;
mod ledger;
mod meter;
mod step;
mod verdict;

use history::History;
use rand::Rng;
use support::Seed;

/// How many histories the tests of this file run together; `GPULEDGER_HISTORIES` sets it.
const HISTORIES: usize = 24;
const TESTS: usize = 8;
const STEPS: usize = 400;

async fn run_histories() {
    let wanted = std::env::var("GPULEDGER_HISTORIES").map_or(HISTORIES, |n| n.parse().unwrap());
    let seed = Seed::new();
    let mut seeds = seed.generator();
    for _ in 0..wanted.div_ceil(TESTS) {
        let mut history = History::new(seeds.next_u64()).await;
        for n in 1..=STEPS {
            history.step().await;
            if n % 130 == 0 {
                history.check_balance().await;
            }
        }
        history.close().await;
    }
}

macro_rules! histories {
    ($($name:ident)*) => {$(
        #[tokio::test]
        async fn $name() {
            run_histories().await;
        }
    )*};
}

// several tests, so that they run beside each other
histories! {
    histories_agree_with_the_naive_model_1
    histories_agree_with_the_naive_model_2
    histories_agree_with_the_naive_model_3
    histories_agree_with_the_naive_model_4
    histories_agree_with_the_naive_model_5
    histories_agree_with_the_naive_model_6
    histories_agree_with_the_naive_model_7
    histories_agree_with_the_naive_model_8
}
