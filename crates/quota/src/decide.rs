//! Limits, what counts against them, and the decision with every limit that it violates.
//!
//! What counts is what is really granted: every GPU of a workload, held or active. Limits are compared unrounded.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::{Bytes, Request};

/// What a tenant or project may hold at once. Absent is unlimited; 0 is nothing at all.
///
/// A limit below what is in use is legal: it takes nothing away and only refuses further admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes at once, over all workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// Bytes of one workload, over all of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_bytes: Option<Bytes>,
    /// Allocations at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u32>,
}

/// What is held now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// Bytes granted, over all allocations and all of their GPUs.
    pub bytes: Bytes,
    /// Allocations held or active.
    pub allocations: u32,
}

/// More was given back than is in use: the cache of use is wrong and must be rebuilt from the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an allocation of {given_back} was given back, but only {} in {} allocations are in use",
    used.bytes,
    used.allocations
)]
pub struct UnderflowError {
    /// What is in use, unchanged.
    pub used: Use,
    /// What should have been given back.
    pub given_back: Bytes,
}

impl Use {
    /// Counts one more allocation. What is granted stands on GPUs, so the sum stays far below [`Bytes::MAX`].
    pub fn take(&mut self, ask: Ask) {
        self.bytes = self.bytes.plus(ask.bytes);
        self.allocations = self.allocations.saturating_add(1);
    }

    /// Counts one allocation of `bytes` less.
    ///
    /// # Errors
    /// [`UnderflowError`] where that would be below nothing; the use is then unchanged, so that no quota grows.
    pub fn give_back(&mut self, bytes: Bytes) -> Result<(), UnderflowError> {
        let underflow = UnderflowError { used: *self, given_back: bytes };
        let left = self.bytes.0.checked_sub(bytes.0).ok_or(underflow)?;
        let allocations = self.allocations.checked_sub(1).ok_or(underflow)?;
        *self = Self { bytes: Bytes(left), allocations };
        Ok(())
    }
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Who is billed.
    Tenant,
    /// A subdivision of a tenant.
    Project,
}

impl Level {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Project => "project",
        }
    }
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Bytes at once, over all workloads.
    Bytes,
    /// Bytes of one workload, over all of its GPUs.
    WorkloadBytes,
    /// Allocations at once.
    Allocations,
}

impl LimitKind {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::WorkloadBytes => "workload_bytes",
            Self::Allocations => "allocations",
        }
    }
}

/// One level of the tree, with its limits and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    pub level: Level,
    pub limits: Limits,
    pub used: Use,
}

/// One workload that asks for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Bytes over all of its GPUs.
    pub bytes: Bytes,
}

impl From<&Request> for Ask {
    fn from(request: &Request) -> Self {
        Self { bytes: request.total() }
    }
}

/// A limit that an admission would break.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Violation {
    pub level: Level,
    pub limit_kind: LimitKind,
    /// The limit: bytes, or a number of allocations, as its kind says.
    pub limit: u64,
    /// What is in use, in the same unit; 0 where each workload is limited by itself.
    pub used: u64,
    /// What was asked, in the same unit.
    pub asked: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.level.name();
        match self.limit_kind {
            LimitKind::Bytes => write!(
                f,
                "the {level} may hold {} at once; {} are in use and {} were asked",
                Bytes(self.limit),
                Bytes(self.used),
                Bytes(self.asked)
            ),
            LimitKind::WorkloadBytes => write!(
                f,
                "the {level} may hold {} in one workload, over all of its GPUs; {} were asked",
                Bytes(self.limit),
                Bytes(self.asked)
            ),
            LimitKind::Allocations => write!(
                f,
                "the {level} may have {} allocations at once; {} are in use and {} was asked",
                self.limit, self.used, self.asked
            ),
        }
    }
}

