//! The life of an allocation: `queued → held → active → released`, or an early end.

use types::{AllocationState, Cause};

/// Nothing of that kind happens to an allocation in that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an allocation that is {from} cannot change because of {cause}")]
pub struct Illegal {
    pub from: AllocationState,
    pub cause: Cause,
}

/// The state that follows. An allocation begins as queued, because of [`Cause::Requested`], so that leads nowhere here.
///
/// Repeats are not transitions: who confirms or releases a second time is answered from the present state.
///
/// # Errors
/// [`Illegal`] where the cause does not apply to the state; a final state is left by none.
pub const fn next(from: AllocationState, cause: Cause) -> Result<AllocationState, Illegal> {
    use AllocationState as S;
    Ok(match (from, cause) {
        (S::Queued, Cause::Placed) => S::Held,
        (S::Queued | S::Held, Cause::Cancelled) => S::Cancelled,
        (S::Held, Cause::Confirmed) => S::Active,
        // never confirmed, so nothing is lost and nothing is metered
        (S::Held, Cause::HoldGrace | Cause::NodeLost | Cause::NodeRebooted | Cause::NodeRemoved) => S::Expired,
        (S::Active, Cause::NodeSilent | Cause::Attested) => S::Active,
        (S::Active, Cause::Owner | Cause::Exited | Cause::MaxDuration | Cause::Vanished) => S::Released,
        (S::Active, Cause::NodeLost | Cause::NodeRebooted | Cause::NodeRemoved) => S::Lost,
        _ => return Err(Illegal { from, cause }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row per cause; what it makes of a queued, a held and an active allocation, `-` where it does not apply.
    const TABLE: [(&str, [&str; 3]); 14] = [
        ("requested", ["-", "-", "-"]),
        ("placed", ["held", "-", "-"]),
        ("confirmed", ["-", "active", "-"]),
        ("owner", ["-", "-", "released"]),
        ("exited", ["-", "-", "released"]),
        ("hold_grace", ["-", "expired", "-"]),
        ("cancelled", ["cancelled", "cancelled", "-"]),
        ("max_duration", ["-", "-", "released"]),
        ("vanished", ["-", "-", "released"]),
        ("node_silent", ["-", "-", "active"]),
        ("attested", ["-", "-", "active"]),
        ("node_lost", ["-", "expired", "lost"]),
        ("node_rebooted", ["-", "expired", "lost"]),
        ("node_removed", ["-", "expired", "lost"]),
    ];

    #[test]
    fn every_state_and_cause_is_as_the_table_says() {
        for &cause in Cause::ALL {
            let row = TABLE
                .iter()
                .find(|(name, _)| *name == cause.name())
                .unwrap_or_else(|| panic!("{cause} is missing from the table"));
            for &from in AllocationState::ALL {
                let text = ["queued", "held", "active"]
                    .iter()
                    .position(|s| *s == from.name())
                    .map_or("-", |column| row.1[column]);
                let expected = AllocationState::from_name(text).ok_or(Illegal { from, cause });
                assert_eq!(next(from, cause), expected, "{from} because of {cause}");
            }
        }
        assert_eq!(TABLE.len(), Cause::ALL.len());
    }

    #[test]
    fn only_final_states_are_left_by_nothing() {
        for &from in AllocationState::ALL {
            let stuck = Cause::ALL.iter().all(|&cause| next(from, cause).is_err());
            assert_eq!(stuck, from.is_final(), "{from}");
        }
    }
}
