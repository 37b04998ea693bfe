//! The node's time: the boot clock, anchored at the server's time.
//!
//! Durations come from `CLOCK_BOOTTIME`, which no one sets and which runs on while the host sleeps; the wall clock may
//! be wrong or stepped and moves nothing. The anchor is the server's time in the first answer of a boot, so it is there
//! before any reading is, because the parts to meter come in that answer too. It is kept per boot, so an agent that
//! starts anew goes on in the same time. Afterwards the anchor follows the server by a few milliseconds per answer, as
//! crystals drift; the node's time never goes back.

use crate::state::StateDir;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Clock, Instant, Name};

/// An answer that took longer tells too little about the server's time.
const MAX_ROUND_TRIP_MS: i64 = 2_000;
/// How far the anchor follows per answer: at one answer in five seconds, twenty times the drift of a bad crystal.
const MAX_SLEW_MS: i64 = 10;
/// Beyond this the anchor is wrong rather than drifting: it is set anew.
const STEP_MS: i64 = 2_000;
/// A changed anchor is written to disk when it has moved this far.
const SAVE_AFTER_MS: i64 = 100;

/// The difference between the node's time and the boot clock, and what it was last set by.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    /// Node's time less boot clock.
    offset_ms: i64,
    /// Whether the server's time set it.
    set: bool,
    /// The latest time that was told.
    latest: Instant,
}

impl Anchor {
    fn now(&mut self, boot_ms: i64) -> Instant {
        let now = Instant::EPOCH.plus_millis(boot_ms.saturating_add(self.offset_ms));
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Takes the server's time in an answer to what was sent at `sent_ms` and answered at `received_ms` of the boot
    /// clock. Returns how far the anchor was off.
    fn observe(&mut self, sent_ms: i64, received_ms: i64, server: Instant) -> Option<i64> {
        if received_ms - sent_ms > MAX_ROUND_TRIP_MS && self.set {
            return None;
        }
        let offset = server.as_millis() - sent_ms.midpoint(received_ms);
        let off_by = offset - self.offset_ms;
        if !self.set {
            // nothing was measured before, so there is no time to keep in order
            self.latest = Instant::EPOCH;
            self.offset_ms = offset;
        } else if off_by.abs() > STEP_MS {
            self.offset_ms = offset;
        } else {
            self.offset_ms += off_by.clamp(-MAX_SLEW_MS, MAX_SLEW_MS);
        }
        self.set = true;
        Some(off_by)
    }
}

/// The anchor as it is kept on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    boot_id: Name,
    offset_ms: i64,
}

/// The node's clock.
#[derive(Debug)]
pub(crate) struct NodeClock {
    clock: Clock,
    boot_id: Name,
    anchor: Mutex<Anchor>,
    saved_offset_ms: Mutex<Option<i64>>,
}

impl NodeClock {
    /// Goes on with the anchor of this boot, or begins at the wall clock until the server answers.
    pub fn open(clock: Clock, boot_id: &Name, state: &StateDir) -> Self {
        let kept = state.read::<Kept>("clock.json").filter(|kept| kept.boot_id == *boot_id).map(|kept| kept.offset_ms);
        let anchor = Anchor {
            offset_ms: kept.unwrap_or_else(|| clock.now().as_millis() - boot_millis(&clock)),
            set: kept.is_some(),
            latest: Instant::EPOCH,
        };
        Self { clock, boot_id: boot_id.clone(), anchor: Mutex::new(anchor), saved_offset_ms: Mutex::new(kept) }
    }

    fn anchor(&self) -> MutexGuard<'_, Anchor> {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's time.
    pub fn now(&self) -> Instant {
        self.anchor().now(self.boot_millis())
    }

    /// The boot clock, in milliseconds.
    pub fn boot_millis(&self) -> i64 {
        boot_millis(&self.clock)
    }

