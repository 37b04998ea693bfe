//! The readings of a history: which the product must take, and how much of them lies above what was granted.

use super::{
    history::{Aside, History},
    ledger::Allocation,
};
use crate::{reading::reading, world::operator};
use app::{AppError, set_aside};
use rand::{RngExt, seq::IndexedRandom};
use std::collections::BTreeMap;
use types::{
    AllocationState as S, ByteMillis, Bytes, GpuId, Instant, NodeId, PartId, SetAsideId, TenantId,
    wire::{Quality, Reading, ReadingBatch},
};

/// What was read of each part.
#[derive(Debug, Default)]
pub struct Meters {
    pub read: BTreeMap<PartId, Vec<Taken>>,
    /// The last batch of each host, to be sent again.
    last: BTreeMap<NodeId, ReadingBatch>,
}

/// A window that was taken.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// By the node's clock.
    pub node_end: Instant,
    /// By the server's.
    pub start: Instant,
    pub end: Instant,
    pub above: Option<ByteMillis>,
}

impl Meters {
    fn read_to(&self, part: PartId) -> Option<Instant> {
        self.read.get(&part)?.iter().map(|taken| taken.node_end).max()
    }

    fn take(&mut self, row: &Reading, correction: i64) {
        self.read.entry(row.part_id).or_default().push(Taken {
            node_end: row.end,
            start: row.start.plus_millis(correction),
            end: row.end.plus_millis(correction),
            above: row.above,
        });
    }
}

/// Noise is not corrected, and more than a minute is not believed.
const fn correction(skew_ms: i64) -> i64 {
    if skew_ms.abs() > 2000 { skew_ms } else { 0 }
}

impl History {
    fn part_of(&self, part: PartId) -> Option<(&Allocation, GpuId)> {
        let (allocation, card) = self.parts.get(&part)?;
        Some((&self.ledger.allocations[allocation], *card))
    }

    /// Whether a row can be true. Nothing but the rules, and all that was taken so far.
    fn is_possible(&self, host: usize, row: &Reading, skew_ms: i64) -> bool {
        let Some((allocation, card)) = self.part_of(row.part_id) else { return false };
        let Some(confirmed) = allocation.confirmed.filter(|_| self.ledger.cards[&card].node == self.hosts[host].id)
        else {
            return false;
        };
        let millis = row.end.since(row.start);
        let start = row.start.plus_millis(correction(skew_ms));
        let end = row.end.plus_millis(correction(skew_ms));
        let device = self.cards[&card].memory_total;
        skew_ms.abs() <= 60_000
            && millis > 0
            && millis <= 3_600_000
            && end.since(self.now()) <= 2000
            && row.used.is_some() == (row.quality != Quality::Unknown)
            && row.peak.is_none_or(|peak| peak <= device)
            && end > confirmed
            && allocation.ended.is_none_or(|ended| start.since(ended) < 2000)
            && self.meters.read_to(row.part_id).is_none_or(|to| row.start >= to)
    }

    /// A host sends a batch: windows that follow each other, now and then a row that cannot be true, now and then the
    /// same batch again, or one too far ahead.
    pub async fn send_readings(&mut self) {
        self.learn_parts().await;
        let host = self.rng.random_range(0..self.hosts.len());
        // a clock that hovers around the tolerance, one that is wrong, and two that are right
        let skew_ms = match host {
            0 => 1990 + self.rng.random_range(0..20),
            1 => -5000,
            _ if self.rng.random_bool(0.03) => 61_000,
            _ => 0,
        };
        if self.rng.random_bool(0.15) {
            return self.send_again(host).await;
        }
        let rows = self.make_rows(host, skew_ms);
        let mut expected = Vec::new();
        for row in &rows {
            let taken = self.is_possible(host, row, skew_ms);
            if taken {
                self.meters.take(row, correction(skew_ms));
            }
            expected.push(taken);
        }
        let sent_at = self.now().plus_millis(-skew_ms);
        if self.rng.random_bool(0.1) {
            let ahead = ReadingBatch {
                stream_id: self.hosts[host].stream,
                run_id: None,
                sequence: self.hosts[host].sequence + 2,
                sent_at,
                readings: rows.clone(),
            };
            let gap = app::reading::ingest(&self.world.app, &self.hosts[host].caller(), &ahead).await;
            let next = self.hosts[host].sequence + 1;
            assert!(matches!(gap, Err(AppError::SequenceGap { expected }) if expected == next), "{gap:?}");
        }
        let batch = self.hosts[host].batch(sent_at, rows);
        let ack = app::reading::ingest(&self.world.app, &self.hosts[host].caller(), &batch).await.unwrap();
        let accepted = expected.iter().filter(|taken| **taken).count();
        self.note(format!("readings of host {host}: {expected:?}"));
        assert_eq!(
            (ack.accepted as usize, ack.set_aside as usize),
            (accepted, expected.len() - accepted),
            "{batch:#?}"
        );
        assert_eq!(ack.skew_ms, skew_ms);
        self.meters.last.insert(self.hosts[host].id, batch);
        self.learn_set_aside(host, skew_ms).await;
    }

