//! Whose process it is. A pid is reused and names nothing by itself; a process is named by the boot, the pid, the tick
//! at which it started, and its user.

use serde::{Deserialize, Serialize};
use types::Name;

/// What names one process for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The text of /proc/sys/kernel/random/boot_id.
    pub boot_id: Name,
    pub pid: u32,
    /// Clock ticks from boot to its start: field 22 of /proc/PID/stat.
    pub start_ticks: u64,
    /// The user that it ran as when it was bound.
    pub uid: u32,
}

/// What /proc/PID/stat says that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    pub pid: u32,
    pub parent: u32,
    /// As the kernel abbreviates it: `R`, `S`, `Z` …
    pub state: char,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

/// The text is not that of /proc/PID/stat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the text of a /proc/PID/stat: {0}")]
pub struct StatError(&'static str);

impl ProcessStat {
    /// Reads the text of /proc/PID/stat. The command's name stands in parentheses and may itself hold spaces and
    /// parentheses, so the fields are counted from the last one.
    ///
    /// # Errors
    /// [`StatError`] where a field is missing or no number.
    pub fn parse(text: &str) -> Result<Self, StatError> {
        let (pid, rest) = text.split_once(" (").ok_or(StatError("no command"))?;
        let (_, rest) = rest.rsplit_once(") ").ok_or(StatError("no command"))?;
        let mut fields = rest.split_ascii_whitespace();
        // what follows the command is field 3
        let state = fields.next().and_then(|f| f.chars().next());
        let parent = fields.next().and_then(|f| f.parse().ok());
        let start_ticks = fields.nth(22 - 5).and_then(|f| f.parse().ok());
        Ok(Self {
            pid: pid.parse().map_err(|_| StatError("no pid"))?,
            parent: parent.ok_or(StatError("no parent"))?,
            state: state.ok_or(StatError("no state"))?,
            start_ticks: start_ticks.ok_or(StatError("no start time"))?,
        })
    }

    /// Whether it has ended, be it that nobody has collected its exit code yet.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether it is that process and still runs.
    #[must_use]
    pub const fn is_living(&self, process: &ProcessId) -> bool {
        self.pid == process.pid && self.start_ticks == process.start_ticks && !self.has_ended()
    }
}

/// How far up a process tree the owner is looked for.
const MAX_ANCESTORS: usize = 64;

/// Finds the binding that a process falls under: its own, or that of its nearest bound ancestor.
///
/// `stat_of` reads a process, `bound` answers what the process of that pid and start is bound to. A process that
/// vanishes meanwhile, or whose parent started after it (so its pid was reused), has no owner.
pub fn owner<T>(
    pid: u32,
    stat_of: impl Fn(u32) -> Option<ProcessStat>,
    bound: impl Fn(&ProcessStat) -> Option<T>,
) -> Option<T> {
    let mut process = stat_of(pid)?;
    for _ in 0..MAX_ANCESTORS {
        if let Some(owner) = bound(&process) {
            return Some(owner);
        }
        if process.parent == 0 {
            return None;
        }
        let parent = stat_of(process.parent)?;
        if parent.start_ticks > process.start_ticks {
            return None;
        }
        process = parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "12249 (python3 (job)) S 1 12249 12249 0 -1 4194560 100 0 0 0 10 5 0 0 20 0 8 0 8812345 1000 200 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const LATER: &str = "12249 (bash) S 1 12249 12249 0 -1 4194560 100 0 0 0 10 5 0 0 20 0 1 0 9912000 1000 200 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const ZOMBIE: &str = "31794 (python) Z 1 31794 31794 0 -1 4194560 100 0 0 0 10 5 0 0 20 0 1 0 5512000 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";

    #[test]
    fn a_command_may_hold_spaces_and_parentheses() {
        let stat = ProcessStat::parse(FIRST).unwrap();
        assert_eq!(stat, ProcessStat { pid: 12249, parent: 1, state: 'S', start_ticks: 8_812_345 });
        let odd = FIRST.replace("python3 (job)", "a) S 9 (b\n");
        assert_eq!(ProcessStat::parse(&odd).unwrap(), stat);
        assert!(ProcessStat::parse(ZOMBIE).unwrap().has_ended());
        for bad in ["", "12249", "12249 (x) S 1", "x (y) S 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9"] {
            assert!(ProcessStat::parse(bad).is_err(), "{bad:?}");
        }
    }

    /// collectd 3773: the same pid with a later start is another process.
    #[test]
    fn a_reused_pid_is_another_process() {
        let bound = ProcessId { boot_id: "b".parse().unwrap(), pid: 12249, start_ticks: 8_812_345, uid: 1000 };
        assert!(ProcessStat::parse(FIRST).unwrap().is_living(&bound));
        assert!(!ProcessStat::parse(LATER).unwrap().is_living(&bound));
        let zombie = ProcessId { pid: 31794, start_ticks: 5_512_000, ..bound };
        assert!(!ProcessStat::parse(ZOMBIE).unwrap().is_living(&zombie));
    }

    #[test]
    fn a_child_belongs_to_its_nearest_bound_ancestor() {
        let tree = |pid: u32| {
            let (parent, start_ticks) = match pid {
                1 => (0, 1),
                10 => (1, 100),
                11 => (10, 110),
                12 => (11, 120),
                20 => (1, 90),
                // its parent's pid was reused by a younger process
                30 => (12, 50),
                // a loop cannot happen, and must not hang
                40 => (41, 5),
                41 => (40, 5),
                _ => return None,
            };
            Some(ProcessStat { pid, parent, state: 'S', start_ticks })
        };
        let bound = |stat: &ProcessStat| match (stat.pid, stat.start_ticks) {
            (10, 100) => Some("outer"),
            (11, 110) => Some("inner"),
            (20, 80) => Some("an earlier process of that pid"),
            _ => None,
        };
        assert_eq!(owner(12, tree, bound), Some("inner"));
        assert_eq!(owner(10, tree, bound), Some("outer"));
        assert_eq!(owner(20, tree, bound), None);
        assert_eq!(owner(30, tree, bound), None);
        assert_eq!(owner(40, tree, bound), None);
        assert_eq!(owner(99, tree, bound), None);
    }
}
