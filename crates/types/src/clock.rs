//! The only way to the present time. Rule code takes instants; the edges take a [`Clock`].

use crate::span::Instant;
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

/// Where the present time comes from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's clock.
    System,
    /// The machine's clock, moved by so many milliseconds: for tests with real processes.
    Moved(i64),
    /// A clock that stands still until it is moved: for tests, and for replay in virtual time.
    Virtual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that stands at `t`.
    #[must_use]
    pub fn standing_at(t: Instant) -> Self {
        Self::Virtual(Arc::new(AtomicI64::new(t.as_millis())))
    }

    /// The present time, cut down to the millisecond.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::from_jiff(jiff::Timestamp::now()).unwrap_or(Instant::EPOCH),
            Self::Moved(by_ms) => Self::System.now().plus_millis(*by_ms),
            Self::Virtual(t) => Instant::from_millis(t.load(Ordering::SeqCst)).unwrap_or(Instant::EPOCH),
        }
    }

    /// Moves a virtual clock to `t`, never back. The machine's clock is not moved.
    pub fn advance_to(&self, t: Instant) {
        if let Self::Virtual(now) = self {
            now.fetch_max(t.as_millis(), Ordering::SeqCst);
        }
    }
}
