//! The naive model: what was acknowledged, and what must follow from it by the rules of the design. It knows nothing of
//! journals, caches, batches or indexes: it keeps lists, and adds them up each time.

use app::node::NodeState;
use quota::Limits;
use std::collections::{BTreeMap, BTreeSet};
use types::{
    AllocationId, AllocationState as S, Bytes, Cause, GpuId, GpuModel, Instant, NodeId, PoolId, ProjectId, Request,
    TenantId,
};

pub const HOLD_S: i64 = 120;
pub const SILENCE_S: i64 = 90;
pub const LOST_S: i64 = 86_400;

/// Everything that happened.
#[derive(Debug, Default)]
pub struct Ledger {
    pub pools: BTreeMap<PoolId, Instant>,
    pub tenants: BTreeMap<TenantId, BTreeMap<Option<ProjectId>, Limits>>,
    pub nodes: BTreeMap<NodeId, Node>,
    pub cards: BTreeMap<GpuId, Card>,
    pub allocations: BTreeMap<AllocationId, Allocation>,
}

#[derive(Debug)]
pub struct Node {
    pub pool: PoolId,
    pub state: NodeState,
    pub boot: String,
    pub heard: Instant,
    pub silent: bool,
    /// To the present leader, or shortly before it took over.
    pub reported: bool,
}

#[derive(Debug)]
pub struct Card {
    pub node: NodeId,
    pub model: GpuModel,
    pub allocatable: Bytes,
    pub since: Instant,
    pub missing: bool,
    pub strangers: Bytes,
}

#[derive(Debug, Clone)]
pub struct Allocation {
    pub tenant: TenantId,
    pub project: ProjectId,
    pub pool: PoolId,
    pub request: Request,
    pub arrival: usize,
    pub state: S,
    pub cause: Cause,
    pub cards: Vec<GpuId>,
    pub hold_until: Option<Instant>,
    pub ends_by: Option<Instant>,
    pub confirmed: Option<Instant>,
    pub last_sign: Instant,
    pub unconfirmed_since: Option<Instant>,
    pub lost_by: Option<Instant>,
    pub ended: Option<Instant>,
    /// What its parts kept, as far as it is over.
    pub kept: Vec<Piece>,
    /// From when on it is not over.
    pub open_from: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Held,
    Metered,
    /// Metered, and marked as a gap that was attested afterwards.
    Attested,
    Unconfirmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    pub start: Instant,
    pub end: Instant,
    pub kind: Kind,
}

impl Allocation {
    pub fn is_open(&self) -> bool {
        !self.state.is_final()
    }

    pub fn holds_memory(&self) -> bool {
        matches!(self.state, S::Held | S::Active)
    }

    fn keep(&mut self, kind: Kind, start: Instant, end: Instant) {
        if start < end {
            self.kept.push(Piece { start, end, kind });
        }
    }

    /// All pieces up to now, the open one among them.
    pub fn pieces(&self, now: Instant) -> Vec<Piece> {
        let mut pieces = self.kept.clone();
        let kind = match (self.state, self.unconfirmed_since) {
            (S::Held, _) => Kind::Held,
            (S::Active, None) => Kind::Metered,
            (S::Active, Some(_)) => Kind::Unconfirmed,
            _ => return pieces,
        };
        if self.open_from < now {
            pieces.push(Piece { start: self.open_from, end: now, kind });
        }
        pieces
    }

    /// It ends now, and counts as having lived until an instant.
    fn end(&mut self, cause: Cause, lived_until: Instant, now: Instant) {
        match self.state {
            S::Held => self.keep(Kind::Held, self.open_from, now),
            S::Active => {
                let until = lived_until.max(self.open_from).min(now);
                let kind = if self.unconfirmed_since.is_some() { Kind::Attested } else { Kind::Metered };
                self.keep(kind, self.open_from, until);
                self.keep(Kind::Unconfirmed, until, now);
            }
            _ => {}
        }
        self.state = match (self.state, cause) {
            (_, Cause::Cancelled) => S::Cancelled,
            (S::Held, _) => S::Expired,
            (_, Cause::NodeLost | Cause::NodeRebooted | Cause::NodeRemoved) => S::Lost,
            _ => S::Released,
        };
        self.cause = cause;
        self.ended = Some(now);
        self.unconfirmed_since = None;
        self.lost_by = None;
    }
}

