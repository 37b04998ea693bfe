//! Frozen prices, and which of them are in force when.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::{BillingUnit, Currency, GpuModel, Instant, PlanId, PlanVersionId, Price, Span, list::map_at_most};

/// What one billing unit of memory of a GPU costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Of memory reserved, used or not.
    pub reserved: Price,
    /// Of memory used above the reservation; absent: not charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Price>,
}

/// A rate for every GPU model there is or will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Of each model that `models` does not name.
    pub default: Rate,
    /// Of the models named: 1000 at most, each once.
    #[serde(default, deserialize_with = "map_at_most::<1000, _, _, _>")]
    pub models: BTreeMap<GpuModel, Rate>,
}

impl Rates {
    /// The rate of a model.
    #[must_use]
    pub fn rate_for(&self, model: &GpuModel) -> &Rate {
        self.models.get(model).unwrap_or(&self.default)
    }
}

/// One frozen version of a price list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanVersion {
    pub plan_version_id: PlanVersionId,
    pub plan_id: PlanId,
    /// From 1 within its plan.
    pub version: u32,
    pub currency: Currency,
    /// What the prices are prices of.
    pub unit: BillingUnit,
    pub rates: Rates,
}

/// A plan version and the time over which it prices a tenant's use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    pub span: Span,
    pub plan: PlanVersion,
}

/// Which plan version is in force when, for one tenant: in order, without overlap, in one currency, with edges on whole
/// UTC minutes, because readings are cut there and belong whole to the price at their start. It may have holes; nothing
/// in a hole can be priced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    currency: Currency,
    in_force: Vec<InForce>,
}

/// Why plan versions and spans are no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("plan version {plan} is in {found}, the schedule in {wanted}")]
    Currency { plan: PlanVersionId, found: Currency, wanted: Currency },
    #[error("plan version {plan} is in force over no time at {at}")]
    Empty { plan: PlanVersionId, at: Instant },
    #[error("plan version {plan} changes at {at}, which is no whole UTC minute")]
    NotWholeMinute { plan: PlanVersionId, at: Instant },
    #[error("plan versions {first} and {second} are both in force at {at}")]
    Overlap { first: PlanVersionId, second: PlanVersionId, at: Instant },
}

/// No plan version is in force at an instant that is to be priced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no plan is in force at {at}")]
pub struct NoPlan {
    pub at: Instant,
}

impl Schedule {
    /// A schedule in `currency`. The entries may come in any order; adjoining spans of one version become one.
    ///
    /// # Errors
    /// An entry that is empty, in another currency, off the whole minute, or that overlaps another.
    pub fn new(mut in_force: Vec<InForce>, currency: Currency) -> Result<Self, ScheduleError> {
        for InForce { span, plan } in &in_force {
            let id = plan.plan_version_id;
            if plan.currency != currency {
                return Err(ScheduleError::Currency { plan: id, found: plan.currency, wanted: currency });
            }
            if span.is_empty() {
                return Err(ScheduleError::Empty { plan: id, at: span.start() });
            }
            if let Some(at) = [span.start(), span.end()].into_iter().find(|at| at.minute_start() != *at) {
                return Err(ScheduleError::NotWholeMinute { plan: id, at });
            }
        }
        in_force.sort_unstable_by_key(|entry| entry.span);
        let mut joined: Vec<InForce> = Vec::with_capacity(in_force.len());
        for next in in_force {
            match joined.last_mut() {
                Some(last) if next.span.start() < last.span.end() => {
                    return Err(ScheduleError::Overlap {
                        first: last.plan.plan_version_id,
                        second: next.plan.plan_version_id,
                        at: next.span.start(),
                    });
                }
                Some(last) if next.span.start() == last.span.end() && next.plan == last.plan => {
                    last.span = Span::clamped(last.span.start(), next.span.end());
                }
                _ => joined.push(next),
            }
        }
        Ok(Self { currency, in_force: joined })
    }

    /// The currency of all its plan versions.
    #[must_use]
    pub const fn currency(&self) -> Currency {
        self.currency
    }

    /// Its plan versions, in order of time; a version that returns is there again.
    pub fn plans(&self) -> impl Iterator<Item = &PlanVersion> {
        self.in_force.iter().map(|entry| &entry.plan)
    }

    /// The plan version in force at an instant.
    ///
    /// # Errors
    /// [`NoPlan`] in a hole.
    pub fn plan_at(&self, at: Instant) -> Result<&PlanVersion, NoPlan> {
        self.in_force[self.first_ending_after(at)..]
            .first()
            .filter(|entry| entry.span.contains(at))
            .map(|entry| &entry.plan)
            .ok_or(NoPlan { at })
    }

    /// A span cut at the instants of change, each piece with its plan version; the pieces are in order, none is empty
    /// and they join to the span.
    ///
    /// # Errors
    /// [`NoPlan`] with the first instant of the span that lies in a hole.
    pub fn segments(&self, span: Span) -> Result<Vec<(Span, &PlanVersion)>, NoPlan> {
        let mut pieces = Vec::with_capacity(1);
        let mut at = span.start();
        for entry in &self.in_force[self.first_ending_after(at)..] {
            match entry.span.intersection(&span) {
                Some(piece) if piece.start() == at => {
                    at = piece.end();
                    pieces.push((piece, &entry.plan));
                }
                _ => break,
            }
        }
        if at < span.end() {
            return Err(NoPlan { at });
        }
        Ok(pieces)
    }

