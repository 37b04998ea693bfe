use super::*;
use crate::fixture::{always, bill, golden, golden_facts, header, interval, plan, span};
use types::BillingUnit;

/// Engine v1 is frozen: this document and digest never change. Should one differ, the engine was changed; make a new one.
#[test]
fn golden_document_and_digest_of_v1() {
    let stored = golden();
    let json = serde_json::to_string_pretty(&stored.document).unwrap();
    assert_eq!(json, include_str!("golden.json").trim_end());
    assert_eq!(stored.digest, "2dfa3cd47dcb7c9616a78f30cfcbaa39535a556e05b9fa5cf82733f502882678");
}

#[test]
fn each_price_has_its_line_and_late_facts_are_corrections() {
    let document = golden().document;
    let seen: Vec<_> = document
        .lines
        .iter()
        .map(|l| (l.number, l.correction_of.as_deref(), l.kind.name(), l.model.as_str(), l.charges))
        .collect();
    assert_eq!(
        seen,
        [
            (1, None, "reserved", "NVIDIA H200", 1),
            (2, None, "reserved", "NVIDIA H200", 1),
            (3, None, "reserved", "NVIDIA T4", 1),
            (4, None, "reserved", "NVIDIA T4", 1),
            (5, None, "above", "NVIDIA H200", 2),
            (6, Some("2026-10"), "reserved", "NVIDIA H200", 1),
            (7, Some("2026-10"), "above", "NVIDIA H200", 1),
        ]
    );
}

/// A line is rounded once, over the sum of its charges, not charge by charge.
#[test]
fn a_line_is_rounded_once() {
    let second = span("2026-11-02T00:00:00Z", "2026-11-02T00:00:01Z");
    let sources: Vec<_> = (1..=10).map(|id| interval(id, 1_000_000_000, second)).collect();
    let schedule = always(plan(1, "USD", BillingUnit::GbSecond, "0.004", None));
    let (document, _) = bill(&sources, &schedule, header("2026-11", "UTC", "USD"));
    assert_eq!(document.total.to_string(), "0.04");
}

/// Public report 14 (Kill Bill 1124): the total is checked against the rounded lines, so 3.685 gives 3.69 and no alarm.
#[test]
fn report_14_the_total_is_the_sum_of_rounded_lines() {
    let day = span("2026-11-02T00:00:00Z", "2026-11-02T00:00:55Z");
    let schedule = always(plan(1, "USD", BillingUnit::GbSecond, "0.067", None));
    let other_project =
        crate::rating::Source { project_id: uuid::Uuid::from_u128(0x301).into(), ..interval(2, 1_000_000_000, day) };
    let sources = [interval(1, 1_000_000_000, day), other_project];
    let (document, _) = bill(&sources, &schedule, header("2026-11", "UTC", "USD"));
    let amounts: Vec<_> = document.lines.iter().map(|l| l.amount.to_string()).collect();
    assert_eq!(amounts, ["3.69", "3.69"]);
    assert_eq!(document.total.to_string(), "7.38");
}

#[test]
fn a_later_period_is_refused() {
    let stored = golden();
    assert!(matches!(
        assemble("v1", header("2026-10", "America/New_York", "USD"), &stored.charges),
        Err(AssembleError::LaterPeriod { .. })
    ));
}

#[test]
fn a_period_without_charges_is_an_empty_invoice() {
    let document = assemble("v1", header("2026-11", "Asia/Seoul", "KRW"), &[]).unwrap();
    assert_eq!((document.lines.len(), document.total.to_string().as_str()), (0, "0"));
}

#[test]
fn an_unknown_engine_is_refused() {
    assert_eq!(
        assemble("v9", header("2026-11", "Asia/Seoul", "KRW"), &[]),
        Err(AssembleError::UnknownEngine("v9".into()))
    );
}

#[test]
fn the_digest_covers_charges_and_the_plans_they_name() {
    let stored = golden();
    let mut plans: Vec<PlanVersion> = golden_facts().schedule.plans().cloned().collect();
    let of = |charges: &[Charge], plans: &[PlanVersion]| digest(&stored.document, charges, plans);
    assert_eq!(of(&stored.charges, &plans), stored.digest);
    plans.reverse();
    plans.push(plan(77, "USD", BillingUnit::GbHour, "1", None));
    assert_eq!(of(&stored.charges, &plans), stored.digest, "order and strangers do not matter");
    assert_ne!(of(&stored.charges, &plans[1..]), stored.digest);
    assert_ne!(of(&stored.charges[1..], &plans), stored.digest);
    let mut changed = stored.charges.clone();
    changed[0].allocation_id = uuid::Uuid::from_u128(9).into();
    assert_ne!(of(&changed, &plans), stored.digest);
}

#[test]
fn a_chain_depends_on_every_link() {
    let first = chain(CHAIN_START, 1, "aa");
    assert_eq!(first.len(), CHAIN_START.len());
    assert_ne!(first, chain(CHAIN_START, 2, "aa"));
    assert_ne!(first, chain(CHAIN_START, 1, "ab"));
    assert_ne!(chain(&first, 2, "bb"), chain(CHAIN_START, 2, "bb"));
}
