//! Every target over its corpus and over mutations of it, for a moment, with a seed. What libFuzzer finds is put into
//! the corpus and stays found.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fuzz::{BODIES, TARGETS, Target};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
};

/// Mutations of each target, unless `GPULEDGER_FUZZ_RUNS` says otherwise.
const RUNS: u32 = 4_000;
/// The longest input that is made.
const LONGEST: usize = 4096;

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Runs a target; what makes it panic is shown, and how to find it again.
fn attack(target: &Target, input: &[u8], seed: u64) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(
        outcome.is_ok(),
        "{} with GPULEDGER_TEST_SEED={seed}; to keep it: put it into fuzz/corpus/{}: {:?}",
        target.name,
        target.name,
        String::from_utf8_lossy(input)
    );
}

fn mutate(input: &mut Vec<u8>, target: &Target, others: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    match random.random_range(0..8) {
        0 => input.insert(at, random.random()),
        1 if at < input.len() => {
            input.remove(at);
        }
        2 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        3 if at < input.len() => input[at] = b"0919-+.,:'\"{}[]\0\xff "[random.random_range(0..18)],
        4 if !target.words.is_empty() => {
            let word = target.words[random.random_range(0..target.words.len())];
            drop(input.splice(at..at, word.bytes()));
        }
        5 => {
            let other = &others[random.random_range(0..others.len())];
            let from = random.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        6 if at < input.len() => {
            let end = random.random_range(at..input.len().min(at + 64));
            let again = input[at..end].repeat(random.random_range(1..8));
            drop(input.splice(at..at, again));
        }
        _ => {
            let mut noise = [0_u8; 8];
            random.fill_bytes(&mut noise);
            drop(input.splice(at..at, noise));
        }
    }
    input.truncate(LONGEST);
}

fn short(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let mut inputs = corpus(target);
    inputs.extend(target.words.iter().map(|word| word.as_bytes().to_vec()));
    let seed = number("GPULEDGER_TEST_SEED", 20_261_201);
    for input in &inputs {
        attack(target, input, seed);
    }
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..number("GPULEDGER_FUZZ_RUNS", RUNS.into()) {
        let mut input = inputs[random.random_range(0..inputs.len())].clone();
        for _ in 0..random.random_range(1..6) {
            mutate(&mut input, target, &inputs, &mut random);
        }
        attack(target, &input, seed);
    }
}

macro_rules! short_runs {
    ($($name:ident),*) => {
        $(#[test] fn $name() { short(stringify!($name)); })*

        #[test]
        fn every_target_has_a_run() {
            assert_eq!([$(stringify!($name)),*], TARGETS.map(|target| target.name));
        }
    };
}
short_runs!(batch, body, credential, csv, query, smi, unit);

/// A new body is attacked like the others.
#[test]
fn every_body_of_the_document_is_a_target() {
    let document = serde_json::to_value(api::openapi()).unwrap();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let documented: BTreeSet<&str> = operations
        .filter_map(|operation| operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str())
        .filter_map(|reference| reference.rsplit('/').next())
        .collect();
    assert_eq!(documented, BODIES.iter().map(|(name, _)| *name).collect());
}
