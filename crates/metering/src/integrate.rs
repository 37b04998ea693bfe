//! From samples of one part's memory to readings.
//!
//! A sample holds until the next one, so that samples at random phases are unbiased; the first one also reaches back
//! to the start, because the start is known. Neither goes further than a bound: what lies beyond is a gap, and a gap is
//! not covered. A sample that could not be read covers nothing: unknown is not zero.

use types::{
    ByteMillis, Bytes, Instant, PartId,
    wire::{Quality, Reading},
};

/// The length of a window: whole minutes that divide an hour. Windows begin at multiples of it since 1970, so they are
/// cut at UTC minutes and never cross a UTC hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLength(i64);

/// The length is not one of those that windows may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a window of {0} minutes: it must be a whole number of minutes that divides an hour")]
pub struct WindowLengthError(pub u32);

impl WindowLength {
    /// One minute.
    pub const MINUTE: Self = Self(60_000);

    /// A window of `minutes`: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60.
    ///
    /// # Errors
    /// [`WindowLengthError`] for any other number.
    pub const fn minutes(minutes: u32) -> Result<Self, WindowLengthError> {
        if minutes == 0 || !60_u32.is_multiple_of(minutes) {
            return Err(WindowLengthError(minutes));
        }
        Ok(Self(minutes as i64 * 60_000))
    }

    /// The end of the window that `t` lies in.
    fn end_of(self, t: Instant) -> Instant {
        let millis = t.as_millis();
        // the last window of the year 9999 is cut short at the end of time
        Instant::from_millis(millis - millis % self.0 + self.0).unwrap_or(Instant::LAST)
    }
}

/// What one window has gathered so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    used: ByteMillis,
    above: ByteMillis,
    peak: Bytes,
    covered_ms: i64,
}

/// The newest sample, if any came yet.
#[derive(Debug, Clone, Copy)]
enum Sample {
    NoneYet,
    Seen { at: Instant, used: Option<Bytes> },
}

/// Integrates one part's samples into readings. Instants must not go back; one that does counts as the latest before it.
#[derive(Debug, Clone)]
pub struct Integrator {
    part_id: PartId,
    granted: Bytes,
    window: WindowLength,
    max_gap_ms: i64,
    window_start: Instant,
    /// Everything before it is in a reading or in `sums`.
    settled: Instant,
    newest: Sample,
    sums: Sums,
}

impl Integrator {
    /// Begins at `start` with `granted` bytes. A sample counts for at most `max_gap_ms` milliseconds, before as after.
    #[must_use]
    pub const fn new(part_id: PartId, granted: Bytes, start: Instant, window: WindowLength, max_gap_ms: i64) -> Self {
        Self {
            part_id,
            granted,
            window,
            max_gap_ms,
            window_start: start,
            settled: start,
            newest: Sample::NoneYet,
            sums: Sums { used: ByteMillis::ZERO, above: ByteMillis::ZERO, peak: Bytes::ZERO, covered_ms: 0 },
        }
    }

    /// What is granted now.
    #[must_use]
    pub const fn granted(&self) -> Bytes {
        self.granted
    }

    /// The start of the window that is still open.
    #[must_use]
    pub const fn window_start(&self) -> Instant {
        self.window_start
    }

    /// Takes a sample: `used` bytes at `at`, or `None` where it could not be read. Returns the windows that it closed.
    pub fn sample(&mut self, at: Instant, used: Option<Bytes>) -> Vec<Reading> {
        let mut closed = self.advance(at);
        if matches!(self.newest, Sample::NoneYet) {
            // `advance` settled all but the last `max_gap_ms`, to which this first sample reaches back
            self.settle(at, used, &mut closed);
        }
        self.newest = Sample::Seen { at, used };
        closed
    }

    /// Lets time pass to `to` without a sample. Returns the windows that closed.
    pub fn advance(&mut self, to: Instant) -> Vec<Reading> {
        let mut closed = Vec::new();
        match self.newest {
            // a first sample at `to` or later may still reach back `max_gap_ms`, and no further
            Sample::NoneYet => self.settle(to.plus_millis(-self.max_gap_ms), None, &mut closed),
            Sample::Seen { at, used } => {
                self.settle(to.min(at.plus_millis(self.max_gap_ms)), used, &mut closed);
                self.settle(to, None, &mut closed);
            }
        }
        closed
    }

    /// Another amount is granted from `at` on: the window is cut there. A first sample does not reach back over it.
    pub fn grant(&mut self, at: Instant, granted: Bytes) -> Vec<Reading> {
        if granted == self.granted {
            return Vec::new();
        }
        let mut closed = self.advance(at);
        self.settle(at, None, &mut closed);
        self.close_window(&mut closed);
        self.granted = granted;
        closed
    }

