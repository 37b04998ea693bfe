//! Random histories of one GPU against a model that asks, at each step of ten minutes, what every journal says.

use super::*;
use proptest::prelude::*;

const STEP_MS: i64 = 600_000;
const CAPACITY: u64 = 80;

fn at(step: i64) -> Instant {
    Instant::from_millis(1_700_002_800_000 + step * STEP_MS).unwrap() // a whole hour
}

fn span(from: i64, to: i64) -> Span {
    Span::new(at(from), at(to)).unwrap()
}

/// The journals of a GPU, owned.
#[derive(Debug, Clone, Default)]
struct History {
    capacity: Vec<CapacityStep>,
    presence: Vec<PresenceStep>,
    occupancy: Vec<OccupancyStep>,
    metered: Vec<Kept>,
    held: Vec<Kept>,
    unconfirmed: Vec<Kept>,
}

impl History {
    fn balance(&self, over: Span) -> Vec<HourBalance> {
        balance(
            over,
            &Journals {
                capacity: &self.capacity,
                presence: &self.presence,
                occupancy: &self.occupancy,
                metered: &self.metered,
                held: &self.held,
                unconfirmed: &self.unconfirmed,
            },
        )
    }
}

/// An allocation's life in steps: held from `start`, confirmed after `hold`, silent for a while in its middle.
#[derive(Debug, Clone)]
struct Life {
    start: i64,
    hold: i64,
    run: i64,
    silent: i64,
    bytes: u64,
}

fn life() -> impl Strategy<Value = Life> {
    (0i64..60, 0i64..4, 0i64..20, 0i64..5, 1u64..40).prop_map(|(start, hold, run, silent, bytes)| Life {
        start,
        hold,
        run,
        silent,
        bytes,
    })
}

/// A history without a fault: what does not fit is not placed, and the scheduler records each change.
fn faultless(lives: &[Life], away: &[(i64, i64)], ill: &[(i64, i64)]) -> History {
    let mut history = History::default();
    let mut taken = [0u64; 100];
    let mut granted = [0u64; 100];
    let mut held = [0u64; 100];
    for life in lives {
        let (confirmed, end) = (life.start + life.hold, life.start + life.hold + life.run);
        let steps = life.start as usize..end as usize;
        if steps.is_empty() || steps.clone().any(|s| taken[s] + life.bytes > CAPACITY) {
            continue;
        }
        let keep = |spans: &mut Vec<Kept>, from: i64, to: i64| {
            if from < to {
                spans.push(Kept { bytes: Bytes(life.bytes), span: span(from, to) });
            }
        };
        let silent_from = confirmed + life.run / 2;
        let silent_to = (silent_from + life.silent).min(end);
        keep(&mut history.held, life.start, confirmed);
        keep(&mut history.metered, confirmed, silent_from);
        keep(&mut history.unconfirmed, silent_from, silent_to);
        keep(&mut history.metered, silent_to, end);
        for s in steps {
            taken[s] += life.bytes;
            let by_state = if (s as i64) < confirmed { &mut held } else { &mut granted };
            by_state[s] += life.bytes;
        }
    }
    history.capacity.push(CapacityStep { at: at(0), allocatable: Bytes(CAPACITY), in_service: true });
    history.presence.push(PresenceStep { at: at(0), present: true });
    for &(from, length) in ill {
        for (step, in_service) in [(from, false), (from + length, true)] {
            history.capacity.push(CapacityStep { at: at(step), allocatable: Bytes(CAPACITY), in_service });
        }
    }
    for &(from, length) in away {
        for (step, present) in [(from, false), (from + length, true)] {
            history.presence.push(PresenceStep { at: at(step), present });
        }
    }
    history.capacity.sort_by_key(|s| s.at);
    history.presence.sort_by_key(|s| s.at);
    for s in 0..100 {
        history.occupancy.push(OccupancyStep {
            at: at(s as i64),
            held: Bytes(held[s]),
            granted: Bytes(granted[s]),
            slack: Bytes::ZERO,
            free: Bytes(CAPACITY - taken[s]),
        });
    }
    history.occupancy.dedup_by(|later, earlier| (later.held, later.granted) == (earlier.held, earlier.granted));
    history
}

