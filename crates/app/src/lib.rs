//! Use cases: one public function is one transaction. The scheduler loop and the recurring tasks live here too.
//!
//! What this crate does not know: HTTP, and SQL.

pub mod allocation;
pub mod api_key;
pub mod audit;
pub mod audit_chain;
mod authenticate;
pub mod balance;
pub mod caller;
pub mod credential;
pub mod doctor;
pub mod error;
pub mod invitation;
pub mod invoice;
pub mod join_token;
pub mod node;
pub mod node_credential;
pub mod node_refusal;
pub mod oidc;
pub mod password;
pub mod plan;
pub mod pool;
pub mod principal;
pub mod project;
pub mod quota;
pub mod reading;
mod recent;
pub mod scheduler;
pub mod server;
pub mod session;
pub mod set_aside;
pub mod subscription;
pub mod tasks;
pub mod tenant;
pub mod usage;
pub mod user;

pub use authenticate::Authenticated;
pub use caller::Caller;
pub use error::{AppError, Invalid};
pub use oidc::Oidc;
pub use principal::{Actor, Principal};
pub use scheduler::{SchedulerSettings, Schedulers};
pub use server::{Peers, PeersError};
pub use session::{SessionSettings, Sessions};

use std::sync::{Arc, Mutex, PoisonError};
use store::Store;
use types::{Clock, IdBytes};

/// What every use case works with.
#[derive(Debug, Clone)]
pub struct App {
    pub store: Store,
    pub clock: Clock,
    pub random: Random,
    /// The token issuer, and who was looked up lately.
    pub sessions: Sessions,
    /// Other token issuers; none unless [`App::with_oidc`] says which.
    pub oidc: Oidc,
    /// The pools whose changes this server may write.
    pub schedulers: Schedulers,
    /// Where requests went lately.
    resolved: Arc<recent::Recent<allocation::Asked, allocation::Resolved>>,
    /// GPUs whose hours over a span were lately found to balance.
    balanced: Arc<recent::Recent<(types::GpuId, types::Span), ()>>,
    /// Months whose table of readings is known to exist, counted from year 0.
    months: Arc<Mutex<std::collections::BTreeSet<i32>>>,
    /// What was refused of nodes and is not stored yet.
    refusals: node_refusal::Refusals,
}

/// Where the random part of ids and keys comes from.
#[derive(Debug, Clone)]
pub enum Random {
    /// The operating system.
    System,
    /// A seeded generator, so that a replay gives the same ids.
    Seeded(Arc<Mutex<rand::rngs::StdRng>>),
}

impl Random {
    /// A generator that always gives the same bytes for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        use rand::SeedableRng;
        Self::Seeded(Arc::new(Mutex::new(rand::rngs::StdRng::seed_from_u64(seed))))
    }

    /// Fresh random bytes.
    #[must_use]
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        use rand::Rng;
        let mut bytes = [0; N];
        match self {
            Self::System => rand::rng().fill_bytes(&mut bytes),
            Self::Seeded(generator) => {
                // a panic while holding the lock leaves a generator that is still good
                generator.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
            }
        }
        bytes
    }
}

impl IdBytes for Random {
    fn ten(&mut self) -> [u8; 10] {
        self.bytes()
    }
}

impl App {
    /// What every use case works with, not yet scheduling any pool.
    #[must_use]
    pub fn new(store: Store, clock: Clock, random: Random, sessions: Sessions, schedulers: Schedulers) -> Self {
        let (resolved, balanced, months, refusals, oidc) = Default::default();
        Self { store, clock, random, sessions, oidc, schedulers, resolved, balanced, months, refusals }
    }

    /// The same, also for people of other token issuers.
    #[must_use]
    pub fn with_oidc(self, oidc: Oidc) -> Self {
        Self { oidc, ..self }
    }

    /// The same, seen at another time: for replay.
    #[must_use]
    pub fn with_clock(&self, clock: Clock) -> Self {
        Self { clock, ..self.clone() }
    }

    /// The same, forwarding to the other servers of its database what they lead.
    #[must_use]
    pub fn with_peers(self, peers: Peers) -> Self {
        Self { schedulers: self.schedulers.with_peers(peers), ..self }
    }

    /// A new id of any kind at the present time: `let id: TenantId = app.id(TenantId::new)`.
    pub fn id<T>(&self, make: impl FnOnce(types::Instant, [u8; 10]) -> T) -> T {
        make(self.clock.now(), self.random.bytes())
    }
}
