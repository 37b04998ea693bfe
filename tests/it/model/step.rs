//! One step of a history: something happens to the product and to the model, and both must answer alike.

use super::{
    admission::Answer,
    history::{History, Keyed},
    ledger::Report,
};
use crate::world::{member, name, operator};
use app::{AppError, allocation, error::Refusal, node::NodeState};
use quota::Limits;
use rand::{RngExt, seq::IndexedRandom};
use std::collections::BTreeMap;
use types::{
    AllocationState as S, Bytes, Request,
    wire::{Exit, NodeReport},
};

impl History {
    pub async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..24 => self.request().await,
            24..27 => self.repeat().await,
            27..39 => self.confirm().await,
            39..43 => self.renew().await,
            43..50 => self.release().await,
            50..52 => self.cancel().await,
            52..61 => {
                let host = self.rng.random_range(0..self.hosts.len());
                self.report(host, false).await;
            }
            61..68 => {
                let seconds = self.rng.random_range(1..80);
                self.pass(seconds, false).await;
            }
            68..77 => {
                let seconds = self.rng.random_range(60..120_000);
                self.pass(seconds, true).await;
            }
            77..78 => {
                let seconds = self.rng.random_range(60..100_000);
                self.pass(seconds, false).await;
            }
            78..81 => self.set_node_state().await,
            81..84 => self.set_quota().await,
            84..92 => self.send_readings().await,
            92..95 => self.rule_some().await,
            95..97 => self.restart().await,
            97..98 => self.change_price().await,
            _ => app::tasks::run_due(&self.world.app).await,
        }
        self.issue_what_is_over().await;
        self.agree().await;
    }

    fn some_request(&mut self) -> Request {
        let gpus = *[1, 1, 1, 1, 1, 2, 2, 4].choose(&mut self.rng).unwrap();
        let mebibytes = match self.rng.random_range(0..10) {
            0..6 => self.rng.random_range(100..12_000),
            6..9 => self.rng.random_range(12_000..50_000),
            _ => self.rng.random_range(50_000..90_000),
        };
        let model = self.rng.random_bool(0.15).then(|| {
            let models = ["NVIDIA H100 80GB HBM3", "NVIDIA A10", "NVIDIA B200"];
            models.choose(&mut self.rng).unwrap().parse().unwrap()
        });
        let node_id = self.rng.random_bool(0.1).then(|| self.hosts.choose(&mut self.rng).unwrap().id);
        let max_duration_s = self.rng.random_bool(0.25).then(|| self.rng.random_range(1..100_000));
        Request { memory: Bytes::mib(mebibytes), gpus, model, node_id, max_duration_s }
    }

    async fn request(&mut self) {
        let member = self.rng.random_range(0..self.members.len());
        let keyed = Keyed {
            key: format!("request {}", self.keys.len()),
            member,
            project: *self.members[member].projects.choose(&mut self.rng).unwrap(),
            pool: *self.pools.choose(&mut self.rng).unwrap(),
            request: self.some_request(),
            made_at: self.now(),
            id: None,
        };
        let tenant = self.members[member].tenant;
        let expected = self.ledger.answer(keyed.pool, tenant, keyed.project, &keyed.request);
        if self.rng.random_bool(0.1) {
            self.dry_run(&keyed, &expected).await;
        }
        let answer = self.ask(&keyed).await;
        self.note(format!("{:?} of {tenant}: {expected:?}", keyed.request));
        let id = match (&expected, answer) {
            (Answer::Placed(cards), Ok((view, true))) => {
                assert_eq!(view.row.state, S::Held);
                let mut on: Vec<_> = view.parts.iter().map(|part| part.row.gpu_id).collect();
                on.sort_unstable();
                assert_eq!(on, *cards);
                Some(view.row.allocation_id)
            }
            (Answer::Waits, Ok((view, true))) => {
                assert_eq!((view.row.state, view.parts.len()), (S::Queued, 0));
                Some(view.row.allocation_id)
            }
            (Answer::QuotaExceeded, Err(AppError::Refused(Refusal::QuotaExceeded { .. })))
            | (Answer::Unsatisfiable, Err(AppError::Refused(Refusal::Unsatisfiable { .. }))) => None,
            // it is not decided, so its key is free
            (Answer::Invalid, Err(AppError::Invalid(_))) => return,
            (_, answer) => panic!("{expected:?}, but got {answer:?}"),
        };
        if let Some(id) = id {
            let placed = if let Answer::Placed(cards) = expected { Some(cards) } else { None };
            let owner = (tenant, keyed.project);
            self.ledger.admit(id, keyed.pool, owner, keyed.request.clone(), placed, self.now());
        }
        self.keys.push(Keyed { id, ..keyed });
        // most workloads start at once
        if self.rng.random_bool(0.5) {
            self.confirm().await;
        }
    }

    async fn ask(&self, keyed: &Keyed) -> Result<(allocation::AllocationView, bool), AppError> {
        let ask = allocation::Ask {
            tenant_id: None,
            project_id: Some(keyed.project),
            pool_id: Some(keyed.pool),
            request: keyed.request.clone(),
        };
        allocation::request(&self.world.app, &member(self.members[keyed.member].tenant), ask, &keyed.key).await
    }

    async fn dry_run(&self, keyed: &Keyed, expected: &Answer) {
        let ask = allocation::Ask {
            tenant_id: None,
            project_id: Some(keyed.project),
            pool_id: Some(keyed.pool),
            request: keyed.request.clone(),
        };
        let dry = allocation::dry_run(&self.world.app, &member(self.members[keyed.member].tenant), ask).await;
        use app::scheduler::DryRun;
        let same = match (&dry, expected) {
            (Ok(DryRun::Placed { gpus, .. }), Answer::Placed(cards)) => gpus.len() == cards.len(),
            (Ok(DryRun::Queued { .. }), Answer::Waits)
            | (Ok(DryRun::QuotaExceeded(_)), Answer::QuotaExceeded)
            | (Ok(DryRun::Unsatisfiable(_)), Answer::Unsatisfiable)
            | (Err(AppError::Invalid(_)), Answer::Invalid) => true,
            _ => false,
        };
        assert!(same, "{dry:?}, but {expected:?}");
    }

    /// The same key again: the same allocation as it stands, or the same refusal; with another body, nothing.
    async fn repeat(&mut self) {
        // keys are kept for seven days
        let young = self.now().plus_secs(-6 * 86_400);
        let Some(keyed) =
            self.keys.iter().filter(|k| k.made_at > young).collect::<Vec<_>>().choose(&mut self.rng).copied().cloned()
        else {
            return;
        };
        match (keyed.id, self.ask(&keyed).await) {
            (Some(id), Ok((view, false))) => {
                assert_eq!((view.row.allocation_id, view.row.state), (id, self.ledger.allocations[&id].state));
            }
            (None, Err(AppError::Refused(_))) => {}
            (id, answer) => panic!("{id:?}, but {answer:?}"),
        }
        let other =
            Keyed { request: Request { memory: keyed.request.memory.plus(Bytes(1)), ..keyed.request }, ..keyed };
        let answer = self.ask(&other).await;
        assert!(matches!(answer, Err(AppError::KeyReused)), "{answer:?}");
    }

    async fn confirm(&mut self) {
        let state = if self.rng.random_bool(0.95) { S::Held } else { S::Queued };
        let Some(id) = self.some_allocation(|a| a.state == state) else { return };
        let answer = allocation::confirm(&self.world.app, &operator(), id).await;
        self.note(format!("confirm {id}"));
        assert_eq!(answer.is_ok(), state == S::Held, "{answer:?}");
        self.ledger.confirm(id, self.now());
    }

    async fn renew(&mut self) {
        let Some(id) = self.some_allocation(|a| a.is_open()) else { return };
        let answer = allocation::renew(&self.world.app, &operator(), id).await;
        self.note(format!("renew {id}"));
        assert_eq!(answer.is_ok(), self.ledger.allocations[&id].state == S::Active, "{answer:?}");
        self.ledger.renew(id, self.now());
    }

    async fn release(&mut self) {
        let Some(id) = self.some_allocation(|_| true) else { return };
        let a = &self.ledger.allocations[&id];
        let by_node = self.rng.random_bool(0.3) && a.is_open() && !a.cards.is_empty();
        let host = a.cards.first().map(|card| self.ledger.cards[card].node);
        let host = self.hosts.iter().find(|h| Some(h.id) == host);
        let caller = match host {
            Some(host) if by_node => host.caller(),
            _ => member(a.tenant),
        };
        let view = allocation::release(&self.world.app, &caller, id).await.unwrap();
        self.note(format!("release {id}, by its node: {by_node}"));
        self.ledger.release(id, by_node, self.now());
        assert_eq!(view.row.state, self.ledger.allocations[&id].state);
    }

    async fn cancel(&mut self) {
        let Some(id) = self.some_allocation(|a| a.is_open()) else { return };
        let answer = allocation::cancel(&self.world.app, &operator(), id).await;
        self.note(format!("cancel {id}"));
        if self.ledger.allocations[&id].state == S::Active {
            assert!(matches!(answer, Err(AppError::Conflict { code: "active", .. })), "{answer:?}");
        } else {
            answer.unwrap();
            self.ledger.release(id, false, self.now());
        }
    }

    /// A host reports. Faithfully: all its cards, and all that runs there as alive. Else it may have booted anew, lost a
    /// card, lost sight of a workload, or seen one exit.
    pub async fn report(&mut self, host: usize, faithful: bool) {
        let node = self.hosts[host].id;
        if self.ledger.nodes[&node].state == NodeState::Removed {
            let report = self.hosts[host].report(self.now());
            let answer = app::node::report(&self.world.app, &self.hosts[host].caller(), report).await;
            assert!(matches!(answer, Err(AppError::Forbidden)), "{answer:?}");
            return;
        }
        if !faithful && self.rng.random_bool(0.04) {
            self.boots += 1;
            self.hosts[host].boot = name(&format!("boot {}", self.boots));
        }
        let cards = self.ledger.cards_of(node);
        let mut said = Report { boot: self.hosts[host].boot.as_str().to_owned(), ..Report::default() };
        let leaves_one_out =
            !faithful && self.ledger.nodes[&node].state == NodeState::Active && self.rng.random_bool(0.05);
        for card in cards.iter().skip(usize::from(leaves_one_out)) {
            let strangers = self.rng.random_range(0..2000);
            let in_use = (!faithful && self.rng.random_bool(0.2))
                .then(|| self.ledger.granted(*card).plus(Bytes::mib(strangers)));
            said.in_use.insert(*card, in_use);
        }
        for (id, a) in &self.ledger.allocations {
            let runs_here = a.state == S::Active && a.cards.iter().any(|card| cards.contains(card));
            if !runs_here {
                continue;
            }
            if faithful || self.rng.random_bool(0.8) {
                said.alive.push(*id);
            } else if self.rng.random_bool(0.5) {
                let earlier = self.rng.random_range(-100_000..4_000_000);
                said.exited.push((*id, self.now().plus_millis(-earlier)));
            }
        }
        let report = NodeReport {
            boot_id: self.hosts[host].boot.clone(),
            run: self.hosts[host].run,
            sent_at: self.now(),
            gpus: said
                .in_use
                .iter()
                .map(|(card, memory_used)| types::wire::GpuReport {
                    memory_used: *memory_used,
                    ..self.cards[card].clone()
                })
                .collect(),
            alive: said.alive.clone(),
            exited: said
                .exited
                .iter()
                .map(|(allocation_id, at)| Exit { allocation_id: *allocation_id, at: *at })
                .collect(),
        };
        let orders = app::node::report(&self.world.app, &self.hosts[host].caller(), report).await.unwrap();
        self.note(format!("host {host} reports, faithfully: {faithful}: {said:?}"));
        self.ledger.report(node, &said, self.now());
        let mut ordered: BTreeMap<_, Bytes> = BTreeMap::new();
        for part in orders.parts {
            ordered.insert((part.allocation_id, part.gpu_id), part.bytes);
        }
        let running = self.ledger.allocations.iter().filter(|(_, a)| matches!(a.state, S::Held | S::Active));
        let expected: BTreeMap<_, Bytes> = running
            .flat_map(|(id, a)| a.cards.iter().map(move |card| ((*id, *card), a.request.memory)))
            .filter(|((_, card), _)| cards.contains(card))
            .collect();
        // what the report freed is placed after its answer was made
        assert!(ordered.iter().all(|(part, bytes)| expected.get(part) == Some(bytes)), "{ordered:?}, not {expected:?}");
    }

    /// Time passes, with every host reporting at its end or not, and deadlines pass.
    pub async fn pass(&mut self, seconds: i64, reports: bool) {
        self.world.pass(seconds);
        self.note(format!("{seconds} s later, with reports: {reports}"));
        if reports {
            for host in 0..self.hosts.len() {
                if self.rng.random_bool(0.95) {
                    let faithful = self.rng.random_bool(0.7);
                    self.report(host, faithful).await;
                }
            }
        }
        for pool in self.pools.clone() {
            self.world.app.tick(pool).await.unwrap();
            self.ledger.tick(pool, self.now());
        }
    }

    async fn set_node_state(&mut self) {
        let host = self.rng.random_range(0..self.hosts.len());
        let node = self.hosts[host].id;
        let whole = self.ledger.cards_of(node).iter().all(|card| !self.ledger.cards[card].missing);
        let to = match self.ledger.nodes[&node].state {
            NodeState::Removed => return self.join_again(host).await,
            _ if self.rng.random_bool(0.1) => NodeState::Removed,
            NodeState::Cordoned => NodeState::Active,
            // of a card that is missing from a cordoned node nobody knows it after a take-over
            NodeState::Active if whole => NodeState::Cordoned,
            NodeState::Active => return,
        };
        app::node::set_state(&self.world.app, &operator(), node, to).await.unwrap();
        self.note(format!("host {host} is {}", to.name()));
        self.ledger.set_state(node, to, self.now());
    }

    async fn join_again(&mut self, host: usize) {
        let called = self.hosts[host].machine.as_str().to_owned();
        let node = self.world.join_silently(self.hosts[host].pool, &called).await;
        assert_eq!(node, self.hosts[host].id);
        self.note(format!("host {host} joins again"));
        if let Some(known) = self.ledger.nodes.get_mut(&node) {
            known.state = NodeState::Active;
            known.reported = false;
        }
        self.report(host, true).await;
    }

    async fn set_quota(&mut self) {
        let n = self.rng.random_range(0..self.members.len());
        let member = &self.members[n];
        let tenant = member.tenant;
        let level = if self.rng.random_bool(0.6) { None } else { member.projects.choose(&mut self.rng).copied() };
        let limits = Limits {
            bytes: self.rng.random_bool(0.5).then(|| Bytes::mib(self.rng.random_range(0..250_000))),
            workload_bytes: self.rng.random_bool(0.1).then(|| Bytes::mib(self.rng.random_range(1000..100_000))),
            allocations: self.rng.random_bool(0.15).then(|| self.rng.random_range(0..12)),
        };
        match level {
            None => app::quota::set_tenant(&self.world.app, &operator(), tenant, limits).await.unwrap(),
            Some(project) => app::quota::set_project(&self.world.app, &operator(), project, limits).await.unwrap(),
        }
        self.note(format!("{tenant} {level:?}: {limits:?}"));
        if let Some(levels) = self.ledger.tenants.get_mut(&tenant) {
            levels.insert(level, limits);
        }
        let mut pools = self.pools.clone();
        pools.sort_unstable();
        for pool in pools {
            self.ledger.place_waiting(pool, self.now());
        }
    }

    async fn rule_some(&mut self) {
        let open: Vec<_> = self.aside.keys().copied().collect();
        let Some(id) = open.choose(&mut self.rng).copied() else { return };
        let accept = self.rng.random_bool(0.6);
        self.rule(id, accept).await;
    }

    /// The server stops; after a while the next one takes over.
    async fn restart(&mut self) {
        let stopped = self.now();
        let seconds = *[0, 1, 30, 90, 91, 600, 50_000].choose(&mut self.rng).unwrap();
        self.world.restart_after(seconds).await;
        self.note(format!("a take-over, {seconds} s later"));
        self.ledger.take_over(stopped, self.now());
    }
}
