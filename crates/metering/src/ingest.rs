//! The server's judgement of a batch of readings. Rows are judged one by one: a row that cannot be true is set aside
//! with its reason and never stands in the way of another.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};
use types::{
    AllocationId, Bytes, GpuId, Instant, PartId, ProjectId, TenantId,
    wire::{Quality, Reading},
};

/// Within this skew a node's clock counts as right: what is measured includes the way of the upload, and correcting
/// that noise would make the windows of one batch overlap those of the next.
pub const SKEW_TOLERANCE_MS: i64 = 2_000;
/// Beyond this skew a node's times cannot be trusted, corrected or not.
pub const MAX_SKEW_MS: i64 = 60_000;
/// How far a reading may lie past a bound that clocks of two machines draw.
pub const TIME_TOLERANCE_MS: i64 = 2_000;
/// The longest window of a reading: an hour.
pub const MAX_WINDOW_MS: i64 = 3_600_000;

/// What the server knows of a part on the node that sent the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPart {
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    pub allocation_id: AllocationId,
    pub gpu_id: GpuId,
    /// All of the card's memory.
    pub device_bytes: Bytes,
    /// When metering began.
    pub active_from: Instant,
    /// When it ended, if it has.
    pub ended: Option<Instant>,
    /// The end of its latest accepted reading by the *node's* clock: [`Accepted::read_to`]. A node's clock never goes
    /// back, so overlap is judged on it and a change of the correction makes none.
    pub read_to: Option<Instant>,
}

/// A reading that can be true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its place in the batch, from 0.
    pub index: usize,
    pub part: KnownPart,
    /// With its times corrected by the skew where that is above [`SKEW_TOLERANCE_MS`].
    pub reading: Reading,
    /// The skew of its batch: the server's clock less the node's, in milliseconds.
    pub skew_ms: i64,
    /// Whether its times were corrected, which a reader of the row must see.
    pub flagged: bool,
    /// The end of the window by the node's clock: what the part's `read_to` becomes.
    pub read_to: Instant,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $text:literal;)*) => {
        /// Why a row cannot be accepted as it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum SetAsideReason { $($(#[$doc])* $variant),* }

        impl SetAsideReason {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// As stored.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The one of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|r| r.name() == name)
            }
        }

        impl fmt::Display for SetAsideReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),* })
            }
        }
    };
}

reasons! {
    /// More than [`MAX_SKEW_MS`] between the clocks.
    Skew = "skew", "the node's clock and the server's differ by more than 60 s";
    /// No part of this node.
    UnknownPart = "unknown_part", "this node holds no such part";
    /// Ends later than now.
    Future = "future", "its window ends in the future";
    /// No window at all, or one longer than [`MAX_WINDOW_MS`].
    TooLong = "too_long", "its window is empty, negative or longer than an hour";
    /// Says two things that exclude each other.
    Inconsistent = "inconsistent", "its quantities and its quality contradict each other";
    /// More than the card has.
    AboveDevice = "above_device", "it is more memory or more time than the card and the window have";
    /// Ends before metering began.
    BeforeActive = "before_active", "its window ends before the part became active";
    /// Starts after the part ended.
    AfterEnd = "after_end", "its window starts after the part ended";
    /// The time is covered by a reading already.
    Overlap = "overlap", "its window overlaps a reading that was accepted before";
}

/// What became of a batch's rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judged {
    /// In the order of the batch.
    pub accepted: Vec<Accepted>,
    /// Places in the batch, from 0, and why.
    pub set_aside: Vec<(usize, SetAsideReason)>,
}

