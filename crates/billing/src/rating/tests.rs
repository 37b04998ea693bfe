use super::*;
use crate::{
    fixture::{always, at, bill, currency, gb_seconds, header, interval, model, plan, price, reading, span, zone},
    invoice::{assemble, digest},
    plan::{InForce, PlanVersion, Rate},
};
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use std::collections::BTreeMap;

const GB: u64 = 1_000_000_000;

fn gb_hour(reserved: &str, above: Option<&str>) -> Schedule {
    always(plan(1, "USD", BillingUnit::GbHour, reserved, above))
}

fn total(sources: &[Source], schedule: &Schedule, period: &str, zone: &str) -> String {
    let header = header(period, zone, schedule.currency().code());
    bill(sources, schedule, header).0.total.to_string()
}

fn quantity(charges: &[Charge]) -> ByteMillis {
    charges.iter().map(|c| c.quantity).sum()
}

#[test]
fn an_interval_is_cut_at_changes_of_plan_and_month() {
    let usd = |version, from, to| InForce {
        span: span(from, to),
        plan: plan(version, "USD", BillingUnit::GbHour, "0.01", None),
    };
    let schedule = Schedule::new(
        vec![
            usd(1, "2026-10-01T00:00:00Z", "2026-11-10T00:00:00Z"),
            usd(2, "2026-11-10T00:00:00Z", "2026-12-10T00:00:00Z"),
        ],
        currency("USD"),
    )
    .unwrap();
    let source = interval(1, GB, span("2026-10-31T14:59:59.999Z", "2026-11-30T15:00:00.001Z"));
    let charges = rate("v1", &[source], &schedule, &zone("Asia/Seoul")).unwrap();
    let seen: Vec<_> = charges
        .iter()
        .map(|c| (c.segment, c.span.to_string(), c.period.as_str(), c.plan_version_id.uuid().as_u128()))
        .collect();
    let row = |n, from, to, period, plan| (n, span(from, to).to_string(), period, plan);
    assert_eq!(
        seen,
        [
            row(0, "2026-10-31T14:59:59.999Z", "2026-10-31T15:00:00Z", "2026-10", 1),
            row(1, "2026-10-31T15:00:00Z", "2026-11-10T00:00:00Z", "2026-11", 1),
            row(2, "2026-11-10T00:00:00Z", "2026-11-30T15:00:00Z", "2026-11", 2),
            row(3, "2026-11-30T15:00:00Z", "2026-11-30T15:00:00.001Z", "2026-12", 2),
        ]
    );
}

#[test]
fn a_reading_belongs_whole_to_its_start() {
    let over_the_edge = span("2026-10-31T14:59:00Z", "2026-10-31T15:01:00Z");
    let rated = |above, schedule: &Schedule| {
        rate("v1", &[reading(1, above, over_the_edge)], schedule, &zone("Asia/Seoul")).unwrap()
    };
    let priced = gb_hour("0.01", Some("0.05"));
    let charges = rated(Some(ByteMillis(77)), &priced);
    assert_eq!(charges.len(), 1);
    let charge = &charges[0];
    assert_eq!((charge.kind, charge.quantity, charge.price), (ChargeKind::Above, ByteMillis(77), price("0.05")));
    assert_eq!((charge.period.as_str(), charge.span), ("2026-10", over_the_edge));
    // one that starts on the edge is the new month's, and an empty one too
    for end in ["2026-10-31T15:00:00Z", "2026-10-31T15:01:00Z"] {
        let on_the_edge = reading(1, Some(ByteMillis(1)), span("2026-10-31T15:00:00Z", end));
        let charges = rate("v1", &[on_the_edge], &priced, &zone("Asia/Seoul")).unwrap();
        assert_eq!(charges[0].period, "2026-11");
    }
    // nothing above, unknown, not priced
    assert!(rated(Some(ByteMillis::ZERO), &priced).is_empty());
    assert!(rated(None, &priced).is_empty());
    assert!(rated(Some(ByteMillis(77)), &gb_hour("0.01", None)).is_empty());
}

