//! What was acknowledged: every answer that a client really got, and what was sent without one. The verdict knows
//! nothing else of what happened.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering},
};
use tokio::sync::Notify;

/// The record of a run.
#[derive(Debug, Default)]
pub struct Record {
    pub acknowledged: AtomicU64,
    /// Somebody was answered.
    pub progress: Notify,
    inner: Mutex<Inner>,
}

/// When something was first sent and when its answer came, in milliseconds of the world's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub first: i64,
    /// When the answer came; absent where none did.
    pub answered: Option<i64>,
}

impl Sent {
    /// Whether it can have taken effect at this time.
    pub fn covers(&self, at: i64) -> bool {
        self.first <= at && self.answered.is_none_or(|answered| at <= answered)
    }
}

/// A request for memory under a key.
#[derive(Debug, Clone)]
pub struct Asked {
    pub tenant: usize,
    pub member: usize,
    pub key: String,
    pub body: Value,
    pub memory: i128,
    pub gpus: i128,
    pub max_duration_s: Option<i64>,
    pub sent: Sent,
    pub answer: Option<Settled>,
}

/// What a key's answer was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    Allocation(String),
    Refused(String),
}

/// What clients and nodes said of an allocation, and were told.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub confirm: Option<Sent>,
    pub release: Option<Sent>,
    pub cancel: Option<Sent>,
    /// Its node said that it ended: the time that was named, and when that was sent.
    pub exit: Option<(i64, Sent)>,
    /// Until when a sign of life can have been taken.
    pub last_sign: Option<i64>,
    /// Each view of it that somebody got: when, and the view.
    pub views: Vec<(i64, Value)>,
}

/// Limits of a tenant that were set.
#[derive(Debug, Clone)]
pub struct Limit {
    pub tenant: usize,
    pub bytes: Option<i128>,
    pub allocations: Option<i64>,
    pub sent: Sent,
}

/// A batch that a scripted node kept until it was acknowledged.
#[derive(Debug, Clone)]
pub struct Batch {
    pub stream: String,
    pub sequence: u64,
    pub readings: Vec<Value>,
    /// How long the slowest try was on its way, in milliseconds: the server takes that for skew of the node's clock.
    pub slowest_ms: i64,
    /// Accepted and set aside, as the first answer that counted said.
    pub acknowledged: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
pub struct Inner {
    pub asked: Vec<Asked>,
    pub known: BTreeMap<String, Known>,
    pub limits: Vec<Limit>,
    pub batches: Vec<Batch>,
    /// By tenant and month: every answer of an issue that was acknowledged.
    pub invoices: BTreeMap<(usize, String), Vec<Value>>,
    /// Readings in the agent's spool when it was killed: part, start, end, used.
    pub spooled: BTreeSet<(String, i64, i64, Option<String>)>,
    /// Nodes that were joined, by their machine's id.
    pub nodes: BTreeMap<String, String>,
    /// What was wrong at once.
    pub violations: Vec<String>,
    /// What was killed, in words.
    pub killed: Vec<String>,
    /// What happened when, for people who look into a run.
    pub journal: Vec<String>,
}

impl Record {
    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
        self.progress.notify_waiters();
    }

    pub fn violation(&self, what: String) {
        let violations = &mut self.inner().violations;
        if !violations.contains(&what) {
            violations.push(what);
        }
    }

    pub fn known(&self, id: &str, change: impl FnOnce(&mut Known)) {
        change(self.inner().known.entry(id.to_owned()).or_default());
    }

    /// A view that somebody got, which must not contradict an earlier one.
    pub fn saw(&self, id: &str, at: i64, view: &Value) {
        self.known(id, |known| known.views.push((at, view.clone())));
    }
}
