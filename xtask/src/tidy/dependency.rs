//! Rules about who depends on what.

use super::repository::{Package, Repository};
use crate::step;
use std::fs;

/// Rules as functions of their arguments.
pub const PURE: [&str; 5] = ["types", "metering", "quota", "placement", "billing"];

/// Tests: these may use everything.
const TESTS: [&str; 2] = ["it", "fuzz"];

/// What a crate may use of the workspace.
const EDGES: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("metering", &["types"]),
    ("quota", &["types"]),
    ("placement", &["types"]),
    ("billing", &["types"]),
    ("postgres", &[]),
    ("store", &["types", "metering", "quota", "placement", "billing"]),
    ("app", &["types", "metering", "quota", "placement", "billing", "store"]),
    ("api", &["types", "metering", "quota", "placement", "billing", "app"]),
    ("agent", &["types", "metering"]),
    ("gpuledger", &["types", "metering", "quota", "placement", "billing", "postgres", "store", "app", "api", "agent"]),
    ("xtask", &["postgres"]),
];

/// Who alone may use a dependency, besides the tests.
const CONFINED: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("jiff-sqlx", &["store"]),
    ("axum", &["api", "gpuledger"]),
    ("tower", &["api", "gpuledger"]),
    ("tower-http", &["api", "gpuledger"]),
    ("http", &["api", "gpuledger"]),
    ("hyper", &["api", "gpuledger"]),
    ("utoipa", &["api", "gpuledger", "types", "metering", "quota", "placement", "billing"]),
    ("utoipa-axum", &["api", "gpuledger"]),
    ("utoipa-swagger-ui", &["api", "gpuledger"]),
    // app sends commands to other servers and asks token issuers for their keys; it serves nothing
    ("reqwest", &["agent", "app", "gpuledger"]),
];

/// What no pure crate may use.
const IMPURE: [&str; 9] = ["tokio", "rand", "getrandom", "reqwest", "nix", "libc", "tracing", "metrics", "tempfile"];

pub fn edges(repository: &Repository) -> Vec<String> {
    let is_ours = |name: &str| repository.packages.iter().any(|package| package.name == name);
    let mut broken = Vec::new();
    for package in &repository.packages {
        if TESTS.contains(&package.name.as_str()) {
            continue;
        }
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package.name) else {
            broken.push(format!(
                "{} has no place in the order: give it one in xtask/src/tidy/dependency.rs",
                package.name
            ));
            continue;
        };
        for used in package.dependencies().filter(|used| is_ours(used) && !allowed.contains(used)) {
            broken.push(format!("{} uses {used}", package.name));
        }
    }
    broken
}

pub fn confined(repository: &Repository) -> Vec<String> {
    uses(repository, |package, used| {
        let name = package.name.as_str();
        !TESTS.contains(&name) && CONFINED.iter().any(|(confined, to)| *confined == used && !to.contains(&name))
    })
}

pub fn pure(repository: &Repository) -> Vec<String> {
    uses(repository, |package, used| PURE.contains(&package.name.as_str()) && IMPURE.contains(&used))
}

fn uses(repository: &Repository, is_broken: impl Fn(&Package, &str) -> bool) -> Vec<String> {
    repository
        .packages
        .iter()
        .flat_map(|package| package.dependencies().map(move |used| (package, used)))
        .filter(|(package, used)| is_broken(package, used))
        .map(|(package, used)| format!("{} uses {used}", package.name))
        .collect()
}

/// Every crate that is built for any target with any feature, against the bans of deny.toml.
pub fn banned(repository: &Repository) -> Vec<String> {
    let deny = match fs::read_to_string(repository.root.join("deny.toml")).map(|text| text.parse::<toml::Table>()) {
        Ok(Ok(deny)) => deny,
        other => return vec![format!("deny.toml cannot be read: {other:?}")],
    };
    let bans: Vec<(&str, &str)> = deny["bans"]["deny"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ban| Some((ban.get("crate")?.as_str()?, ban.get("reason")?.as_str()?)))
        .collect();
    let tree = ["tree", "--workspace", "--all-features", "--target", "all", "--prefix", "none", "--format", "{p}"];
    let tree = match step::output(&mut step::cargo(&tree)) {
        Ok(tree) => String::from_utf8_lossy(&tree).into_owned(),
        Err(message) => return vec![message],
    };
    let is_built = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    if bans.is_empty() || !is_built("serde") {
        return vec!["deny.toml bans nothing, or the tree of dependencies is empty".to_owned()];
    }
    bans.iter()
        .filter(|(name, _)| is_built(name))
        .map(|(name, reason)| format!("{name} is built: {reason}; see `cargo tree --target all -i {name}`"))
        .collect()
}