#[test]
fn a_hole_in_the_schedule_is_named_and_nothing_is_lost() {
    let schedule = Schedule::new(
        vec![InForce {
            span: span("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"),
            plan: plan(1, "USD", BillingUnit::GbHour, "0.01", Some("1")),
        }],
        currency("USD"),
    )
    .unwrap();
    let no_plan = |source: Source| {
        let error = rate("v1", std::slice::from_ref(&source), &schedule, &zone("UTC")).unwrap_err();
        match error {
            RatingError::NoPlan { at, source_id, kind } if (source_id, kind) == (source.id, source.kind) => at,
            other => panic!("{other}"),
        }
    };
    let over_the_end = span("2026-11-01T23:00:00Z", "2026-11-02T01:00:00Z");
    assert_eq!(no_plan(interval(1, GB, over_the_end)), at("2026-11-02T00:00:00Z"));
    let before = span("2026-10-31T23:59:00Z", "2026-11-01T00:01:00Z");
    assert_eq!(no_plan(reading(2, Some(ByteMillis(1)), before)), at("2026-10-31T23:59:00Z"));
    // its start is priced, so all of it is
    assert!(rate("v1", &[reading(2, Some(ByteMillis(1)), over_the_end)], &schedule, &zone("UTC")).is_ok());
}

#[test]
fn an_unknown_engine_is_refused() {
    assert_eq!(rate("v0", &[], &gb_hour("1", None), &zone("UTC")), Err(RatingError::UnknownEngine("v0".into())));
}

/// Public report 11 (Kill Bill 1438): a plan that ends at 15:00 still prices the use at 10:00.
#[test]
fn report_11_use_before_the_end_of_a_plan_is_billed() {
    let schedule = Schedule::new(
        vec![InForce {
            span: span("2026-07-01T00:00:00Z", "2026-08-01T15:00:00Z"),
            plan: plan(1, "USD", BillingUnit::GbHour, "1", None),
        }],
        currency("USD"),
    )
    .unwrap();
    let use_at_ten = interval(1, GB, span("2026-08-01T10:00:00Z", "2026-08-01T11:00:00Z"));
    assert_eq!(total(&[use_at_ten], &schedule, "2026-08", "UTC"), "1.00");
}

/// Public report 27 (Slurm): 1×1 + 8×0.25 + 1×1.5 = 4.5; no part is cut down to whole units.
#[test]
fn report_27_fractions_of_units_add_up() {
    let hours = |id, quarters: i64| {
        let start = at("2026-11-02T00:00:00Z");
        interval(id, GB, Span::clamped(start, start.plus_secs(quarters * 900)))
    };
    let sources: Vec<_> =
        [4, 1, 1, 1, 1, 1, 1, 1, 1, 6].into_iter().zip(1..).map(|(quarters, id)| hours(id, quarters)).collect();
    assert_eq!(total(&sources, &gb_hour("1", None), "2026-11", "UTC"), "4.50");
}

/// Public report 28 (Slurm 24.05): a step on 4 GPUs of 40 GB is 160 GB, not the last GPU's 40.
#[test]
fn report_28_every_part_of_an_allocation_counts() {
    let hour = span("2026-11-02T00:00:00Z", "2026-11-02T01:00:00Z");
    let sources: Vec<_> = (1..=4).map(|id| interval(id, 40 * GB, hour)).collect();
    assert_eq!(total(&sources, &gb_hour("1", None), "2026-11", "UTC"), "160.00");
}

/// Public reports 29 (Lago 4725), 33 (Kubecost 358): the same fact twice is refused, not charged twice; an interval and a
/// reading of the same id and time are two facts.
#[test]
fn report_29_a_fact_is_charged_once() {
    let schedule = gb_hour("1", Some("1"));
    let hour = span("2026-11-02T00:00:00Z", "2026-11-02T01:00:00Z");
    let fact = interval(1, GB, hour);
    assert_eq!(
        rate("v1", &[fact.clone(), fact.clone()], &schedule, &zone("UTC")),
        Err(RatingError::Repeated { kind: SourceKind::Interval, source_id: fact.id })
    );
    let both = [fact, reading(1, Some(ByteMillis(1)), hour)];
    assert_eq!(rate("v1", &both, &schedule, &zone("UTC")).unwrap().len(), 2);
    let charges = rate("v1", &both, &schedule, &zone("UTC")).unwrap();
    let twice: Vec<_> = charges.iter().chain(&charges).cloned().collect();
    assert!(matches!(
        assemble("v1", header("2026-11", "UTC", "USD"), &twice),
        Err(crate::invoice::AssembleError::Repeated { .. })
    ));
}