    /// Takes the server's time in an answer to what was sent at `sent_ms` of the boot clock.
    pub fn observe(&self, sent_ms: i64, server: Instant, state: &StateDir) {
        let (was_set, off_by, offset_ms) = {
            let mut anchor = self.anchor();
            let was_set = anchor.set;
            let off_by = anchor.observe(sent_ms, self.boot_millis(), server);
            (was_set, off_by, anchor.offset_ms)
        };
        if let Some(off_by) = off_by.filter(|ms| ms.abs() > STEP_MS) {
            if was_set {
                tracing::warn!(off_by_ms = off_by, "the server's time has moved: the node's time follows");
            } else {
                tracing::warn!(off_by_ms = off_by, "this host's wall clock is wrong: the server's time is used");
            }
        }
        let mut saved = self.saved_offset_ms.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.is_none_or(|saved| (saved - offset_ms).abs() >= SAVE_AFTER_MS) {
            let kept = Kept { boot_id: self.boot_id.clone(), offset_ms };
            match state.write("clock.json", &kept) {
                Ok(()) => *saved = Some(offset_ms),
                Err(error) => tracing::warn!(%error, "the clock's anchor cannot be written"),
            }
        }
    }
}

/// The boot clock; a virtual clock stands for it where one is given.
fn boot_millis(clock: &Clock) -> i64 {
    match clock {
        Clock::System | Clock::Moved(_) => nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
            .map_or(0, |t| t.tv_sec() * 1000 + t.tv_nsec() / 1_000_000),
        Clock::Virtual(_) => clock.now().as_millis(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Instant {
        Instant::from_millis(1_700_000_000_000 + millis).unwrap()
    }

    fn anchored() -> Anchor {
        // a wall clock that is a day off before the server answers
        let mut anchor = Anchor { offset_ms: at(86_400_000).as_millis(), set: false, latest: Instant::EPOCH };
        assert_eq!(anchor.now(0), at(86_400_000));
        assert_eq!(anchor.observe(100, 300, at(200)), Some(-86_400_000));
        anchor
    }

    #[test]
    fn the_server_sets_the_time_of_a_boot() {
        let mut anchor = anchored();
        assert_eq!(anchor.now(300), at(300));
        assert_eq!(anchor.now(60_300), at(60_300));
    }

    #[test]
    fn drift_is_followed_in_small_steps_and_never_back() {
        let mut anchor = anchored();
        assert_eq!(anchor.now(5_000), at(5_000));
        anchor.observe(5_000, 5_000, at(4_000));
        assert_eq!(anchor.now(5_000), at(5_000));
        assert_eq!(anchor.now(5_020), at(5_010));
        anchor.observe(6_000, 6_000, at(5_995));
        assert_eq!(anchor.now(6_000), at(5_995));
    }

    #[test]
    fn a_moved_server_time_is_followed_at_once() {
        let mut anchor = anchored();
        anchor.observe(1_000, 1_000, at(61_000));
        assert_eq!(anchor.now(2_000), at(62_000));
        anchor.observe(3_000, 3_000, at(3_000));
        // time stands still until it is reached again
        assert_eq!(anchor.now(4_000), at(62_000));
        assert_eq!(anchor.now(62_001), at(62_001));
    }

    #[test]
    fn a_slow_answer_tells_nothing() {
        let mut anchor = anchored();
        assert_eq!(anchor.observe(0, 2_001, at(0)), None);
        assert_eq!(anchor.now(2_001), at(2_001));
    }

    #[test]
    fn an_agent_that_starts_anew_goes_on_in_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().to_owned()).unwrap();
        let boot: Name = "boot-1".parse().unwrap();
        let clock = Clock::standing_at(at(0));
        NodeClock::open(clock.clone(), &boot, &state).observe(at(0).as_millis(), at(3_600_000), &state);
        clock.advance_to(at(1_000));
        let again = NodeClock::open(clock.clone(), &boot, &state);
        assert_eq!(again.now(), at(3_601_000));
        let other_boot = NodeClock::open(clock, &"boot-2".parse().unwrap(), &state);
        assert_eq!(other_boot.now(), at(1_000));
    }
}