    fn first_ending_after(&self, at: Instant) -> usize {
        self.in_force.partition_point(|entry| entry.span.end() <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, currency, model, plan, price, span};

    fn entry(from: &str, to: &str, version: u32) -> InForce {
        InForce { span: span(from, to), plan: plan(version, "USD", BillingUnit::GbHour, "0.01", None) }
    }

    #[test]
    fn every_model_has_a_rate() {
        let rates = Rates {
            default: Rate { reserved: price("0.01"), above: None },
            models: BTreeMap::from([(
                model("NVIDIA H200"),
                Rate { reserved: price("0.05"), above: Some(price("0.1")) },
            )]),
        };
        assert_eq!(rates.rate_for(&model("NVIDIA H200")).reserved, price("0.05"));
        assert_eq!(rates.rate_for(&model("NVIDIA T4")).reserved, price("0.01"));
        let json = serde_json::to_string(&rates).unwrap();
        assert_eq!(
            json,
            r#"{"default":{"reserved":"0.01"},"models":{"NVIDIA H200":{"reserved":"0.05","above":"0.1"}}}"#
        );
        assert_eq!(serde_json::from_str::<Rates>(&json).unwrap(), rates);
    }

    /// Public report 26 (CloudKitty): a price of 100.00 was refused for its three whole digits.
    #[test]
    fn report_26_a_plan_takes_any_price_but_a_negative_one() {
        let read = |p: &str| serde_json::from_str::<Rate>(&format!(r#"{{"reserved":"{p}"}}"#));
        assert_eq!(read("100.00").unwrap().reserved, price("100"));
        assert!(read("-0.01").is_err());
        assert!(serde_json::from_str::<Rate>(r#"{"reserved":"1","abvoe":"1"}"#).is_err());
    }

    #[test]
    fn a_schedule_holds_its_rules() {
        let usd = currency("USD");
        let new = |entries| Schedule::new(entries, usd);
        assert!(matches!(
            new(vec![entry("2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z", 1)]),
            Err(ScheduleError::Empty { .. })
        ));
        assert!(matches!(
            new(vec![entry("2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z", 1)]),
            Err(ScheduleError::NotWholeMinute { .. })
        ));
        assert!(matches!(
            new(vec![
                entry("2026-11-02T00:00:00Z", "2026-11-04T00:00:00Z", 2),
                entry("2026-11-01T00:00:00Z", "2026-11-02T00:01:00Z", 1),
            ]),
            Err(ScheduleError::Overlap { .. })
        ));
        assert!(matches!(
            Schedule::new(vec![entry("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z", 1)], currency("KRW")),
            Err(ScheduleError::Currency { .. })
        ));
    }

    #[test]
    fn segments_split_at_changes_and_name_the_hole() {
        let schedule = Schedule::new(
            vec![
                entry("2026-11-03T00:00:00Z", "2026-11-04T00:00:00Z", 2),
                entry("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z", 1),
                entry("2026-11-02T00:00:00Z", "2026-11-03T00:00:00Z", 1),
                entry("2026-11-05T00:00:00Z", "2026-11-06T00:00:00Z", 3),
            ],
            currency("USD"),
        )
        .unwrap();
        let cut = |from, to| {
            schedule
                .segments(span(from, to))
                .map(|pieces| pieces.into_iter().map(|(s, p)| (s.to_string(), p.version)).collect::<Vec<_>>())
        };
        let first = "[2026-11-01T12:00:00Z, 2026-11-03T00:00:00Z)".to_owned();
        let second = "[2026-11-03T00:00:00Z, 2026-11-04T00:00:00Z)".to_owned();
        assert_eq!(cut("2026-11-01T12:00:00Z", "2026-11-04T00:00:00Z"), Ok(vec![(first, 1), (second, 2)]));
        let hole = |t| Err(NoPlan { at: at(t) });
        assert_eq!(cut("2026-11-03T00:00:00Z", "2026-11-05T12:00:00Z"), hole("2026-11-04T00:00:00Z"));
        assert_eq!(cut("2026-10-31T23:59:59Z", "2026-11-01T12:00:00Z"), hole("2026-10-31T23:59:59Z"));
        assert_eq!(cut("2026-11-05T23:00:00Z", "2026-11-06T01:00:00Z"), hole("2026-11-06T00:00:00Z"));
        assert_eq!(cut("2026-11-07T00:00:00Z", "2026-11-07T00:00:00Z"), Ok(vec![]));
        assert_eq!(schedule.plan_at(at("2026-11-03T00:00:00Z")).unwrap().version, 2);
        assert_eq!(schedule.plan_at(at("2026-11-04T00:00:00Z")), Err(NoPlan { at: at("2026-11-04T00:00:00Z") }));
    }
}