/// The equation once more: for each step, each journal is searched from its beginning.
fn naive(history: &History, from: i64, to: i64) -> Vec<HourBalance> {
    let mut hours: Vec<HourBalance> = Vec::new();
    for step in from..to {
        let t = at(step);
        if hours.last().is_none_or(|h| h.hour != t.hour_start()) {
            hours.push(HourBalance::empty(t.hour_start()));
        }
        let hour = hours.last_mut().unwrap();
        let kept = |spans: &[Kept]| -> ByteMillis {
            spans.iter().filter(|k| k.span.contains(t)).map(|k| k.bytes.over_millis(STEP_MS)).sum()
        };
        hour.metered += kept(&history.metered);
        hour.held += kept(&history.held);
        hour.unconfirmed += kept(&history.unconfirmed);
        let capacity = history.capacity.iter().rfind(|s| s.at <= t);
        let Some(occupancy) = history.occupancy.iter().rfind(|s| s.at <= t) else {
            continue;
        };
        let present = history.presence.iter().rfind(|s| s.at <= t).is_some_and(|s| s.present);
        hour.slack += occupancy.slack.over_millis(STEP_MS);
        hour.granted_by_journal += occupancy.granted.over_millis(STEP_MS);
        hour.held_by_journal += occupancy.held.over_millis(STEP_MS);
        let free = occupancy.free.over_millis(STEP_MS);
        if present && capacity.is_some_and(|s| s.in_service) {
            hour.idle += free;
        } else {
            hour.out_of_service += free;
        }
        if let Some(capacity) = capacity {
            hour.capacity += capacity.allocatable.over_millis(STEP_MS);
        }
    }
    hours
}

fn outages() -> impl Strategy<Value = Vec<(i64, i64)>> {
    // one per stretch of twenty steps, so that they do not overlap
    proptest::collection::vec((0i64..15, 1i64..5), 0..4).prop_map(|outages| {
        outages.into_iter().enumerate().map(|(i, (from, length))| (i as i64 * 20 + from, length)).collect()
    })
}

proptest! {
    #[test]
    fn a_faultless_history_balances(
        lives in proptest::collection::vec(life(), 0..30),
        away in outages(),
        ill in outages(),
        from in -8i64..50,
        length in 0i64..60,
    ) {
        let history = faultless(&lives, &away, &ill);
        let hours = history.balance(span(from, from + length));
        prop_assert_eq!(&hours, &naive(&history, from, from + length));
        for hour in &hours {
            prop_assert!(hour.balances(), "{:?} differs by {}", hour, hour.difference());
            let terms = [hour.metered, hour.held, hour.unconfirmed, hour.slack, hour.idle, hour.out_of_service];
            prop_assert!(terms.iter().all(|term| *term >= ByteMillis::ZERO));
        }
    }

    #[test]
    fn a_missing_or_repeated_span_unbalances_its_hours(
        lives in proptest::collection::vec(life(), 1..30),
        away in outages(),
        pick in any::<proptest::sample::Index>(),
        kind in 0usize..3,
        repeat in any::<bool>(),
    ) {
        let mut history = faultless(&lives, &away, &[]);
        let spans = match kind {
            0 => &mut history.metered,
            1 => &mut history.held,
            _ => &mut history.unconfirmed,
        };
        prop_assume!(!spans.is_empty());
        let at_index = pick.index(spans.len());
        let kept = spans[at_index];
        if repeat {
            spans.push(kept);
        } else {
            spans.remove(at_index);
        }
        let hours = history.balance(span(0, 100));
        for hour in &hours {
            let hour_span = Span::clamped(hour.hour, hour.hour.plus_secs(3600));
            let touched = kept.span.intersection(&hour_span);
            prop_assert_eq!(hour.balances(), touched.is_none());
            let missing = touched.map_or(ByteMillis::ZERO, |t| t.of(kept.bytes));
            let difference = if repeat { ByteMillis::ZERO - missing } else { missing };
            prop_assert_eq!(hour.difference(), difference);
        }
    }

    /// A metered span booked as held keeps the sum and is still found.
    #[test]
    fn a_span_in_the_wrong_journal_is_found(lives in proptest::collection::vec(life(), 1..30), pick in any::<proptest::sample::Index>()) {
        let mut history = faultless(&lives, &[], &[]);
        prop_assume!(!history.metered.is_empty());
        let moved = history.metered.remove(pick.index(history.metered.len()));
        history.held.push(moved);
        let hours = history.balance(span(0, 100));
        prop_assert!(hours.iter().all(|h| h.difference() == ByteMillis::ZERO));
        prop_assert!(hours.iter().any(|h| !h.balances()));
    }

    #[test]
    fn a_step_that_the_scheduler_forgot_is_found(lives in proptest::collection::vec(life(), 1..30), pick in any::<proptest::sample::Index>()) {
        let mut history = faultless(&lives, &[], &[]);
        prop_assume!(history.occupancy.len() > 1);
        let index = 1 + pick.index(history.occupancy.len() - 1);
        history.occupancy.remove(index);
        prop_assert!(history.balance(span(0, 100)).iter().any(|h| !h.balances()));
    }
}

