//! The balance of a GPU and UTC hour: metered + held + unconfirmed + slack + idle + out of service = allocatable × time.
//!
//! Each term comes from its own journal: metered, held and unconfirmed from their spans, slack and free bytes from the
//! scheduler's record, presence from the node, capacity and health from the GPU. So the equation can fail, and where it
//! fails some journal is wrong.

use types::{ByteMillis, Bytes, Instant, Span};

/// From `at` on, the GPU could give `allocatable`, and was in service or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityStep {
    pub at: Instant,
    pub allocatable: Bytes,
    pub in_service: bool,
}

/// From `at` on, the GPU's node was heard from or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresenceStep {
    pub at: Instant,
    pub present: bool,
}

/// From `at` on, the scheduler had given the GPU's bytes out like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OccupancyStep {
    pub at: Instant,
    /// Held, not yet confirmed.
    pub held: Bytes,
    /// Confirmed, whether or not its node is heard from.
    pub granted: Bytes,
    /// What partitions are larger than what was asked for.
    pub slack: Bytes,
    /// What nobody has.
    pub free: Bytes,
}

/// `bytes` of the GPU kept all through `span`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    pub bytes: Bytes,
    pub span: Span,
}

/// The journals of one GPU. Steps are in order of time, and of several at one instant the last one holds; each list
/// begins early enough to say what held at the start of the balanced span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Journals<'a> {
    /// Before the first step the GPU had no capacity.
    pub capacity: &'a [CapacityStep],
    /// Before the first step its node was not heard from.
    pub presence: &'a [PresenceStep],
    /// Before the first step the GPU had no capacity.
    pub occupancy: &'a [OccupancyStep],
    /// Intervals, and what open parts are metered so far.
    pub metered: &'a [Kept],
    pub held: &'a [Kept],
    pub unconfirmed: &'a [Kept],
}

/// One hour of one GPU, all terms in byte-milliseconds and none below 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HourBalance {
    /// The start of the UTC hour.
    pub hour: Instant,
    /// Allocatable × time.
    pub capacity: ByteMillis,
    pub metered: ByteMillis,
    pub held: ByteMillis,
    pub unconfirmed: ByteMillis,
    pub slack: ByteMillis,
    /// Free while the GPU was in service and its node heard from.
    pub idle: ByteMillis,
    /// Free while it was not.
    pub out_of_service: ByteMillis,
    /// What the scheduler's record says was granted: equals metered and unconfirmed together.
    pub granted_by_journal: ByteMillis,
    /// What the scheduler's record says was held: equals held.
    pub held_by_journal: ByteMillis,
}

impl HourBalance {
    const fn empty(hour: Instant) -> Self {
        Self {
            hour,
            capacity: ByteMillis::ZERO,
            metered: ByteMillis::ZERO,
            held: ByteMillis::ZERO,
            unconfirmed: ByteMillis::ZERO,
            slack: ByteMillis::ZERO,
            idle: ByteMillis::ZERO,
            out_of_service: ByteMillis::ZERO,
            granted_by_journal: ByteMillis::ZERO,
            held_by_journal: ByteMillis::ZERO,
        }
    }

    /// Capacity less all terms: 0 when the hour balances, positive when use is missing, negative when it is too much.
    #[must_use]
    pub fn difference(&self) -> ByteMillis {
        self.capacity
            - [self.metered, self.held, self.unconfirmed, self.slack, self.idle, self.out_of_service].into_iter().sum()
    }

    /// Whether the equation holds, and the spans say of held and granted bytes what the scheduler's record says.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.difference() == ByteMillis::ZERO
            && self.granted_by_journal == self.metered + self.unconfirmed
            && self.held_by_journal == self.held
    }
}

/// What changes at an instant. Spans are two changes each, so that they add up.
#[derive(Debug, Clone, Copy)]
enum Change {
    Capacity(CapacityStep),
    Presence(bool),
    Occupancy(OccupancyStep),
    Metered(i128),
    Held(i128),
    Unconfirmed(i128),
    /// Nothing but the edge of an hour.
    Hour,
}