/// Public report 31 (Vexa 330): one session of three minutes under four ids is one session: a part holds bytes once.
#[test]
fn report_31_facts_of_one_part_do_not_overlap() {
    let session = span("2026-11-02T00:00:00Z", "2026-11-02T00:03:00Z");
    let part = interval(1, GB, session);
    let again: Vec<_> = (1..=4).map(|id| Source { part_id: part.part_id, ..interval(id, GB, session) }).collect();
    let schedule = gb_hour("0.5", None);
    assert!(matches!(
        rate("v1", &again, &schedule, &zone("UTC")),
        Err(RatingError::Overlap { part_id, .. }) if part_id == part.part_id
    ));
    assert_eq!(total(&again[..1], &schedule, "2026-11", "UTC"), "0.03", "0.025 rounded");
}

/// Windows of one part that a change of the clock's correction pushed into each other are two readings all the same.
#[test]
fn readings_are_charged_each_by_itself() {
    let first = reading(1, Some(ByteMillis(5)), span("2026-11-02T00:00:02Z", "2026-11-02T00:01:02Z"));
    let next = reading(2, Some(ByteMillis(7)), span("2026-11-02T00:01:00Z", "2026-11-02T00:02:00Z"));
    let both = [Source { part_id: next.part_id, ..first }, next];
    let charges = rate("v1", &both, &gb_hour("1", Some("1")), &zone("UTC")).unwrap();
    assert_eq!(quantity(&charges), ByteMillis(12));
}

/// Public report 32 (kubefin 47): a pod of ten seconds is ten seconds.
#[test]
fn report_32_short_lives_are_metered() {
    let ten = interval(1, GB, span("2026-11-02T00:00:01Z", "2026-11-02T00:00:11Z"));
    let charges = rate("v1", &[ten], &gb_hour("1", None), &zone("UTC")).unwrap();
    assert_eq!(quantity(&charges), gb_seconds(10));
}

/// Public report 34 (OpenCost 3828): four pods with a quarter of a GPU each are one GPU, not four.
#[test]
fn report_34_shares_of_a_gpu_add_up_to_it() {
    let hour = span("2026-11-02T00:00:00Z", "2026-11-02T01:00:00Z");
    let shares: Vec<_> = (1..=4).map(|id| interval(id, 35_250_000_000, hour)).collect();
    let charges = rate("v1", &shares, &gb_hour("1", None), &zone("UTC")).unwrap();
    assert_eq!(quantity(&charges), hour.of(Bytes(141 * GB)));
}

/// Public report 42 (Stripe): net use below zero never becomes a negative invoice; such a fact is refused.
#[test]
fn report_42_quantities_are_never_negative() {
    let window = span("2026-11-02T00:00:00Z", "2026-11-02T00:01:00Z");
    let negative = reading(1, Some(ByteMillis(-5)), window);
    assert_eq!(
        rate("v1", std::slice::from_ref(&negative), &gb_hour("1", Some("1")), &zone("UTC")),
        Err(RatingError::Negative { source_id: negative.id })
    );
}

/// Public report 48 (GPUStack 5710): a whole hour is 3,600 seconds, across a change of plan too.
#[test]
fn report_48_a_whole_hour_is_a_whole_hour() {
    let half = |version, from, to| InForce {
        span: span(from, to),
        plan: plan(version, "USD", BillingUnit::GbSecond, "1", None),
    };
    let schedule = Schedule::new(
        vec![
            half(1, "2026-11-02T00:00:00Z", "2026-11-02T00:17:00Z"),
            half(2, "2026-11-02T00:17:00Z", "2026-11-02T01:00:00Z"),
        ],
        currency("USD"),
    )
    .unwrap();
    let hour = interval(1, GB, span("2026-11-02T00:00:00Z", "2026-11-02T01:00:00Z"));
    let charges = rate("v1", &[hour], &schedule, &zone("UTC")).unwrap();
    assert_eq!(charges.len(), 2);
    assert_eq!(quantity(&charges), gb_seconds(3_600));
}

/// Dividing by whole days × 24 h made all of March in New York 743/744 of a month. Integrals are absolute: 743 GB-hours.
#[test]
fn a_month_with_a_change_of_clocks_is_its_hours() {
    let march = header("2026-03", "America/New_York", "USD").period.span;
    let schedule = gb_hour("1", None);
    assert_eq!(total(&[interval(1, GB, march)], &schedule, "2026-03", "America/New_York"), "743.00");
}

