//! Who speaks for a node. Its credential and its machine id lie on its disk, so a copy of the disk has them too; what a
//! copy does not have is the boot and the run of the agent.
//!
//! | a report comes from | while the one that speaks | once that has not reported for twice its interval |
//! |---|---|---|
//! | the same run | is heard | is heard |
//! | another run of the same boot that had its state from it | takes over at once: the agent was started anew | takes over |
//! | another run of the same boot | is refused | takes over |
//! | another boot | is refused | the node rebooted: what ran there is lost |
//! | a boot that is over | is refused | is refused: no host goes back to a former boot |
//!
//! A run that was taken over from and is heard again lives still: then its successor was a copy, and it speaks again.
//! Time in which nobody led the pool does not count. An agent that names no run is taken at its word, as before runs had
//! names, unless one that has a name speaks.

use super::{
    batch::Batch,
    state::{Node, Succession},
};
use crate::error::AppError;
use store::{
    node::NodeRun,
    node_refusal::RefusalReason::{AnotherAgentReports, FormerBoot},
};
use types::{
    Instant, NodeId,
    wire::{AgentRun, NodeReport},
};

/// Whom a report comes from, where its word is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The node has never reported before.
    First,
    /// The run that spoke before.
    Same,
    /// Another run of the same boot.
    Restarted,
    /// The run from which a copy had taken over.
    Back,
    /// Another boot.
    Rebooted,
}

/// Milliseconds by which a report may be late beside its interval.
const LATE_MS: i64 = 1_000;

impl Batch<'_> {
    /// Whom a report comes from.
    ///
    /// # Errors
    /// [`AppError::Conflict`] with the reason for what must not speak for the node.
    pub fn speaker(&self, node_id: NodeId, report: &NodeReport) -> Result<Speaker, AppError> {
        let node = self.node(node_id)?;
        let Some(known_boot) = &node.row.boot_id else { return Ok(Speaker::First) };
        if known_boot != report.boot_id.as_str() {
            if self.state.former_boots.contains(&(node_id, report.boot_id.as_str().to_owned())) {
                return Err(AppError::conflict(
                    FormerBoot.name(),
                    "the report comes from a boot of this node that is over: another host has its credential",
                ));
            }
            return match node.row.run {
                Some(run) if self.lives(node, run, self.state.time) => Err(another_agent()),
                _ => Ok(Speaker::Rebooted),
            };
        }
        let reports = report.run.map(|run| run.run_id);
        let Some(speaks) = node.row.run else {
            return Ok(if reports.is_some() { Speaker::Restarted } else { Speaker::Same });
        };
        if reports == Some(speaks.run_id) {
            return Ok(Speaker::Same);
        }
        match node.succession.filter(|succession| !succession.is_void) {
            Some(passed) if reports == Some(passed.former.run_id) && report.sent_at > passed.at => {
                return Ok(Speaker::Back);
            }
            _ => {}
        }
        let is_proven_copy = node.succession.is_some_and(|s| s.is_void && reports == Some(s.successor));
        let follows = report.run.and_then(|run| run.follows) == Some(speaks.run_id) && !is_proven_copy;
        if follows || !self.lives(node, speaks, self.state.time) {
            Ok(Speaker::Restarted)
        } else {
            Err(another_agent())
        }
    }

    /// Whether a report comes from another boot than the one that speaks, which lives: that is refused without a look at
    /// what is stored.
    pub fn is_anothers(&self, node_id: NodeId, report: &NodeReport, at: Instant) -> bool {
        self.state.nodes.get(&node_id).is_some_and(|node| {
            node.row.boot_id.as_deref().is_some_and(|boot| boot != report.boot_id.as_str())
                && node.row.run.is_some_and(|run| self.lives(node, run, self.state.time.max(at)))
        })
    }

    /// Whether the run that speaks was heard from so lately that it lives. While nobody led, nobody could be heard.
    fn lives(&self, node: &Node, run: NodeRun, now: Instant) -> bool {
        let heard = node.row.last_heard.max(Some(self.state.leader_since)).unwrap_or(now);
        now.since(heard) <= 2 * i64::from(run.report_interval_ms) + LATE_MS
    }

    /// Lets whom a report comes from speak for the node from now on.
    pub fn let_speak(&mut self, node_id: NodeId, report: &NodeReport, speaker: Speaker) -> Result<(), AppError> {
        let to = report.run.map(run_of);
        let Some(node) = self.state.nodes.get_mut(&node_id) else { return Err(AppError::NotFound("node")) };
        if node.row.boot_id.as_deref() != Some(report.boot_id.as_str()) {
            let boots = node.row.boot_id.iter().map(String::as_str).chain([report.boot_id.as_str()]);
            self.writes.boots.extend(boots.map(|boot| (node_id, boot.to_owned())));
        }
        if node.row.run == to {
            return Ok(());
        }
        node.succession = match (speaker, node.row.run, to) {
            (Speaker::Restarted, Some(former), Some(to)) => {
                Some(Succession { former, successor: to.run_id, at: report.sent_at, is_void: false })
            }
            (Speaker::Back, ..) => node.succession.map(|passed| Succession { is_void: true, ..passed }),
            _ => None,
        };
        node.row.run = to;
        self.writes.runs.insert(node_id, to);
        Ok(())
    }
}

fn another_agent() -> AppError {
    AppError::conflict(
        AnotherAgentReports.name(),
        "another agent speaks for this node and reports still: if this host was copied from another one, let it join anew",
    )
}

fn run_of(run: AgentRun) -> NodeRun {
    // checked when the report came in
    let report_interval_ms = i32::try_from(run.report_interval_ms).unwrap_or(i32::MAX);
    NodeRun { run_id: run.run_id, report_interval_ms }
}