impl Ledger {
    pub fn confirm(&mut self, id: AllocationId, now: Instant) {
        let Some(allocation) = self.allocations.get_mut(&id) else { return };
        if allocation.state != S::Held {
            return;
        }
        allocation.keep(Kind::Held, allocation.open_from, now);
        allocation.state = S::Active;
        allocation.cause = Cause::Confirmed;
        allocation.confirmed = Some(now);
        allocation.last_sign = now;
        allocation.hold_until = None;
        allocation.ends_by = allocation.request.max_duration_s.map(|s| now.plus_secs(i64::from(s)));
        allocation.open_from = now;
    }

    pub fn renew(&mut self, id: AllocationId, now: Instant) {
        let Some(a) = self.allocations.get_mut(&id).filter(|a| a.state == S::Active) else { return };
        a.last_sign = now;
        let heard = a.cards.iter().any(|card| !self.nodes[&self.cards[card].node].silent);
        if heard && let Some(since) = a.unconfirmed_since.take() {
            a.keep(Kind::Attested, since, now);
            a.open_from = now;
            a.lost_by = None;
            a.cause = Cause::Attested;
        }
    }

    /// Its owner, or its node, says that it is over now.
    pub fn release(&mut self, id: AllocationId, by_node: bool, now: Instant) {
        let Some(allocation) = self.allocations.get_mut(&id).filter(|a| a.is_open()) else { return };
        let cause = match allocation.state {
            S::Active if by_node => Cause::Exited,
            S::Active => Cause::Owner,
            _ => Cause::Cancelled,
        };
        allocation.end(cause, now, now);
        let pool = allocation.pool;
        self.place_waiting(pool, now);
    }

    fn on_node(&self, node: NodeId) -> Vec<AllocationId> {
        let cards = self.cards_of(node);
        self.allocations
            .iter()
            .filter(|(_, a)| a.holds_memory() && a.cards.iter().any(|card| cards.contains(card)))
            .map(|(id, _)| *id)
            .collect()
    }

    fn end_all_on(&mut self, node: NodeId, cause: Cause, now: Instant) {
        let heard = self.nodes[&node].heard;
        for id in self.on_node(node) {
            let Some(allocation) = self.allocations.get_mut(&id) else { continue };
            let lived =
                if cause == Cause::NodeRemoved { allocation.last_sign.max(heard) } else { allocation.last_sign };
            allocation.end(cause, lived, now);
        }
    }

    /// A node reports. Who waits is looked at when that changes anything.
    pub fn report(&mut self, node: NodeId, report: &Report, now: Instant) {
        let mut changed = false;
        if self.nodes[&node].boot != report.boot {
            self.end_all_on(node, Cause::NodeRebooted, now);
            changed = true;
        }
        let Some(known) = self.nodes.get_mut(&node) else { return };
        changed |= known.silent || !known.reported;
        known.boot.clone_from(&report.boot);
        known.heard = now;
        known.silent = false;
        known.reported = true;
        let pool = known.pool;
        for card in self.cards_of(node) {
            let granted = self.granted(card);
            let Some(known) = self.cards.get_mut(&card) else { continue };
            let in_use = report.in_use.get(&card);
            changed |= known.missing == in_use.is_some();
            known.missing = in_use.is_none();
            if let Some(in_use) = in_use {
                let strangers = in_use.map_or(Bytes::ZERO, |in_use| in_use.less(granted));
                changed |= strangers < known.strangers;
                known.strangers = strangers;
            }
        }
        let on_node = self.on_node(node);
        for (id, at) in &report.exited {
            if let Some(a) = self.allocations.get_mut(id).filter(|a| a.state == S::Active && on_node.contains(id)) {
                a.end(Cause::Exited, *at, now);
                changed = true;
            }
        }
        for id in &report.alive {
            let Some(a) = self.allocations.get_mut(id).filter(|a| a.state == S::Active && on_node.contains(id)) else {
                continue;
            };
            a.last_sign = now;
            if let Some(since) = a.unconfirmed_since.take() {
                a.keep(Kind::Attested, since, now);
                a.open_from = now;
                a.lost_by = None;
                a.cause = Cause::Attested;
                changed = true;
            }
        }
        if changed {
            self.place_waiting(pool, now);
        }
    }

