//! `cargo xtask tidy`: the rules of the code's shape that no compiler checks. Each rule is one entry of [`RULES`] with
//! its reason, which is printed with its violations.

mod dependency;
mod migration;
mod repository;
mod shape;
mod source;
mod word;

use crate::{Outcome, step};
use repository::Repository;

/// One rule.
struct Rule {
    name: &'static str,
    reason: &'static str,
    /// Where it is broken, a line each.
    broken: fn(&Repository) -> Vec<String>,
}

const RULES: &[Rule] = &[
    Rule {
        name: "crate edges",
        reason: "a crate uses only what stands to its left in `types < metering, quota, placement, billing < store < \
                 app < api < gpuledger` and `types < metering < agent < gpuledger`, so that each can be read, tested \
                 and replaced without what stands to its right; api in particular opens no transaction",
        broken: dependency::edges,
    },
    Rule {
        name: "confined dependencies",
        reason: "SQL is written in store alone and HTTP in api alone; the binary starts them",
        broken: dependency::confined,
    },
    Rule {
        name: "pure crates",
        reason: "rules are functions of their arguments: no runtime, no randomness, no I/O, so that any decision and \
                 any amount can be computed again from the recorded facts",
        broken: dependency::pure,
    },
    Rule { name: "banned dependencies", reason: "each has its reason in deny.toml", broken: dependency::banned },
    Rule {
        name: "exact arithmetic",
        reason: "bytes, time and money are integers: a floating-point number does not add up",
        broken: word::floats,
    },
    Rule {
        name: "time is an argument",
        reason: "a rule that reads a clock cannot be replayed or tested at a period's edge",
        broken: word::clocks,
    },
    Rule {
        name: "schema derives only",
        reason: "the wire types of pure crates describe themselves to OpenAPI; operations are described in api",
        broken: word::operations,
    },
    Rule {
        name: "scoped store",
        reason: "a function that reads or writes a tenant's rows says for whom, by a Scope or a transaction that has \
                 one: the first of the two walls between tenants",
        broken: shape::unscoped,
    },
    Rule {
        name: "file length",
        reason: "a file is about one noun and fits in one reading: 500 lines, or `// tidy: long file: REASON` on top",
        broken: shape::long_files,
    },
    Rule {
        name: "function length",
        reason: "a function fits on one screen: 70 lines, or `// tidy: long function: REASON` above it",
        broken: shape::long_functions,
    },
    Rule {
        name: "file names",
        reason: "a file is named after its noun; utils, common, helpers and managers are about nothing, so they grow",
        broken: shape::vague_names,
    },
    Rule {
        name: "nothing put off",
        reason: "what has to be done is an issue, where somebody will find it",
        broken: word::put_off,
    },
    Rule {
        name: "frozen migrations",
        reason: "a merged migration has been applied somewhere; changing it leaves that database with another schema. \
                 Add a new one, then `cargo xtask tidy --bless`",
        broken: migration::changed,
    },
];

/// Checks all rules; with `bless`, records new migrations first.
pub fn run(bless: bool) -> Outcome {
    let root = step::root();
    if bless {
        for name in migration::bless(&root)? {
            println!("{name} is frozen from now on");
        }
    }
    let repository = Repository::read(&root)?;
    let mut violations = 0;
    let mut broken_rules = 0;
    for rule in RULES {
        let broken = (rule.broken)(&repository);
        if broken.is_empty() {
            continue;
        }
        println!("{}: {}", rule.name, rule.reason);
        for line in &broken {
            println!("  {line}");
        }
        violations += broken.len();
        broken_rules += 1;
    }
    let files = repository.sources().count();
    if violations == 0 {
        println!("tidy: {} rules hold in {files} files", RULES.len());
        return Ok(());
    }
    Err(format!("tidy: {violations} violations of {broken_rules} rules in {files} files"))
}