/// Whether the ask keeps within every limit of the chain.
///
/// # Errors
/// Every violated limit, in the order of the chain; never an empty list.
pub fn decide(chain: &[Account], ask: Ask) -> Result<(), Vec<Violation>> {
    let violations: Vec<Violation> = chain.iter().flat_map(|account| violations(account, ask)).collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

fn violations(account: &Account, ask: Ask) -> impl Iterator<Item = Violation> {
    let Account { level, limits, used } = *account;
    let sides = [
        (LimitKind::Bytes, limits.bytes.map(|b| b.0), used.bytes.0, ask.bytes.0),
        (LimitKind::WorkloadBytes, limits.workload_bytes.map(|b| b.0), 0, ask.bytes.0),
        (LimitKind::Allocations, limits.allocations.map(u64::from), u64::from(used.allocations), 1),
    ];
    sides.into_iter().filter_map(move |(limit_kind, limit, used, asked)| {
        // a limit below the use leaves no room, rather than a difference that wraps around
        let limit = limit.filter(|limit| asked > limit.saturating_sub(used))?;
        Some(Violation { level, limit_kind, limit, used, asked })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenant(limits: Limits, used: Use) -> Account {
        Account { level: Level::Tenant, limits, used }
    }

    fn at_once(bytes: Bytes) -> Limits {
        Limits { bytes: Some(bytes), ..Limits::default() }
    }

    #[test]
    fn every_violated_limit_is_named() {
        let limits = Limits { bytes: Some(Bytes::gib(10)), workload_bytes: Some(Bytes::gib(3)), allocations: Some(2) };
        let used = Use { bytes: Bytes::gib(8), allocations: 2 };
        let chain = [tenant(limits, used), Account { level: Level::Project, limits: at_once(Bytes::gib(9)), used }];
        let violations = decide(&chain, Ask { bytes: Bytes::gib(4) }).unwrap_err();
        let kinds: Vec<_> = violations.iter().map(|v| (v.level, v.limit_kind)).collect();
        assert_eq!(
            kinds,
            [
                (Level::Tenant, LimitKind::Bytes),
                (Level::Tenant, LimitKind::WorkloadBytes),
                (Level::Tenant, LimitKind::Allocations),
                (Level::Project, LimitKind::Bytes),
            ]
        );
        assert_eq!(violations[0].to_string(), "the tenant may hold 10GiB at once; 8GiB are in use and 4GiB were asked");
        assert_eq!((violations[2].limit, violations[2].used, violations[2].asked), (2, 2, 1));
    }

    #[test]
    fn a_limit_lowered_below_its_use_only_refuses() {
        let used = Use { bytes: Bytes::gib(8), allocations: 1 };
        let violations = decide(&[tenant(at_once(Bytes::gib(5)), used)], Ask { bytes: Bytes(1) }).unwrap_err();
        assert_eq!(violations[0].used, Bytes::gib(8).0);
        let mut after = used;
        after.give_back(Bytes::gib(8)).unwrap();
        assert_eq!(after, Use::default());
    }

    #[test]
    fn limits_in_json_tell_nothing_from_unlimited() {
        let limits: Limits = serde_json::from_str(r#"{"bytes": 0}"#).unwrap();
        assert_eq!(limits, at_once(Bytes::ZERO));
        assert_eq!(serde_json::to_string(&Limits::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<Limits>(r#"{"byte": 5}"#).is_err());
        let kind = serde_json::to_value(LimitKind::WorkloadBytes).unwrap();
        assert_eq!(kind, LimitKind::WorkloadBytes.name());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit(usize, u64),
        Release(usize),
        Limit(usize, Limits),
    }

    fn limits() -> impl Strategy<Value = Limits> {
        let bytes = || proptest::option::of((0u64..40).prop_map(Bytes));
        (bytes(), bytes(), proptest::option::of(0u32..6)).prop_map(|(bytes, workload_bytes, allocations)| Limits {
            bytes,
            workload_bytes,
            allocations,
        })
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0usize..2, 1u64..20).prop_map(|(p, b)| Step::Admit(p, b)),
            2 => (0usize..8).prop_map(Step::Release),
            1 => (0usize..3, limits()).prop_map(|(a, l)| Step::Limit(a, l)),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Accounts 0 and 1 are projects of the tenant, which is account 2. The naive model sums the live allocations anew.
        #[test]
        fn no_sequence_exceeds_a_limit(first in proptest::array::uniform3(limits()), steps in steps()) {
            let mut limits = first;
            let mut used = [Use::default(); 3];
            let mut live: Vec<(usize, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Limit(account, new) => limits[account] = new,
                    Step::Release(n) if !live.is_empty() => {
                        let (project, bytes) = live.remove(n % live.len());
                        used[project].give_back(Bytes(bytes)).unwrap();
                        used[2].give_back(Bytes(bytes)).unwrap();
                    }
                    Step::Release(_) => {}
                    Step::Admit(project, bytes) => {
                        let chain = [(Level::Tenant, 2), (Level::Project, project)]
                            .map(|(level, n)| Account { level, limits: limits[n], used: used[n] });
                        let ask = Ask { bytes: Bytes(bytes) };
                        let fits = [2, project].iter().all(|&n| {
                            let of: Vec<u64> = live.iter().filter(|(p, _)| n == 2 || *p == n).map(|(_, b)| *b).collect();
                            limits[n].bytes.is_none_or(|l| of.iter().sum::<u64>() + bytes <= l.0)
                                && limits[n].workload_bytes.is_none_or(|l| bytes <= l.0)
                                && limits[n].allocations.is_none_or(|l| of.len() < l as usize)
                        });
                        let decision = decide(&chain, ask);
                        prop_assert_eq!(decision.is_ok(), fits, "{:?}", decision);
                        if fits {
                            live.push((project, bytes));
                            used[project].take(ask);
                            used[2].take(ask);
                        }
                    }
                }
                for (n, used) in used.iter().enumerate() {
                    let of: Vec<u64> = live.iter().filter(|(p, _)| n == 2 || *p == n).map(|(_, b)| *b).collect();
                    prop_assert_eq!(used.bytes.0, of.iter().sum::<u64>());
                    prop_assert_eq!(used.allocations as usize, of.len());
                }
            }
        }
    }
}