    /// The part ends at `end`: what is open is closed there.
    #[must_use]
    pub fn finish(mut self, end: Instant) -> Vec<Reading> {
        let mut closed = self.advance(end);
        self.settle(end, None, &mut closed);
        self.close_window(&mut closed);
        closed
    }

    /// Counts `[settled, to)` at a constant value, and closes each window that ends on the way.
    fn settle(&mut self, to: Instant, used: Option<Bytes>, closed: &mut Vec<Reading>) {
        while self.settled < to {
            let window_end = self.window.end_of(self.settled);
            let until = to.min(window_end);
            let millis = until.since(self.settled);
            if let Some(used) = used {
                self.sums.used += used.over_millis(millis);
                self.sums.above += used.less(self.granted).over_millis(millis);
                self.sums.peak = self.sums.peak.max(used);
                self.sums.covered_ms += millis;
            }
            self.settled = until;
            if until == window_end {
                self.close_window(closed);
            }
        }
    }

    fn close_window(&mut self, closed: &mut Vec<Reading>) {
        let (start, end) = (self.window_start, self.settled);
        let sums = std::mem::take(&mut self.sums);
        self.window_start = end;
        if start == end {
            return;
        }
        let known = sums.covered_ms > 0;
        closed.push(Reading {
            part_id: self.part_id,
            start,
            end,
            granted: self.granted,
            used: known.then_some(sums.used),
            above: known.then_some(sums.above),
            peak: known.then_some(sums.peak),
            // a window is at most an hour long
            covered_ms: u32::try_from(sums.covered_ms).unwrap_or(u32::MAX),
            quality: if known { Quality::Measured } else { Quality::Unknown },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GAP: i64 = 15_000;

    fn at(millis: i64) -> Instant {
        Instant::from_millis(1_700_000_040_000 + millis).unwrap() // a whole minute
    }

    fn part() -> PartId {
        PartId(uuid::Uuid::from_u128(7))
    }

    fn new(start: i64, granted: u64) -> Integrator {
        Integrator::new(part(), Bytes(granted), at(start), WindowLength::MINUTE, GAP)
    }

    /// kubefin 47: a 10 s pod under a 15 s scrape was worth 0.
    #[test]
    fn ten_seconds_at_a_fifteen_second_interval_are_ten_seconds() {
        let mut part = new(20_000, 100);
        assert!(part.sample(at(27_000), Some(Bytes(80))).is_empty());
        let readings = part.finish(at(30_000));
        assert_eq!(readings.len(), 1);
        assert_eq!(readings[0].covered_ms, 10_000);
        assert_eq!(readings[0].used, Some(ByteMillis(800_000)));
        assert_eq!(readings[0].quality, Quality::Measured);
    }

    /// gpustack 5710: an instance that runs through a whole clock hour has 3600 s in that hour.
    #[test]
    fn a_whole_hour_is_covered_whole() {
        let start = 1_700_000_040_000 % 3_600_000; // so that at(-start) is a whole hour
        let mut part = new(-start - 7_000, 100);
        let mut readings = Vec::new();
        for tick in 0..800 {
            readings.extend(part.sample(at(-start - 5_000 + tick * 5_000), Some(Bytes(50))));
        }
        let hour_start = at(-start);
        let hour: Vec<_> = readings.iter().filter(|r| r.start.hour_start() == hour_start).collect();
        assert_eq!(hour.len(), 60);
        let covered: u32 = hour.iter().map(|r| r.covered_ms).sum();
        assert_eq!(covered, 3_600_000);
    }

    /// nvtop 432: a source that says N/A has measured nothing, which is not the same as nothing in use.
    #[test]
    fn what_could_not_be_read_is_absent_and_not_zero() {
        let mut part = new(0, 100);
        let mut readings = Vec::new();
        for tick in 0..13 {
            readings.extend(part.sample(at(tick * 5_000), None));
        }
        assert_eq!(readings.len(), 1);
        let unknown = &readings[0];
        assert_eq!((unknown.used, unknown.above, unknown.peak), (None, None, None));
        assert_eq!((unknown.covered_ms, unknown.quality), (0, Quality::Unknown));

        let mut idle = new(0, 100);
        let _ = idle.sample(at(0), Some(Bytes(0)));
        let zero = idle.finish(at(10_000));
        assert_eq!(zero[0].used, Some(ByteMillis(0)));
        assert_eq!(zero[0].covered_ms, 10_000);
    }

    #[test]
    fn a_change_of_the_grant_cuts_the_window() {
        let mut part = new(0, 100);
        let _ = part.sample(at(0), Some(Bytes(150)));
        let first = part.grant(at(4_000), Bytes(200));
        let second = part.finish(at(10_000));
        assert_eq!(first[0].above, Some(ByteMillis(50 * 4_000)));
        assert_eq!(first[0].granted, Bytes(100));
        assert_eq!(second[0].above, Some(ByteMillis(0)));
        assert_eq!(second[0].start, first[0].end);
        assert!(new(0, 5).grant(at(9), Bytes(5)).is_empty());
    }

    #[test]
    fn windows_have_lengths_that_divide_an_hour() {
        for minutes in [0, 7, 45, 61, 120] {
            assert!(WindowLength::minutes(minutes).is_err(), "{minutes}");
        }
        assert_eq!(WindowLength::minutes(1), Ok(WindowLength::MINUTE));
    }

    /// The rule said once more, millisecond by millisecond.
    fn naive(
        start: i64,
        end: i64,
        granted: u64,
        samples: &[(i64, Option<u64>)],
        grants: &[(i64, u64)],
        window_ms: i64,
    ) -> Vec<Reading> {
        let mut readings: Vec<Reading> = Vec::new();
        let mut key = None;
        for t in start..end {
            let grant = grants.iter().rfind(|(g, _)| *g <= t).map_or(granted, |(_, bytes)| *bytes);
            let value = match samples.iter().rfind(|(s, _)| *s <= t) {
                Some((s, value)) => value.filter(|_| t - s < GAP),
                None => samples.first().and_then(|(s, value)| {
                    let cut = grants.iter().any(|(g, _)| t < *g && g <= s);
                    value.filter(|_| s - t <= GAP && *s < end && !cut)
                }),
            };
            // a change to the same amount is no change
            let window = (at(t).as_millis() / window_ms, grant);
            if key != Some(window) {
                key = Some(window);
                readings.push(Reading {
                    part_id: part(),
                    start: at(t),
                    end: at(t),
                    granted: Bytes(grant),
                    used: None,
                    above: None,
                    peak: None,
                    covered_ms: 0,
                    quality: Quality::Unknown,
                });
            }
            let reading = readings.last_mut().unwrap();
            reading.end = at(t + 1);
            if let Some(value) = value {
                let add = |sum: &mut Option<ByteMillis>, n: u64| {
                    *sum = Some(sum.unwrap_or_default() + ByteMillis(i128::from(n)));
                };
                add(&mut reading.used, value);
                add(&mut reading.above, value.saturating_sub(grant));
                reading.peak = reading.peak.max(Some(Bytes(value)));
                reading.covered_ms += 1;
                reading.quality = Quality::Measured;
            }
        }
        readings
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn readings_are_what_each_millisecond_says(
            start in 0i64..70_000,
            length in 0i64..200_000,
            steps in proptest::collection::vec((0i64..22_000, 0u8..8, proptest::option::weighted(0.8, 0u64..200)), 0..25),
            five in any::<bool>(),
        ) {
            let window = WindowLength::minutes(if five { 5 } else { 1 }).unwrap();
            let (end, mut now) = (start + length, start);
            let mut part = Integrator::new(part(), Bytes(100), at(start), window, GAP);
            let (mut samples, mut grants, mut readings) = (Vec::new(), Vec::new(), Vec::new());
            let mut granted = 100;
            for (wait, kind, value) in steps {
                now += wait;
                if now >= end {
                    break;
                }
                match kind {
                    0 => readings.extend(part.advance(at(now))),
                    1 => {
                        // alternates, so that every change is one
                        granted = if granted == 100 { 60 } else { 100 };
                        if grants.last().is_none_or(|(g, _)| *g < now) {
                            grants.push((now, granted));
                            readings.extend(part.grant(at(now), Bytes(granted)));
                        } else {
                            granted = grants.last().map_or(100, |(_, g)| *g);
                        }
                    }
                    _ => {
                        samples.push((now, value));
                        readings.extend(part.sample(at(now), value.map(Bytes)));
                    }
                }
            }
            readings.extend(part.finish(at(end)));
            // the naive model takes the last sample of an instant, and the first one of all for the head
            samples.dedup_by(|later, earlier| later.0 == earlier.0 && { earlier.1 = later.1; true });
            prop_assert_eq!(
                readings,
                naive(start, end, 100, &samples, &grants, if five { 300_000 } else { 60_000 })
            );
        }

        #[test]
        fn a_constant_use_is_counted_for_its_whole_life(life in 1i64..600_000, first in 0i64..5_000, value in 1u64..1_000) {
            let mut part = new(0, 10);
            let mut readings = Vec::new();
            let mut t = first;
            let mut sampled = false;
            while t < life {
                readings.extend(part.sample(at(t), Some(Bytes(value))));
                sampled = true;
                t += 5_000;
            }
            readings.extend(part.finish(at(life)));
            let used: ByteMillis = readings.iter().filter_map(|r| r.used).sum();
            prop_assert_eq!(used, if sampled { Bytes(value).over_millis(life) } else { ByteMillis::ZERO });
        }
    }
}
