//! Whom the rules admit, and where to: every limit counted anew, every set of cards tried.

use super::ledger::{Allocation, HOLD_S, Ledger};
use app::node::NodeState;
use std::collections::BTreeSet;
use types::{
    AllocationId, AllocationState as S, Bytes, Cause, GpuId, Instant, NodeId, PoolId, ProjectId, Request, TenantId,
};

/// What a request must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Placed(Vec<GpuId>),
    Waits,
    QuotaExceeded,
    Unsatisfiable,
    Invalid,
}

impl Ledger {
    pub fn granted(&self, card: GpuId) -> Bytes {
        let on_card = self.allocations.values().filter(|a| a.holds_memory() && a.cards.contains(&card));
        on_card.fold(Bytes::ZERO, |sum, a| sum.plus(a.request.memory))
    }

    fn free(&self, card: GpuId) -> Bytes {
        let known = &self.cards[&card];
        known.allocatable.less(self.granted(card)).less(known.strangers)
    }

    fn in_service(&self, card: GpuId) -> bool {
        let card = &self.cards[&card];
        let node = &self.nodes[&card.node];
        node.state == NodeState::Active && node.reported && !node.silent && !card.missing
    }

    /// Bytes and allocations that count against a level.
    pub fn used(&self, tenant: TenantId, project: Option<ProjectId>) -> (Bytes, u32) {
        let counted = self
            .allocations
            .values()
            .filter(|a| a.holds_memory() && a.tenant == tenant && project.is_none_or(|p| p == a.project));
        counted.fold((Bytes::ZERO, 0), |(bytes, n), a| (bytes.plus(a.request.total()), n + 1))
    }

    fn within_quota(&self, tenant: TenantId, project: ProjectId, request: &Request) -> bool {
        [None, Some(project)].into_iter().all(|level| {
            let limits = self.tenants[&tenant][&level];
            let (bytes, allocations) = self.used(tenant, level);
            limits.bytes.is_none_or(|limit| bytes.plus(request.total()) <= limit)
                && limits.workload_bytes.is_none_or(|limit| request.total() <= limit)
                && limits.allocations.is_none_or(|limit| allocations < limit)
        })
    }

    fn suits(&self, card: GpuId, request: &Request) -> bool {
        let card = &self.cards[&card];
        request.model.as_ref().is_none_or(|model| *model == card.model)
            && request.node_id.is_none_or(|node| node == card.node)
            && request.memory <= card.allocatable
    }

    pub fn cards_of(&self, node: NodeId) -> Vec<GpuId> {
        self.cards.iter().filter(|(_, card)| card.node == node).map(|(id, _)| *id).collect()
    }