/// What holds between two changes, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Now {
    capacity: Option<CapacityStep>,
    present: bool,
    occupancy: Option<OccupancyStep>,
    metered: i128,
    held: i128,
    unconfirmed: i128,
}

impl Now {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Capacity(step) => self.capacity = Some(step),
            Change::Presence(present) => self.present = present,
            Change::Occupancy(step) => self.occupancy = Some(step),
            Change::Metered(bytes) => self.metered += bytes,
            Change::Held(bytes) => self.held += bytes,
            Change::Unconfirmed(bytes) => self.unconfirmed += bytes,
            Change::Hour => {}
        }
    }

    fn count(&self, millis: i64, hour: &mut HourBalance) {
        let millis = i128::from(millis);
        let add = |term: &mut ByteMillis, bytes: i128| *term += ByteMillis(bytes * millis);
        add(&mut hour.metered, self.metered);
        add(&mut hour.held, self.held);
        add(&mut hour.unconfirmed, self.unconfirmed);
        let Some(occupancy) = self.occupancy else {
            return;
        };
        add(&mut hour.slack, i128::from(occupancy.slack.0));
        add(&mut hour.granted_by_journal, i128::from(occupancy.granted.0));
        add(&mut hour.held_by_journal, i128::from(occupancy.held.0));
        let serving = self.present && self.capacity.is_some_and(|step| step.in_service);
        let free = i128::from(occupancy.free.0);
        if serving {
            add(&mut hour.idle, free);
        } else {
            add(&mut hour.out_of_service, free);
        }
        let allocatable = self.capacity.map_or(Bytes::ZERO, |step| step.allocatable);
        add(&mut hour.capacity, i128::from(allocatable.0));
    }
}

/// The balance of each UTC hour that `over` touches, in order; the first and the last count only what lies in `over`.
///
/// One sweep over all changes in order of time: n log n in the number of journal rows.
#[must_use]
pub fn balance(over: Span, journals: &Journals<'_>) -> Vec<HourBalance> {
    let mut changes = changes_within(over, journals);
    // stable, so that of several steps at one instant the last one holds
    changes.sort_by_key(|(at, _)| *at);
    let mut now = Now::default();
    let mut hours: Vec<HourBalance> = Vec::new();
    let mut from = over.start();
    for (at, change) in changes {
        if from < at {
            let hour = from.hour_start();
            if hours.last().is_none_or(|last| last.hour != hour) {
                hours.push(HourBalance::empty(hour));
            }
            if let Some(last) = hours.last_mut() {
                now.count(at.since(from), last);
            }
            from = at;
        }
        now.apply(change);
    }
    hours
}

/// All changes, those before `over` moved to its start, together with the edges of the hours, so that no stretch
/// between two changes crosses one.
fn changes_within(over: Span, journals: &Journals<'_>) -> Vec<(Instant, Change)> {
    let mut changes = Vec::new();
    let mut push = |at: Instant, change: Change| {
        if at < over.end() {
            changes.push((at.max(over.start()), change));
        }
    };
    for step in journals.capacity {
        push(step.at, Change::Capacity(*step));
    }
    for step in journals.presence {
        push(step.at, Change::Presence(step.present));
    }
    for step in journals.occupancy {
        push(step.at, Change::Occupancy(*step));
    }
    let mut push_spans = |spans: &[Kept], change: fn(i128) -> Change| {
        for kept in spans {
            if kept.span.intersection(&over).is_some() {
                push(kept.span.start(), change(i128::from(kept.bytes.0)));
                push(kept.span.end(), change(-i128::from(kept.bytes.0)));
            }
        }
    };
    push_spans(journals.metered, Change::Metered);
    push_spans(journals.held, Change::Held);
    push_spans(journals.unconfirmed, Change::Unconfirmed);
    let mut hour = over.start().hour_start().plus_secs(3600);
    while hour < over.end() {
        changes.push((hour, Change::Hour));
        hour = hour.plus_secs(3600);
    }
    changes.push((over.end(), Change::Hour));
    changes
}

#[cfg(test)]
mod tests;