    async fn send_again(&mut self, host: usize) {
        let Some(last) = self.meters.last.get(&self.hosts[host].id).cloned() else { return };
        let again = ReadingBatch { sent_at: self.now(), ..last };
        let ack = app::reading::ingest(&self.world.app, &self.hosts[host].caller(), &again).await.unwrap();
        assert_eq!((ack.sequence, ack.accepted, ack.set_aside), (self.hosts[host].sequence, 0, 0));
    }

    fn make_rows(&mut self, host: usize, skew_ms: i64) -> Vec<Reading> {
        let node = self.hosts[host].id;
        let mut parts: Vec<PartId> = self.parts.keys().copied().collect();
        parts.retain(|part| {
            let (a, card) = self.part_of(*part).unwrap();
            self.ledger.cards[&card].node == node && a.confirmed.is_some()
        });
        let node_now = self.now().plus_millis(-skew_ms);
        let mut rows = Vec::new();
        for part in parts {
            let (a, card) = self.part_of(part).unwrap();
            let (granted, ended) = (a.request.memory, a.ended);
            let device = self.cards[&card].memory_total;
            let mut at = self.meters.read_to(part).unwrap_or(a.confirmed.unwrap().plus_millis(-correction(skew_ms)));
            let until = ended.map_or(node_now, |e| e.plus_millis(-correction(skew_ms)).min(node_now));
            for _ in 0..self.rng.random_range(0..3) {
                if self.rng.random_bool(0.2) {
                    // a stretch that nobody measured
                    at = at.plus_secs(self.rng.random_range(1..7200));
                }
                let most = if self.rng.random_bool(0.5) { 60 } else { 3600 };
                let end = at.plus_secs(self.rng.random_range(1..=most)).min(until);
                if end <= at {
                    break;
                }
                let used = Bytes(granted.0 / 100 * self.rng.random_range(0..130)).min(device);
                rows.push(reading(part, at, end, granted, used));
                at = end;
            }
            if self.rng.random_bool(0.12) {
                rows.push(self.impossible(part, at, granted, device));
            }
        }
        rows
    }

    fn impossible(&mut self, part: PartId, at: Instant, granted: Bytes, device: Bytes) -> Reading {
        let minute = reading(part, at, at.plus_secs(60), granted, granted);
        match self.rng.random_range(0..6) {
            0 => Reading { start: self.now().plus_secs(300), end: self.now().plus_secs(360), ..minute },
            1 => reading(part, at.plus_secs(-7300), at, granted, granted.plus(Bytes::gib(1))),
            2 => reading(part, at, at.plus_secs(60), granted, device.plus(Bytes(1))),
            3 => Reading { part_id: PartId(uuid::Uuid::from_u128(1)), ..minute },
            4 => Reading { used: None, above: None, peak: None, covered_ms: 0, quality: Quality::Unknown, ..minute },
            _ => {
                let others: Vec<PartId> = self.parts.keys().copied().collect();
                Reading { part_id: *others.choose(&mut self.rng).unwrap(), ..minute }
            }
        }
    }

    /// The rows that wait for a ruling.
    async fn learn_set_aside(&mut self, host: usize, skew_ms: i64) {
        for row in set_aside::list(&self.world.app, &operator(), true, None, 10_000).await.unwrap() {
            if self.aside.contains_key(&row.set_aside_id) {
                continue;
            }
            let sent: Reading = serde_json::from_value(row.reading).unwrap();
            let node = self.hosts[host].id;
            let tenant: Option<TenantId> = self
                .part_of(row.part_id)
                .filter(|(a, card)| a.confirmed.is_some() && self.ledger.cards[card].node == node)
                .map(|(a, _)| a.tenant);
            assert_eq!(row.tenant_id, tenant);
            self.aside.insert(row.set_aside_id, Aside { host, row: sent, skew_ms, tenant });
        }
    }

    /// Whether a ruling can make a reading of a row: its node has such a part, and nothing covers its time.
    fn can_be_accepted(&self, aside: &Aside) -> bool {
        let row = &aside.row;
        let start = row.start.plus_millis(correction(aside.skew_ms));
        let end = row.end.plus_millis(correction(aside.skew_ms));
        let is_its_nodes = self.part_of(row.part_id).is_some_and(|(a, card)| {
            self.ledger.cards[&card].node == self.hosts[aside.host].id && a.state != S::Queued
        });
        let read = self.meters.read.get(&row.part_id).map_or(&[][..], Vec::as_slice);
        is_its_nodes && start < end && read.iter().all(|taken| taken.end <= start || end <= taken.start)
    }

    pub async fn rule(&mut self, id: SetAsideId, accept: bool) {
        let aside = self.aside[&id].clone();
        let possible = self.can_be_accepted(&aside);
        let answer = set_aside::rule(&self.world.app, &operator(), id, accept, None).await;
        self.note(format!("ruling on {id}: accept {accept}, possible {possible}"));
        if accept && !possible {
            assert!(matches!(answer, Err(AppError::Conflict { code: "cannot_accept", .. })), "{aside:?}: {answer:?}");
            return;
        }
        answer.unwrap();
        if accept {
            self.meters.take(&aside.row, correction(aside.skew_ms));
        }
        self.aside.remove(&id);
        let twice = set_aside::rule(&self.world.app, &operator(), id, !accept, None).await;
        assert!(matches!(twice, Err(AppError::Conflict { .. })), "{twice:?}");
    }
}