/// Judges each row of a batch. `known` answers for the parts of the batch's own node only; `now` is the server's time
/// and `skew_ms` the server's clock less the node's when the batch was sent.
#[must_use]
pub fn judge(batch: &[Reading], known: impl Fn(&PartId) -> Option<KnownPart>, now: Instant, skew_ms: i64) -> Judged {
    let mut judged = Judged::default();
    if skew_ms.saturating_abs() > MAX_SKEW_MS {
        judged.set_aside = (0..batch.len()).map(|index| (index, SetAsideReason::Skew)).collect();
        return judged;
    }
    let flagged = skew_ms.abs() > SKEW_TOLERANCE_MS;
    let correction = if flagged { skew_ms } else { 0 };
    let mut read_to: BTreeMap<PartId, Instant> = BTreeMap::new();
    for (index, row) in batch.iter().enumerate() {
        let corrected =
            Reading { start: row.start.plus_millis(correction), end: row.end.plus_millis(correction), ..row.clone() };
        let verdict = known(&row.part_id).ok_or(SetAsideReason::UnknownPart).and_then(|part| {
            possible(&corrected, &part, now)?;
            let last = read_to.get(&row.part_id).copied().max(part.read_to);
            if last.is_some_and(|last| row.start < last) {
                return Err(SetAsideReason::Overlap);
            }
            Ok(part)
        });
        match verdict {
            Ok(part) => {
                read_to.insert(row.part_id, row.end);
                judged.accepted.push(Accepted { index, part, reading: corrected, skew_ms, flagged, read_to: row.end });
            }
            Err(reason) => judged.set_aside.push((index, reason)),
        }
    }
    judged
}

/// Whether a row, taken alone, can be true of that part.
fn possible(row: &Reading, part: &KnownPart, now: Instant) -> Result<(), SetAsideReason> {
    let window_ms = row.end.since(row.start);
    if window_ms <= 0 || window_ms > MAX_WINDOW_MS {
        return Err(SetAsideReason::TooLong);
    }
    if row.end.since(now) > TIME_TOLERANCE_MS {
        return Err(SetAsideReason::Future);
    }
    consistent(row)?;
    let device = part.device_bytes;
    let most = device.over_millis(window_ms);
    if i64::from(row.covered_ms) > window_ms
        || row.granted > device
        || row.peak.is_some_and(|peak| peak > device)
        || row.used.is_some_and(|used| used > most)
    {
        return Err(SetAsideReason::AboveDevice);
    }
    if row.end <= part.active_from {
        return Err(SetAsideReason::BeforeActive);
    }
    if part.ended.is_some_and(|ended| row.start.since(ended) >= TIME_TOLERANCE_MS) {
        return Err(SetAsideReason::AfterEnd);
    }
    Ok(())
}

/// Quantities are all there or all absent, as the quality says, none is negative, and none exceeds what bounds it.
fn consistent(row: &Reading) -> Result<(), SetAsideReason> {
    let holds = match (row.used, row.above, row.peak) {
        (Some(used), Some(above), Some(peak)) => {
            row.quality != Quality::Unknown
                && above.0 >= 0
                && above <= used
                && used <= peak.over_millis(row.end.since(row.start))
        }
        (None, None, None) => row.quality == Quality::Unknown && row.covered_ms == 0,
        _ => false,
    };
    holds.then_some(()).ok_or(SetAsideReason::Inconsistent)
}

/// Where a batch stands against its stream's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// Known already: acknowledge, without effect.
    Repeat,
    /// The one that follows the mark.
    Next,
    /// One is missing before it.
    Gap { expected: u64 },
}

