//! Invoices: each fact is charged once, totals are what the facts cost, numbers count up without a gap.

use super::Wrong;
use crate::{
    facts::{Facts, InvoiceRow},
    installation::Installation,
    plan::PlannedTenant,
    run::World,
};
use jiff::{ToSpan, civil::Date, tz::TimeZone};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What makes a line: the month of the facts, what of them, of which project and model, in which plan version.
type LineKey = (String, &'static str, String, String, usize);

/// One rated piece of a fact.
#[derive(Debug)]
struct Piece {
    source: String,
    key: LineKey,
    quantity: i128,
}

pub fn check(world: &World, facts: &Facts, wrong: &mut Wrong) {
    check_numbers(facts, wrong);
    let mut charged: BTreeSet<(String, &str, i64)> = BTreeSet::new();
    for charge in &facts.charges {
        let once = charged.insert((charge.source.clone(), &charge.kind, charge.starts_at));
        wrong.unless(once, || format!("charged twice: {charge:?}"));
    }
    for (number, tenant) in world.tenants.iter().enumerate() {
        let planned = &world.plan.tenants[number];
        let pieces = pieces(world, facts, planned, &tenant.id);
        let mine: Vec<&InvoiceRow> = facts.invoices.iter().filter(|row| row.tenant == tenant.id).collect();
        let months: BTreeSet<&str> = mine.iter().map(|row| row.period.as_str()).collect();
        let wanted: BTreeSet<&str> = world.months.iter().map(String::as_str).collect();
        wrong.unless(months == wanted && mine.len() == wanted.len(), || {
            format!("tenant {number} has invoices of {months:?}")
        });
        check_charges(facts, &tenant.id, &pieces, wrong);
        for row in mine {
            check_total(facts, row, planned, &pieces, wrong);
        }
    }
    check_answers(world, facts, wrong);
}

fn check_numbers(facts: &Facts, wrong: &mut Wrong) {
    let serials: Vec<i64> = facts.invoices.iter().map(|row| row.serial).collect();
    let count = i64::try_from(serials.len()).unwrap();
    wrong.unless(serials == (1..=count).collect::<Vec<_>>(), || format!("the invoices are numbered {serials:?}"));
    wrong.unless(facts.last_serial == count, || {
        format!("the series counts to {}, there are {count} invoices", facts.last_serial)
    });
    let numbered: Vec<_> =
        facts.numbers.iter().map(|row| (row.serial, row.tenant.as_str(), row.invoice.as_str())).collect();
    let issued: Vec<_> = facts.invoices.iter().map(|row| (row.serial, row.tenant.as_str(), row.id.as_str())).collect();
    wrong.unless(numbered == issued, || format!("numbers were given to {numbered:?}, issued are {issued:?}"));
    for row in &facts.invoices {
        wrong.unless(row.number == format!("GL-{:06}", row.serial), || format!("{row:?} has another number"));
    }
}

/// What a tenant's facts are to be charged as, worked out from the facts alone.
fn pieces(world: &World, facts: &Facts, planned: &PlannedTenant, tenant: &str) -> Vec<Piece> {
    let zone = TimeZone::get(planned.zone).unwrap();
    let version = |at: i64| usize::from(at >= world.second_version_ms);
    let mut pieces = Vec::new();
    for row in facts.intervals.iter().filter(|row| row.tenant == tenant) {
        let mut at = row.starts_at;
        while at < row.ends_at {
            let (label, month_end) = month_of(at, &zone);
            let change = if at < world.second_version_ms { world.second_version_ms } else { i64::MAX };
            let end = row.ends_at.min(month_end).min(change);
            let key = (label, "reserved", row.project.clone(), row.model.clone(), version(at));
            pieces.push(Piece { source: row.id.clone(), key, quantity: i128::from(row.bytes) * i128::from(end - at) });
            at = end;
        }
    }
    for row in facts.readings.iter().filter(|row| row.tenant == tenant) {
        let above: i128 = row.above.as_ref().map_or(0, |text| text.parse().unwrap());
        let which = version(row.starts_at);
        if above > 0 && planned.prices[which].1.is_some() {
            let key = (month_of(row.starts_at, &zone).0, "above", row.project.clone(), row.model.clone(), which);
            pieces.push(Piece { source: row.id.clone(), key, quantity: above });
        }
    }
    // the month in which the run ends is not over
    pieces.retain(|piece| world.months.contains(&piece.key.0));
    pieces
}

/// The label of an instant's month, and the month's end in milliseconds.
fn month_of(at: i64, zone: &TimeZone) -> (String, i64) {
    let day: Date = jiff::Timestamp::from_millisecond(at).unwrap().to_zoned(zone.clone()).date();
    let next = day.first_of_month().checked_add(1.month()).unwrap();
    (day.strftime("%Y-%m").to_string(), next.to_zoned(zone.clone()).unwrap().timestamp().as_millisecond())
}

/// The charges of a tenant are its pieces: nothing is left out, nothing is charged that is none.
fn check_charges(facts: &Facts, tenant: &str, pieces: &[Piece], wrong: &mut Wrong) {
    let mut due: Vec<(String, String, String, i128)> = pieces
        .iter()
        .map(|piece| (piece.source.clone(), piece.key.1.to_owned(), piece.key.0.clone(), piece.quantity))
        .collect();
    let mut charged: Vec<_> = facts
        .charges
        .iter()
        .filter(|charge| charge.tenant == tenant)
        .map(|c| (c.source.clone(), c.kind.clone(), c.period.clone(), c.quantity.parse::<i128>().unwrap()))
        .collect();
    due.sort_unstable();
    charged.sort_unstable();
    if due != charged {
        let missing: Vec<_> = due.iter().filter(|piece| !charged.contains(piece)).take(3).collect();
        let surplus: Vec<_> = charged.iter().filter(|charge| !due.contains(charge)).take(3).collect();
        wrong.unless(false, || format!("tenant {tenant}: not charged {missing:?}, charged without reason {surplus:?}"));
    }
}

/// The total of an invoice, from the pieces of the sources that it charges: one division and one rounding per line.
fn check_total(facts: &Facts, row: &InvoiceRow, planned: &PlannedTenant, pieces: &[Piece], wrong: &mut Wrong) {
    let sources: BTreeSet<(&str, &str, &str)> = facts
        .charges
        .iter()
        .filter(|charge| charge.invoice == row.id)
        .map(|charge| (charge.source.as_str(), charge.kind.as_str(), charge.period.as_str()))
        .collect();
    let mut lines: BTreeMap<&LineKey, i128> = BTreeMap::new();
    for piece in
        pieces.iter().filter(|piece| sources.contains(&(piece.source.as_str(), piece.key.1, piece.key.0.as_str())))
    {
        *lines.entry(&piece.key).or_default() += piece.quantity;
    }
    let amount = |(key, quantity): (&&LineKey, &i128)| {
        let (reserved, above) = planned.prices[key.4];
        let price = if key.1 == "reserved" { reserved } else { above.unwrap_or(0) };
        let top = quantity * price * 10_i128.pow(planned.minor_digits);
        let bottom = planned.unit_byte_ms * 1_000_000_000;
        // half away from zero; nothing here is negative
        (2 * top + bottom) / (2 * bottom)
    };
    let total: i128 = lines.iter().map(amount).sum();
    wrong.unless(total == i128::from(row.total_minor), || {
        format!("{} says {}, its facts cost {total}: {lines:?}", row.number, row.total_minor)
    });
    // facts of earlier months are here only as corrections of what was issued before
    let document: Value = serde_json::from_str(&row.document).unwrap_or_default();
    let count = document["lines"].as_array().map_or(0, Vec::len);
    wrong.unless(count == lines.len(), || format!("{} has {count} lines, its facts make {}", row.number, lines.len()));
}

/// Every answer of an issue gave the one invoice that the month has.
fn check_answers(world: &World, facts: &Facts, wrong: &mut Wrong) {
    for ((tenant, month), answers) in &world.record.inner().invoices {
        let id = &world.tenants[*tenant].id;
        let row = facts.invoices.iter().find(|row| row.tenant == *id && row.period == *month);
        for answer in answers {
            let same = row.is_some_and(|row| {
                answer["invoice_id"] == row.id.as_str()
                    && answer["number"] == row.number.as_str()
                    && answer["digest"] == row.digest.as_str()
            });
            wrong.unless(same, || {
                format!(
                    "{month} of tenant {tenant} was issued as {} ({}), and is {row:?}",
                    answer["number"], answer["digest"]
                )
            });
        }
    }
}

/// Each invoice can be made again from the facts, by the API and by the command.
pub async fn check_verification(world: &World, installation: &Installation, facts: &Facts, wrong: &mut Wrong) {
    let client = installation.client().with(&world.operator_key);
    for row in &facts.invoices {
        let answer = client.get(&format!("/v1/invoices/{}/verification", row.id)).await;
        wrong.unless(answer.status == 200 && answer.json["identical"] == true, || {
            format!("{} does not verify: {answer}", row.number)
        });
    }
    if let Some(row) = facts.invoices.last() {
        let (status, said) = installation.ask(&["verify-invoice", &row.number]);
        wrong.unless(status == Some(0), || format!("verify-invoice {}: {said}", row.number));
    }
}
