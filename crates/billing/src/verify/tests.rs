use super::*;
use crate::{
    amount::Amount,
    fixture::{golden, golden_facts},
};
use types::{ByteMillis, Bytes, Price};

fn told(stored: &Stored, facts: &Facts) -> Vec<String> {
    verify(stored, facts).iter().map(ToString::to_string).collect()
}

#[test]
fn what_was_issued_is_identical() {
    assert_eq!(told(&golden(), &golden_facts()), [""; 0]);
    // also after JSON, as it is stored
    let mut stored = golden();
    let json = serde_json::to_string(&stored.document).unwrap();
    stored.document = serde_json::from_str(&json).unwrap();
    assert_eq!(told(&stored, &golden_facts()), [""; 0]);
}

#[test]
fn a_changed_fact_shows_in_charge_line_total_and_digest() {
    let mut facts = golden_facts();
    facts.sources[2].bytes = Bytes(94_489_280_514);
    let told = told(&golden(), &facts);
    assert_eq!(told.len(), 5, "{told:#?}");
    assert!(
        told[0].starts_with(
            "charge of interval 00000000-0000-0000-0000-000000000003, reserved, segment 0: quantity is stored as 2"
        ),
        "{}",
        told[0]
    );
    assert_eq!(told[1], "line 1: amount is stored as 129.40, recomputed as 258.81");
    assert!(told[2].starts_with("line 1: quantity"));
    assert!(told[3].starts_with("invoice: total is stored as "));
    assert!(told[4].starts_with("invoice: digest is stored as "));
}

#[test]
fn a_changed_price_shows() {
    let mut facts = golden_facts();
    let in_force = facts
        .schedule
        .plans()
        .cloned()
        .zip(["2026-01-01T00:00:00Z/2026-11-15T12:00:00Z", "2026-11-15T12:00:00Z/2027-11-01T00:00:00Z"])
        .map(|(mut plan, span)| {
            let (from, to) = span.split_once('/').unwrap();
            plan.rates.default.reserved = Price::from_nanos(12_500_001).unwrap();
            crate::plan::InForce { span: crate::fixture::span(from, to), plan }
        })
        .collect();
    facts.schedule = Schedule::new(in_force, facts.schedule.currency()).unwrap();
    let told = told(&golden(), &facts);
    assert!(told.contains(&"line 3: price is stored as 0.0125, recomputed as 0.012500001".to_owned()), "{told:#?}");
}

#[test]
fn a_changed_document_shows() {
    let mut stored = golden();
    stored.document.lines[1].amount = Amount::new(stored.document.currency, 1);
    assert_eq!(told(&stored, &golden_facts()), ["line 2: amount is stored as 0.01, recomputed as 11.60"]);

    let mut stored = golden();
    stored.document.total = Amount::new(stored.document.currency, 1);
    assert_eq!(told(&stored, &golden_facts()), ["invoice: total is stored as 0.01, recomputed as 149.44"]);

    let mut stored = golden();
    let gone = stored.document.lines.pop().unwrap();
    assert_eq!(
        told(&stored, &golden_facts()),
        [format!("line 7: amount is stored as nothing, recomputed as {}", gone.amount)]
    );

    let mut stored = golden();
    stored.digest = "00".into();
    assert!(told(&stored, &golden_facts())[0].starts_with("invoice: digest is stored as 00,"));

    let mut stored = golden();
    stored.document.engine = "v0".into();
    assert_eq!(
        told(&stored, &golden_facts()),
        ["invoice: charges is stored as nothing, recomputed as there is no rating engine \"v0\""]
    );
}

#[test]
fn a_changed_period_or_currency_shows() {
    let mut stored = golden();
    stored.document.zone = "Asia/Seoul".parse().unwrap();
    assert!(
        told(&stored, &golden_facts())
            .iter()
            .any(|t| t.starts_with("invoice: period is stored as [2026-11-01T04:00:00Z,"))
    );
    let mut stored = golden();
    stored.document.currency = "EUR".parse().unwrap();
    assert!(
        told(&stored, &golden_facts()).contains(&"invoice: currency is stored as EUR, recomputed as USD".to_owned())
    );
}

#[test]
fn charges_lost_added_or_doubled_show() {
    let mut stored = golden();
    let lost = stored.charges.remove(0);
    let text = format!(
        "charge of interval {}, reserved, segment 0: quantity is stored as nothing, recomputed as {}",
        lost.source_id, lost.quantity
    );
    assert_eq!(told(&stored, &golden_facts()), [text]);

    let mut stored = golden();
    let mut strange = stored.charges[0].clone();
    strange.segment = 9;
    strange.quantity = ByteMillis(5);
    stored.charges.push(strange);
    let told_strange = told(&stored, &golden_facts());
    assert_eq!(told_strange.len(), 1);
    assert!(told_strange[0].ends_with("segment 9: quantity is stored as 5, recomputed as nothing"));

    let mut stored = golden();
    stored.charges.push(stored.charges[0].clone());
    assert!(told(&stored, &golden_facts())[0].ends_with("charge is stored as twice, recomputed as once"));
}

/// An interval over a month edge has charges on two invoices; each invoice is verified by the charges linked to it.
#[test]
fn charges_on_other_invoices_are_no_difference() {
    let facts = golden_facts();
    let over_the_edge: Vec<Source> = facts.sources[1..2].to_vec();
    let document = golden().document;
    let all = rating::rate("v1", &over_the_edge, &facts.schedule, &document.zone).unwrap();
    assert_eq!(all.len(), 2);
    for (charge, label) in all.into_iter().zip(["2026-11", "2026-12"]) {
        let header = crate::fixture::header(label, "America/New_York", "USD");
        let charges = vec![charge];
        let document = invoice::assemble("v1", header, &charges).unwrap();
        let plans: Vec<_> = facts.schedule.plans().cloned().collect();
        let digest = invoice::digest(&document, &charges, &plans);
        let stored = Stored { document, charges, digest };
        let facts = Facts { sources: over_the_edge.clone(), schedule: facts.schedule.clone() };
        assert_eq!(told(&stored, &facts), [""; 0]);
    }
}

#[test]
fn a_missing_fact_shows() {
    let mut facts = golden_facts();
    facts.sources.retain(|source| source.id.as_u128() != 8);
    let told = told(&golden(), &facts);
    assert!(
        told[0].starts_with(
            "charge of interval 00000000-0000-0000-0000-000000000008, reserved, segment 0: quantity is stored as"
        ),
        "{told:#?}"
    );
    assert!(told[0].ends_with("recomputed as nothing"));
}