/// Public report 8 (BCApps 5718): a price per time has no month length to get wrong: three days of February are 72 hours.
#[test]
fn report_8_part_of_a_month_costs_its_hours() {
    for (days, period, price, due) in [
        (span("2025-02-26T00:00:00Z", "2025-03-01T00:00:00Z"), "2025-02", "0.125", "9.00"),
        (span("2020-02-27T00:00:00Z", "2020-03-01T00:00:00Z"), "2020-02", "0.125", "9.00"),
    ] {
        assert_eq!(total(&[interval(1, GB, days)], &gb_hour(price, None), period, "UTC"), due);
    }
}

// ---- random histories against a naive model ----

const SLOT: i64 = 1_800_000;
const ZONES: [&str; 3] = ["Asia/Seoul", "America/New_York", "Asia/Kolkata"];

/// A history on a grid of half hours, so that the naive model can walk it slot by slot.
#[derive(Debug, Clone)]
struct History {
    zone: &'static str,
    start: Instant,
    sources: Vec<Source>,
    /// Slots at which the next plan version comes into force, ascending.
    changes: Vec<i64>,
}

impl History {
    fn schedule(&self) -> Schedule {
        let edges: Vec<Instant> = std::iter::once(Instant::EPOCH)
            .chain(self.changes.iter().map(|slot| self.start.plus_millis(slot * SLOT)))
            .chain([Instant::LAST])
            .collect();
        let in_force = edges
            .windows(2)
            .zip(1..)
            .map(|(w, version)| InForce { span: Span::clamped(w[0], w[1]), plan: version_of(version) })
            .collect();
        Schedule::new(in_force, currency("KWD")).unwrap()
    }

    /// What is due per month and version, found slot by slot.
    fn naive(&self) -> BTreeMap<(String, u128, ChargeKind), i128> {
        let tz = TimeZoneDatabase::bundled().get(self.zone).unwrap();
        let mut due = BTreeMap::new();
        let mut add = |at: Instant, kind, quantity| {
            let label = tz.to_datetime(at.to_jiff()).strftime("%Y-%m").to_string();
            let slot = at.since(self.start) / SLOT;
            let version = 1 + self.changes.iter().filter(|change| **change <= slot).count();
            if kind == ChargeKind::Reserved || version % 2 == 1 {
                *due.entry((label, version as u128, kind)).or_insert(0) += quantity;
            }
        };
        for source in &self.sources {
            match source.above {
                Some(above) => add(source.span.start(), ChargeKind::Above, above.0),
                None => {
                    for slot in 0..source.span.millis() / SLOT {
                        let quantity = i128::from(source.bytes.0) * i128::from(SLOT);
                        add(source.span.start().plus_millis(slot * SLOT), ChargeKind::Reserved, quantity);
                    }
                }
            }
        }
        due
    }
}

/// Odd versions price use above the reservation, even ones do not; units differ.
fn version_of(version: u32) -> PlanVersion {
    let unit = BillingUnit::ALL[version as usize % 3];
    let mut plan = plan(version, "KWD", unit, "0.000000371", (version % 2 == 1).then_some("0.017"));
    let t4 = Rate { reserved: price("0.02"), above: plan.rates.default.above };
    plan.rates.models.insert(model("NVIDIA T4"), t4);
    plan
}

fn histories() -> impl Strategy<Value = History> {
    let lives = prop::collection::vec((1_i64..400, 1_i64..2_500, 1_u64..200_000_000_000, 1_i128..1 << 60), 0..5);
    (
        prop::sample::select(ZONES.to_vec()),
        // clocks in New York change on 8 March and on 1 November 2026
        prop::sample::select(vec!["2026-02-10T00:00:00Z", "2026-10-05T00:00:00Z"]),
        prop::collection::vec(lives, 1..4),
        prop::collection::btree_set(1_i64..6_000, 0..5),
    )
        .prop_map(|(zone, start, parts, changes)| {
            let start = at(start);
            let mut sources: Vec<Source> = Vec::new();
            for (part, lives) in parts.into_iter().enumerate() {
                let mut slot = 0;
                for (gap, length, bytes, above) in lives {
                    let from = start.plus_millis((slot + gap) * SLOT);
                    let id = 2 * sources.len() as u128;
                    let part_id = Uuid::from_u128(part as u128).into();
                    let model = model(if part == 0 { "NVIDIA T4" } else { "NVIDIA H200" });
                    let whole = Span::clamped(from, from.plus_millis(length * SLOT));
                    let minute = Span::clamped(from, from.plus_secs(60));
                    sources.push(Source { part_id, model: model.clone(), ..interval(id, bytes, whole) });
                    sources.push(Source { part_id, model, ..reading(id + 1, Some(ByteMillis(above)), minute) });
                    slot += gap + length;
                }
            }
            History { zone, start, sources, changes: changes.into_iter().collect() }
        })
}