    fn nodes_of(&self, pool: PoolId) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, node)| node.pool == pool).map(|(id, _)| *id).collect()
    }

    fn not_removed(&self, node: NodeId) -> bool {
        self.nodes[&node].state != NodeState::Removed
    }

    /// The set of cards that leaves the least free; of equals the one that comes first. Every set is tried.
    fn best(&self, pool: PoolId, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Vec<GpuId>> {
        let mut best: Option<(u128, NodeId, Vec<GpuId>)> = None;
        for node in self.nodes_of(pool) {
            let cards = self.cards_of(node);
            for set in 1_u32..1 << cards.len() {
                let chosen: Vec<GpuId> = (0..cards.len()).filter(|n| set >> n & 1 == 1).map(|n| cards[n]).collect();
                let fits = chosen.len() == request.gpus as usize
                    && chosen.iter().all(|card| {
                        self.in_service(*card)
                            && self.suits(*card, request)
                            && !closed.contains(card)
                            && request.memory <= self.free(*card)
                    });
                let left = chosen.iter().map(|card| u128::from(self.free(*card).less(request.memory).0)).sum();
                if fits && best.as_ref().is_none_or(|b| (left, node, &chosen) < (b.0, b.1, &b.2)) {
                    best = Some((left, node, chosen));
                }
            }
        }
        best.map(|(.., cards)| cards)
    }

    /// The cards that a waiting request could use, once they have room.
    fn could_use(&self, pool: PoolId, request: &Request) -> BTreeSet<GpuId> {
        let mut usable = BTreeSet::new();
        for node in self.nodes_of(pool) {
            let mut cards = self.cards_of(node);
            cards.retain(|card| self.in_service(*card) && self.suits(*card, request));
            if cards.len() >= request.gpus as usize {
                usable.extend(cards);
            }
        }
        usable
    }

    /// Those who wait in a pool, in order of arrival.
    fn waiting(&self, pool: PoolId) -> Vec<AllocationId> {
        let mut waiting: Vec<_> = self
            .allocations
            .iter()
            .filter(|(_, a)| a.pool == pool && a.state == S::Queued)
            .map(|(id, a)| (a.arrival, *id))
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// What a request must get now.
    pub fn answer(&self, pool: PoolId, tenant: TenantId, project: ProjectId, request: &Request) -> Answer {
        let nodes = self.nodes_of(pool).into_iter().filter(|node| self.not_removed(*node));
        let cards: Vec<(NodeId, GpuId)> =
            nodes.flat_map(|node| self.cards_of(node).into_iter().map(move |card| (node, card))).collect();
        let is_valid = cards.iter().any(|(_, card)| request.memory <= self.cards[card].allocatable)
            && request.model.as_ref().is_none_or(|m| cards.iter().any(|(_, card)| self.cards[card].model == *m))
            && request.node_id.is_none_or(|n| cards.iter().any(|(node, _)| *node == n));
        if !is_valid {
            return Answer::Invalid;
        }
        if !self.within_quota(tenant, project, request) {
            return Answer::QuotaExceeded;
        }
        let mut closed = BTreeSet::new();
        for id in self.waiting(pool) {
            let earlier = &self.allocations[&id];
            if self.within_quota(earlier.tenant, earlier.project, &earlier.request) {
                closed.extend(self.could_use(pool, &earlier.request));
            }
        }
        if let Some(cards) = self.best(pool, request, &closed) {
            return Answer::Placed(cards);
        }
        let ever = self.nodes_of(pool).into_iter().filter(|node| self.not_removed(*node)).any(|node| {
            let suited = self.cards_of(node).into_iter().filter(|card| self.suits(*card, request));
            suited.count() >= request.gpus as usize
        });
        if ever { Answer::Waits } else { Answer::Unsatisfiable }
    }

    /// A request was admitted.
    pub fn admit(
        &mut self,
        id: AllocationId,
        pool: PoolId,
        (tenant, project): (TenantId, ProjectId),
        request: Request,
        placed: Option<Vec<GpuId>>,
        now: Instant,
    ) {
        let new = Allocation {
            tenant,
            project,
            pool,
            request,
            arrival: self.allocations.len(),
            state: S::Queued,
            cause: Cause::Requested,
            cards: Vec::new(),
            hold_until: None,
            ends_by: None,
            confirmed: None,
            last_sign: now,
            unconfirmed_since: None,
            lost_by: None,
            ended: None,
            kept: Vec::new(),
            open_from: now,
        };
        self.allocations.insert(id, new);
        if let Some(cards) = placed {
            self.hold(id, cards, now);
        }
    }

    fn hold(&mut self, id: AllocationId, cards: Vec<GpuId>, now: Instant) {
        let Some(allocation) = self.allocations.get_mut(&id) else { return };
        allocation.state = S::Held;
        allocation.cause = Cause::Placed;
        allocation.cards = cards;
        allocation.hold_until = Some(now.plus_secs(HOLD_S));
        allocation.open_from = now;
    }

    /// Places who waits in a pool, in order of arrival.
    pub fn place_waiting(&mut self, pool: PoolId, now: Instant) {
        let mut closed = BTreeSet::new();
        for id in self.waiting(pool) {
            let waiting = &self.allocations[&id];
            if !self.within_quota(waiting.tenant, waiting.project, &waiting.request) {
                continue;
            }
            match self.best(pool, &waiting.request, &closed) {
                Some(cards) => self.hold(id, cards, now),
                None => closed.extend(self.could_use(pool, &waiting.request)),
            }
        }
    }
}