/// opencost 3828: four workloads on a quarter each are one card's hour together, not four.
#[test]
fn four_quarters_are_one_card() {
    let mut history = faultless(&[], &[], &[]);
    history.metered = vec![Kept { bytes: Bytes(CAPACITY / 4), span: span(0, 6) }; 4];
    history.occupancy = vec![OccupancyStep {
        at: at(0),
        held: Bytes::ZERO,
        granted: Bytes(CAPACITY),
        slack: Bytes::ZERO,
        free: Bytes::ZERO,
    }];
    let hours = history.balance(span(0, 6));
    assert_eq!(hours.len(), 1);
    assert!(hours[0].balances());
    assert_eq!(hours[0].metered, Bytes(CAPACITY).over_millis(3_600_000));
}

#[test]
fn slack_is_a_term_of_its_own() {
    let mut history = faultless(&[], &[], &[]);
    history.occupancy = vec![OccupancyStep {
        at: at(0),
        held: Bytes::ZERO,
        granted: Bytes(10),
        slack: Bytes(6),
        free: Bytes(CAPACITY - 16),
    }];
    history.metered = vec![Kept { bytes: Bytes(10), span: span(0, 6) }];
    let hours = history.balance(span(0, 6));
    assert!(hours[0].balances());
    assert_eq!(hours[0].slack, Bytes(6).over_millis(3_600_000));
}

#[test]
fn a_gpu_without_a_record_has_no_capacity() {
    let hours = balance(span(0, 12), &Journals::default());
    assert_eq!(hours.len(), 2);
    assert!(hours.iter().all(HourBalance::balances));
}

/// A month of 72 GPUs, each with 10,000 intervals: the work grows with the rows, not with rows × hours.
#[test]
fn a_month_is_one_sweep() {
    let month = 30 * 144;
    let lives: Vec<Kept> = (0..10_000)
        .map(|i| {
            let from = i * month / 10_000;
            Kept { bytes: Bytes(1), span: span(from, month) }
        })
        .collect();
    let history = History { metered: lives, ..faultless(&[], &[], &[]) };
    let hours = history.balance(span(0, month));
    assert_eq!(hours.len(), 720);
    let total: ByteMillis = hours.iter().map(|h| h.metered).sum();
    assert_eq!(total, history.metered.iter().map(|k| k.span.of(k.bytes)).sum());
}