proptest! {
    /// Each byte-millisecond is charged once, to the month and plan version that a walk over slots finds.
    #[test]
    fn charges_are_what_a_naive_walk_finds(history in histories()) {
        let zone = zone(history.zone);
        let charges = rate("v1", &history.sources, &history.schedule(), &zone).unwrap();
        let mut due = BTreeMap::new();
        for charge in &charges {
            let key = (charge.period.clone(), charge.plan_version_id.uuid().as_u128(), charge.kind);
            *due.entry(key).or_insert(0) += charge.quantity.0;
        }
        prop_assert_eq!(due, history.naive());
    }

    /// Also off the grid: the charges of an interval tile it, and add up to bytes × time.
    #[test]
    fn charges_of_an_interval_tile_it(history in histories(), shift in 0_i64..SLOT, longer in 1_i64..SLOT) {
        let zone = zone(history.zone);
        for source in history.sources.iter().filter(|s| s.kind == SourceKind::Interval) {
            let from = source.span.start().plus_millis(shift);
            let source = Source { span: Span::clamped(from, source.span.end().plus_millis(shift + longer)), ..source.clone() };
            let charges = rate("v1", std::slice::from_ref(&source), &history.schedule(), &zone).unwrap();
            prop_assert_eq!(quantity(&charges), source.span.of(source.bytes));
            prop_assert_eq!(charges[0].span.start(), source.span.start());
            prop_assert_eq!(charges[charges.len() - 1].span.end(), source.span.end());
            prop_assert!(charges.windows(2).all(|w| w[0].span.end() == w[1].span.start() && w[0].segment + 1 == w[1].segment));
            for charge in &charges {
                let month = crate::period::month(&charge.period, &zone).unwrap();
                prop_assert_eq!(month.span.intersection(&charge.span), Some(charge.span));
            }
        }
    }

    /// Month by month every charge stands on one invoice; lines sum to totals; order of input is nothing; JSON keeps all.
    #[test]
    fn invoices_are_whole_and_independent_of_order(history in histories(), turn in any::<prop::sample::Index>()) {
        let (zone, schedule) = (zone(history.zone), history.schedule());
        let charges = rate("v1", &history.sources, &schedule, &zone).unwrap();
        let mut turned = history.sources.clone();
        turned.reverse();
        if !turned.is_empty() {
            let middle = turn.index(turned.len());
            turned.rotate_left(middle);
        }
        prop_assert_eq!(&rate("v1", &turned, &schedule, &zone).unwrap(), &charges);

        let mut labels: Vec<_> = charges.iter().map(|c| c.period.clone()).collect();
        labels.sort();
        labels.dedup();
        let plans: Vec<PlanVersion> = schedule.plans().cloned().collect();
        let mut billed = ByteMillis::ZERO;
        for label in labels {
            let mut own: Vec<_> = charges.iter().filter(|c| c.period == label).cloned().collect();
            let document = assemble("v1", header(&label, history.zone, "KWD"), &own).unwrap();
            billed += document.lines.iter().map(|l| l.quantity).sum();
            prop_assert_eq!(document.lines.iter().map(|l| l.amount.minor()).sum::<i64>(), document.total.minor());
            prop_assert_eq!(document.lines.iter().map(|l| l.charges as usize).sum::<usize>(), own.len());
            for line in &document.lines {
                let members = own.iter().filter(|c| document.line_of(c) == Some(line.number));
                prop_assert_eq!(members.map(|c| c.quantity).sum::<ByteMillis>(), line.quantity);
            }
            let digest_before = digest(&document, &own, &plans);
            own.reverse();
            let again = assemble("v1", header(&label, history.zone, "KWD"), &own).unwrap();
            prop_assert_eq!(&digest(&again, &own, &plans), &digest_before);
            let json = serde_json::to_string(&document).unwrap();
            prop_assert_eq!(serde_json::from_str::<crate::invoice::Document>(&json).unwrap(), again);
            let json = serde_json::to_string(&own).unwrap();
            prop_assert_eq!(serde_json::from_str::<Vec<Charge>>(&json).unwrap(), own);
        }
        prop_assert_eq!(billed, quantity(&charges));
    }
}
