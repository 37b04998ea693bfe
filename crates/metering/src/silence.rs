//! When a node counts as silent, and which deadline ends an allocation. Neither runs while nobody leads the pool: an
//! outage of the server is not silence of the nodes.

use types::{Cause, Instant};

/// Since when a node is silent at `now`, or `None` while it is not. The answer is its last sign of life, from which on
/// nothing may be metered; it was `last_heard`, or never.
///
/// A present leader listens since `leader_since`, so silence is counted from there at the earliest. It begins at the same
/// instant at which a workload that was seen last in the node's last report would count as vanished: the node's silence
/// comes first, so that such a workload is unconfirmed and not ended.
#[must_use]
pub fn silent_since(
    now: Instant,
    last_heard: Option<Instant>,
    leader_since: Instant,
    silence_grace_ms: i64,
) -> Option<Instant> {
    let listened_from = last_heard.map_or(leader_since, |heard| heard.max(leader_since));
    (now.since(listened_from) >= silence_grace_ms).then(|| last_heard.unwrap_or(leader_since))
}

/// What an allocation's deadlines depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Placed and not confirmed.
    Held {
        /// When its hold ends.
        hold_until: Instant,
    },
    /// Confirmed, and its node is heard from.
    Active {
        /// When `max_duration` ends it.
        ends_by: Option<Instant>,
        /// The last renewal, or the last time its node saw the workload alive; at least its confirmation.
        last_sign: Instant,
    },
    /// Confirmed, and its node is silent.
    Unconfirmed {
        ends_by: Option<Instant>,
        /// The last sign of life of its node.
        since: Instant,
        /// When it is lost: a grace after that, in which a leader listened.
        lost_by: Instant,
    },
}

/// The end that an allocation is heading for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When it is due.
    pub due: Instant,
    pub cause: Cause,
    /// Until when the allocation counts as having lived: the end of its meter.
    pub lived_until: Instant,
}

/// The deadline that an allocation meets first. A workload has vanished after `silence_ms` without a word. Nothing is due
/// before that long has passed under the present leader, because only then can signs of life have arrived.
#[must_use]
pub fn first_deadline(life: Life, silence_ms: i64, leader_since: Instant) -> Deadline {
    let listened = leader_since.plus_millis(silence_ms);
    let deadline = |at: Instant, cause, lived_until| Deadline { due: at.max(listened), cause, lived_until };
    match life {
        Life::Held { hold_until } => deadline(hold_until, Cause::HoldGrace, hold_until),
        Life::Active { ends_by, last_sign } => {
            let word_until = last_sign.plus_millis(silence_ms);
            let vanished = deadline(word_until, Cause::Vanished, last_sign);
            match ends_by {
                Some(end) if end <= word_until => deadline(end, Cause::MaxDuration, end),
                _ => vanished,
            }
        }
        Life::Unconfirmed { ends_by, since, lost_by } => match ends_by {
            Some(end) if end <= lost_by => deadline(end, Cause::MaxDuration, since.min(end)),
            _ => deadline(lost_by, Cause::NodeLost, since),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Instant {
        Instant::from_millis(1_700_000_000_000 + secs * 1000).unwrap()
    }

    const SILENCE_MS: i64 = 60_000;

    #[test]
    fn a_node_is_silent_only_when_somebody_listened() {
        let silent =
            |now: i64, heard: Option<i64>, leader: i64| silent_since(at(now), heard.map(at), at(leader), SILENCE_MS);
        assert_eq!(silent(59, Some(0), -1000), None);
        assert_eq!(silent(60, Some(0), -1000), Some(at(0)));
        // the server was away for an hour: nobody is silent for one grace after the take-over
        assert_eq!(silent(3659, Some(0), 3600), None);
        assert_eq!(silent(3660, Some(0), 3600), Some(at(0)));
        // never heard at all
        assert_eq!(silent(59, None, 0), None);
        assert_eq!(silent(60, None, 0), Some(at(0)));
    }

    /// gpustack 6279: force-deleted while its controller was down; use must stop at the last sign of life.
    #[test]
    fn what_vanished_lived_until_its_last_sign() {
        let life = Life::Active { ends_by: None, last_sign: at(5) };
        assert_eq!(
            first_deadline(life, SILENCE_MS, at(-500)),
            Deadline { due: at(65), cause: Cause::Vanished, lived_until: at(5) }
        );
        // a take-over long after: due one grace later, metered no further
        assert_eq!(
            {
                let d = first_deadline(life, SILENCE_MS, at(4000));
                (d.due, d.lived_until)
            },
            (at(4060), at(5))
        );
    }

    #[test]
    fn the_first_deadline_wins() {
        let first = |life| {
            let d = first_deadline(life, SILENCE_MS, at(-500));
            (d.due, d.cause)
        };
        assert_eq!(first(Life::Held { hold_until: at(30) }), (at(30), Cause::HoldGrace));
        assert_eq!(first(Life::Active { ends_by: Some(at(50)), last_sign: at(0) }), (at(50), Cause::MaxDuration));
        assert_eq!(first(Life::Active { ends_by: Some(at(90)), last_sign: at(0) }), (at(60), Cause::Vanished));
        assert_eq!(
            first(Life::Unconfirmed { ends_by: None, since: at(0), lost_by: at(86_400) }),
            (at(86_400), Cause::NodeLost)
        );
        let ended_in_silence = first_deadline(
            Life::Unconfirmed { ends_by: Some(at(100)), since: at(0), lost_by: at(86_400) },
            SILENCE_MS,
            at(-500),
        );
        assert_eq!(ended_in_silence, Deadline { due: at(100), cause: Cause::MaxDuration, lived_until: at(0) });
    }
}
