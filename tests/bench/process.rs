//! What processes take of the machine, as the kernel counts it.

use crate::Outcome;
use std::{fs, time::Duration};

/// The kernel's unit of a process's time: a hundredth of a second on every Linux of today.
const TICK: Duration = Duration::from_millis(10);

/// The processor time that a process and its children have taken so far, those that have ended among them.
pub fn cpu(pid: u32) -> Outcome<Duration> {
    // its own time and that of children that have ended
    let mut ticks = ticks(pid, 11..15)?;
    for child in family(pid).into_iter().skip(1) {
        // one that has ended meanwhile is counted next time, among the parent's
        ticks += self::ticks(child, 11..13).unwrap_or(0);
    }
    Ok(TICK * ticks)
}

/// The sum of some fields of a process's `stat`, counted from behind its name.
fn ticks(pid: u32, fields: std::ops::Range<usize>) -> Outcome<u32> {
    let stat = read(pid, "stat")?;
    // the name, in brackets, may hold anything
    let (_, behind) = stat.rsplit_once(") ").ok_or("an unreadable stat")?;
    let numbers = behind.split(' ').skip(fields.start).take(fields.len()).map(str::parse::<u32>);
    numbers.sum::<Result<u32, _>>().map_err(|e| format!("/proc/{pid}/stat: {e}"))
}

/// The memory of a process, in MiB: what it shares with others counts in full.
pub fn resident_mib(pid: u32) -> Outcome<f64> {
    kib(pid, "status", "VmRSS:")
}

/// The memory of a process and its children together, in MiB: what they share is counted once.
pub fn together_mib(pid: u32) -> Outcome<f64> {
    let children = family(pid).into_iter().skip(1);
    // one that has ended meanwhile has none
    let of_children = children.filter_map(|child| kib(child, "smaps_rollup", "Pss:").ok()).sum::<f64>();
    Ok(kib(pid, "smaps_rollup", "Pss:")? + of_children)
}

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    std::iter::once(pid).chain(children.split_whitespace().filter_map(|child| child.parse().ok())).collect()
}

fn kib(pid: u32, file: &str, name: &str) -> Outcome<f64> {
    let text = read(pid, file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name} of {pid}"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().map_err(|_| format!("{line} of {pid}"))?;
    Ok(kib / 1024.0)
}

fn read(pid: u32, file: &str) -> Outcome<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|e| format!("/proc/{pid}/{file}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_takes_time() {
        let me = std::process::id();
        let before = cpu(me).unwrap();
        let mut sum = 0_u64;
        while cpu(me).unwrap() < before + TICK * 3 {
            sum = (0..1000).fold(sum, u64::wrapping_add);
        }
        assert!(resident_mib(me).unwrap() > 0.5 && together_mib(me).unwrap() > 0.1, "{sum}");
    }
}