/// Compares the sequence of a batch with the highest that is durable, 0 for a stream never seen.
#[must_use]
pub const fn sequence(mark: u64, got: u64) -> Sequence {
    if got <= mark {
        Sequence::Repeat
    } else if got - mark == 1 {
        Sequence::Next
    } else {
        Sequence::Gap { expected: mark + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::ByteMillis;
    use uuid::Uuid;

    fn at(secs: i64) -> Instant {
        Instant::from_millis(1_700_000_040_000 + secs * 1000).unwrap()
    }

    fn id(n: u128) -> PartId {
        PartId(Uuid::from_u128(n))
    }

    fn row(part: u128, start: i64, end: i64) -> Reading {
        let millis = (end - start) * 1000;
        Reading {
            part_id: id(part),
            start: at(start),
            end: at(end),
            granted: Bytes(60),
            used: Some(Bytes(50).over_millis(millis)),
            above: Some(ByteMillis::ZERO),
            peak: Some(Bytes(50)),
            covered_ms: u32::try_from(millis.max(0)).unwrap(),
            quality: Quality::Measured,
        }
    }

    fn known_part() -> KnownPart {
        KnownPart {
            tenant_id: TenantId(Uuid::nil()),
            project_id: ProjectId(Uuid::nil()),
            allocation_id: AllocationId(Uuid::nil()),
            gpu_id: GpuId(Uuid::nil()),
            device_bytes: Bytes(100),
            active_from: at(0),
            ended: None,
            read_to: None,
        }
    }

    fn known(part: &PartId) -> Option<KnownPart> {
        (*part == id(1) || *part == id(2)).then(known_part)
    }

    fn reason(row: &Reading) -> Option<SetAsideReason> {
        reason_for(row, known_part())
    }

    fn reason_for(row: &Reading, part: KnownPart) -> Option<SetAsideReason> {
        let judged = judge(std::slice::from_ref(row), |p| (*p == id(1)).then_some(part), at(600), 0);
        assert_eq!(judged.accepted.len() + judged.set_aside.len(), 1);
        judged.set_aside.first().map(|(_, reason)| *reason)
    }

    #[test]
    fn impossible_rows_are_named() {
        use SetAsideReason as R;
        let good = row(1, 60, 120);
        let but = |change: fn(&mut Reading)| {
            let mut changed = good.clone();
            change(&mut changed);
            reason(&changed)
        };
        assert_eq!(reason(&good), None);
        assert_eq!(reason(&row(3, 60, 120)), Some(R::UnknownPart));
        assert_eq!(reason(&row(1, 560, 602)), None);
        assert_eq!(reason(&row(1, 560, 603)), Some(R::Future));
        assert_eq!(reason(&row(1, 60, 60)), Some(R::TooLong));
        assert_eq!(reason(&row(1, 60, 10)), Some(R::TooLong));
        assert_eq!(reason(&row(1, -3000, 601)), Some(R::TooLong));
        assert_eq!(but(|r| r.peak = Some(Bytes(101))), Some(R::AboveDevice));
        assert_eq!(but(|r| r.covered_ms = 60_001), Some(R::AboveDevice));
        assert_eq!(but(|r| r.granted = Bytes(101)), Some(R::AboveDevice));
        assert_eq!(but(|r| r.used = Some(Bytes(51).over_millis(60_000))), Some(R::Inconsistent));
        assert_eq!(but(|r| r.above = Some(ByteMillis(r.used.unwrap().0 + 1))), Some(R::Inconsistent));
        assert_eq!(but(|r| r.above = Some(ByteMillis(-1))), Some(R::Inconsistent));
        assert_eq!(but(|r| r.used = Some(ByteMillis(-1))), Some(R::Inconsistent));
        assert_eq!(but(|r| r.used = None), Some(R::Inconsistent));
        assert_eq!(but(|r| r.quality = Quality::Unknown), Some(R::Inconsistent));
        assert_eq!(but(|r| (r.used, r.above, r.peak) = (None, None, None)), Some(R::Inconsistent));
        assert_eq!(reason(&row(1, -60, 0)), Some(R::BeforeActive));
        assert_eq!(reason(&row(1, -60, 1)), None);
        let ended = KnownPart { ended: Some(at(60)), ..known_part() };
        assert_eq!(reason_for(&row(1, 61, 120), ended), None);
        assert_eq!(reason_for(&row(1, 62, 120), ended), Some(R::AfterEnd));
    }

    #[test]
    fn unknown_quantities_are_accepted_as_unknown() {
        let unknown = Reading {
            used: None,
            above: None,
            peak: None,
            covered_ms: 0,
            quality: Quality::Unknown,
            ..row(1, 60, 120)
        };
        assert_eq!(reason(&unknown), None);
    }

    /// kubecost 358 and lago 4725: two exporters on one node, or one row twice, must not count twice.
    #[test]
    fn what_was_read_once_is_not_read_again() {
        let batch = [row(1, 60, 120), row(1, 60, 120), row(2, 60, 120), row(1, 119, 180), row(1, 120, 180)];
        let judged = judge(&batch, known, at(600), 0);
        let accepted: Vec<_> = judged.accepted.iter().map(|a| a.index).collect();
        assert_eq!(accepted, [0, 2, 4]);
        assert_eq!(judged.set_aside, [(1, SetAsideReason::Overlap), (3, SetAsideReason::Overlap)]);
        let part = KnownPart { read_to: Some(at(120)), ..known_part() };
        assert_eq!(reason_for(&row(1, 60, 120), part), Some(SetAsideReason::Overlap));
    }

    #[test]
    fn one_bad_row_blocks_no_other() {
        let batch = [row(9, 60, 120), row(1, 60, 50), row(1, 60, 120)];
        let judged = judge(&batch, known, at(600), 0);
        assert_eq!(judged.accepted.len(), 1);
        assert_eq!(judged.accepted[0].index, 2);
        assert_eq!(judged.set_aside.len(), 2);
    }

    #[test]
    fn skew_is_corrected_flagged_and_at_last_refused() {
        let accepted = |skew_ms| judge(&[row(1, 60, 120)], known, at(600), skew_ms).accepted.pop();
        let noise = accepted(2_000).unwrap();
        assert_eq!((noise.reading.start, noise.flagged), (at(60), false));
        let late = accepted(-5_000).unwrap();
        assert_eq!((late.reading.start, late.flagged), (at(55), true));
        assert_eq!((late.skew_ms, late.read_to), (-5_000, at(120)));
        assert!(accepted(60_000).is_some());
        for skew_ms in [60_001, -60_001, i64::MIN, i64::MAX] {
            assert_eq!(judge(&[row(1, 60, 120)], known, at(600), skew_ms).set_aside, [(0, SetAsideReason::Skew)]);
        }
    }

    /// The skew of a batch holds the delay of its upload; the next batch, faster on its way, is no overlap.
    #[test]
    fn a_slow_upload_makes_no_overlap() {
        let slow = judge(&[row(1, 60, 120)], known, at(600), 3_000);
        let part = KnownPart { read_to: Some(slow.accepted[0].read_to), ..known_part() };
        let next = judge(&[row(1, 120, 180)], |_| Some(part), at(600), 5);
        assert_eq!(next.accepted.len(), 1);
    }

    #[test]
    fn a_stream_goes_forward_one_by_one() {
        assert_eq!(sequence(0, 1), Sequence::Next);
        assert_eq!(sequence(7, 7), Sequence::Repeat);
        assert_eq!(sequence(7, 0), Sequence::Repeat);
        assert_eq!(sequence(7, 9), Sequence::Gap { expected: 8 });
        assert_eq!(sequence(u64::MAX, u64::MAX), Sequence::Repeat);
    }

    #[test]
    fn names_are_what_serde_writes() {
        for &reason in SetAsideReason::ALL {
            let name = serde_json::to_value(reason).unwrap();
            assert_eq!(name, reason.name());
            assert_eq!(SetAsideReason::from_name(reason.name()), Some(reason));
        }
    }

    proptest! {
        /// Whatever comes, each row is judged once, and what is accepted never overlaps and never exceeds the card.
        #[test]
        fn accepted_rows_are_possible(
            rows in proptest::collection::vec((0u128..3, -100i64..700, -10i64..100, 0u64..130), 0..40),
            skew_ms in -3_000i64..3_000,
        ) {
            let batch: Vec<_> = rows.iter().map(|&(part, start, length, peak)| {
                let mut reading = row(part, start, start + length);
                reading.peak = Some(Bytes(peak));
                reading.used = Some(Bytes(peak).over_millis(length * 1000));
                reading
            }).collect();
            let judged = judge(&batch, known, at(600), skew_ms);
            let mut indexes: Vec<_> = judged.accepted.iter().map(|a| a.index)
                .chain(judged.set_aside.iter().map(|(index, _)| *index)).collect();
            indexes.sort_unstable();
            prop_assert_eq!(indexes, (0..batch.len()).collect::<Vec<_>>());
            for (i, a) in judged.accepted.iter().enumerate() {
                prop_assert!(a.reading.peak.unwrap() <= Bytes(100));
                for b in &judged.accepted[i + 1..] {
                    prop_assert!(a.reading.part_id != b.reading.part_id || a.reading.end <= b.reading.start);
                }
            }
        }
    }
}
