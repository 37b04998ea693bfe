//! Small facts for tests, and the frozen example that the golden tests share.

use crate::{
    invoice::{Document, Header, assemble, digest},
    period::{Zone, month},
    plan::{InForce, PlanVersion, Rate, Rates, Schedule},
    rating::{Charge, ENGINE, Source, SourceKind, rate},
    verify::{Facts, Stored},
};
use std::collections::BTreeMap;
use types::{BillingUnit, ByteMillis, Bytes, Currency, GpuModel, Instant, PlanVersionId, Price, Span};
use uuid::Uuid;

pub fn at(text: &str) -> Instant {
    text.parse().unwrap()
}

pub fn span(from: &str, to: &str) -> Span {
    Span::new(at(from), at(to)).unwrap()
}

pub fn currency(code: &str) -> Currency {
    code.parse().unwrap()
}

pub fn price(text: &str) -> Price {
    text.parse().unwrap()
}

pub fn model(text: &str) -> GpuModel {
    text.parse().unwrap()
}

pub fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

pub fn gb_seconds(n: i128) -> ByteMillis {
    ByteMillis(n * BillingUnit::GbSecond.byte_millis())
}

/// A plan version with one rate for every model; its id is its version.
pub fn plan(version: u32, code: &str, unit: BillingUnit, reserved: &str, above: Option<&str>) -> PlanVersion {
    PlanVersion {
        plan_version_id: PlanVersionId(Uuid::from_u128(u128::from(version))),
        plan_id: Uuid::from_u128(0xa).into(),
        version,
        currency: currency(code),
        unit,
        rates: Rates { default: Rate { reserved: price(reserved), above: above.map(price) }, models: BTreeMap::new() },
    }
}

/// One plan version for all time.
pub fn always(plan: PlanVersion) -> Schedule {
    let currency = plan.currency;
    let span = Span::clamped(Instant::EPOCH, Instant::LAST);
    Schedule::new(vec![InForce { span, plan }], currency).unwrap()
}

/// An interval of a part of its own.
pub fn interval(id: u128, bytes: u64, span: Span) -> Source {
    Source {
        id: Uuid::from_u128(id),
        kind: SourceKind::Interval,
        allocation_id: Uuid::from_u128(0x100 + id).into(),
        part_id: Uuid::from_u128(0x200 + id).into(),
        project_id: Uuid::from_u128(0x300).into(),
        gpu_id: Uuid::from_u128(0x400).into(),
        model: model("NVIDIA H200"),
        bytes: Bytes(bytes),
        span,
        above: None,
    }
}

/// A reading of a part of its own.
pub fn reading(id: u128, above: Option<ByteMillis>, span: Span) -> Source {
    Source { kind: SourceKind::Reading, above, ..interval(id, 1_000_000_000, span) }
}

pub fn header(period: &str, zone_name: &str, code: &str) -> Header {
    let zone = zone(zone_name);
    Header {
        tenant_id: Uuid::from_u128(0x500).into(),
        tenant_name: "vision-lab".parse().unwrap(),
        currency: currency(code),
        period: month(period, &zone).unwrap(),
        zone,
    }
}

/// The document of sources that all fall into one period or before it.
pub fn bill(sources: &[Source], schedule: &Schedule, header: Header) -> (Document, Vec<Charge>) {
    let charges = rate(ENGINE, sources, schedule, &header.zone).unwrap();
    (assemble(ENGINE, header, &charges).unwrap(), charges)
}

/// November 2026 of a tenant in New York: a rise in price in mid-month, a model with its own rate, use above the
/// reservation, and two late facts of October. Frozen: engine v1 gives the same for ever.
pub fn golden() -> Stored {
    let Facts { sources, schedule } = golden_facts();
    let header = header("2026-11", "America/New_York", "USD");
    let mut charges = rate("v1", &sources, &schedule, &header.zone).unwrap();
    // the month edge cuts one interval; its second charge waits for December's invoice
    charges.retain(|charge| charge.period <= header.period.label);
    let document = assemble("v1", header, &charges).unwrap();
    let plans: Vec<_> = schedule.plans().cloned().collect();
    let digest = digest(&document, &charges, &plans);
    Stored { document, charges, digest }
}

pub fn golden_facts() -> Facts {
    let mut first = plan(1, "USD", BillingUnit::GibHour, "0.0125", None);
    let own = Rate { reserved: price("0.02"), above: Some(price("0.1")) };
    first.rates.models = BTreeMap::from([(model("NVIDIA H200"), own)]);
    let mut second = first.clone();
    second.plan_version_id = PlanVersionId(Uuid::from_u128(2));
    second.version = 2;
    second.rates.default.reserved = price("0.015");
    let change = at("2026-11-15T12:00:00Z");
    let in_force = vec![
        InForce { span: Span::clamped(at("2026-01-01T00:00:00Z"), change), plan: first },
        InForce { span: Span::clamped(change, Instant::LAST), plan: second },
    ];
    let t4 = |source: Source| Source { model: model("NVIDIA T4"), ..source };
    let sources = vec![
        // over the change of price
        t4(interval(1, 8 << 30, span("2026-11-14T00:00:00Z", "2026-11-17T00:00:00.001Z"))),
        // over the end of the month, 05:00Z
        interval(2, 20 << 30, span("2026-11-30T00:00:00Z", "2026-12-01T10:00:00Z")),
        interval(3, 47_244_640_257, span("2026-11-03T07:08:09.010Z", "2026-11-09T10:11:12.013Z")),
        reading(4, Some(ByteMillis(8_123_456_789_012_345)), span("2026-11-05T00:00:00Z", "2026-11-05T00:01:00Z")),
        reading(10, Some(ByteMillis(1_000_000_000_000_001)), span("2026-11-05T00:01:00Z", "2026-11-05T00:02:00Z")),
        // known to be nothing, unknown, and not priced
        reading(5, Some(ByteMillis::ZERO), span("2026-11-05T00:01:00Z", "2026-11-05T00:02:00Z")),
        reading(6, None, span("2026-11-05T00:02:00Z", "2026-11-05T00:03:00Z")),
        t4(reading(7, Some(ByteMillis(7)), span("2026-11-05T00:02:00Z", "2026-11-05T00:03:00Z"))),
        // late
        interval(8, 1 << 30, span("2026-10-31T23:00:00Z", "2026-11-01T00:00:00Z")),
        reading(9, Some(ByteMillis(9_999_999_999_999_999)), span("2026-11-01T03:59:00Z", "2026-11-01T04:01:00Z")),
    ];
    Facts { sources, schedule: Schedule::new(in_force, currency("USD")).unwrap() }
}