    pub fn set_state(&mut self, node: NodeId, state: NodeState, now: Instant) {
        if state == NodeState::Removed {
            self.end_all_on(node, Cause::NodeRemoved, now);
        }
        let Some(known) = self.nodes.get_mut(&node) else { return };
        known.state = state;
        let pool = known.pool;
        self.place_waiting(pool, now);
    }

    /// Deadlines of a pool pass.
    pub fn tick(&mut self, pool: PoolId, now: Instant) {
        let listens_since = self.pools[&pool];
        for node in self.nodes.values_mut().filter(|n| n.pool == pool && n.state != NodeState::Removed) {
            node.silent |= now >= node.heard.max(listens_since).plus_secs(SILENCE_S);
        }
        let silent: BTreeSet<NodeId> = self.nodes.iter().filter(|(_, n)| n.silent).map(|(id, _)| *id).collect();
        let nodes: BTreeMap<GpuId, NodeId> = self.cards.iter().map(|(id, card)| (*id, card.node)).collect();
        let mut due = Vec::new();
        for (id, a) in self.allocations.iter_mut().filter(|(_, a)| a.pool == pool && a.holds_memory()) {
            let is_silent = silent.contains(&nodes[&a.cards[0]]);
            if is_silent && a.state == S::Active && a.unconfirmed_since.is_none() {
                let until = a.last_sign.max(a.open_from);
                a.keep(Kind::Metered, a.open_from, until);
                a.open_from = until;
                a.unconfirmed_since = Some(until);
                a.lost_by = Some(until.plus_secs(LOST_S));
                a.cause = Cause::NodeSilent;
            }
            let mut deadlines = Vec::new();
            match (a.state, a.lost_by.filter(|_| is_silent)) {
                (S::Held, _) => deadlines.extend(a.hold_until.map(|at| (at, Cause::HoldGrace, at))),
                (_, Some(lost_by)) => {
                    deadlines.extend(a.ends_by.map(|at| (at, Cause::MaxDuration, at.min(a.open_from))));
                    deadlines.push((lost_by, Cause::NodeLost, a.open_from));
                }
                _ => {
                    deadlines.extend(a.ends_by.map(|at| (at, Cause::MaxDuration, at)));
                    deadlines.push((a.last_sign.plus_secs(SILENCE_S), Cause::Vanished, a.last_sign));
                }
            }
            // of equals, the first that was named
            if let Some(first) = deadlines.into_iter().min_by_key(|(at, ..)| *at)
                && first.0.max(listens_since.plus_secs(SILENCE_S)) <= now
            {
                due.push((*id, first));
            }
        }
        for (id, (_, cause, lived_until)) in due {
            if let Some(a) = self.allocations.get_mut(&id) {
                a.end(cause, lived_until, now);
            }
        }
        self.place_waiting(pool, now);
    }

    /// A server stopped at one instant, and the next began at another.
    pub fn take_over(&mut self, stopped: Instant, now: Instant) {
        let away = now.since(stopped);
        for since in self.pools.values_mut() {
            *since = now;
        }
        for node in self.nodes.values_mut() {
            node.reported = away <= SILENCE_S * 1000 && stopped <= node.heard.plus_secs(SILENCE_S);
        }
        for card in self.cards.values_mut() {
            card.strangers = Bytes::ZERO;
        }
        for a in self.allocations.values_mut().filter(|a| a.is_open()) {
            for deadline in [&mut a.hold_until, &mut a.ends_by, &mut a.lost_by] {
                *deadline = deadline.map(|at| at.plus_millis(away));
            }
        }
    }
}

/// What a node says.
#[derive(Debug, Default)]
pub struct Report {
    pub boot: String,
    /// Its cards, with what each says is in use.
    pub in_use: BTreeMap<GpuId, Option<Bytes>>,
    pub alive: Vec<AllocationId>,
    pub exited: Vec<(AllocationId, Instant)>,
}
