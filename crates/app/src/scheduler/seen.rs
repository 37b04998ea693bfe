//! What an operator sees of a leader: metrics of its pool, and a line for each change it made.

use metrics::Gauge;
use store::history::HistoryRow;
use types::{Name, PoolId};

/// The gauges of a pool that this server leads; all are 0 once it does so no longer. Pools are few and made by
/// operators, so their names may be labels.
pub(super) struct Led {
    leads: Gauge,
    term: Gauge,
    queued: Gauge,
    open: Gauge,
}

impl Led {
    pub fn new(pool: &Name, term: i64) -> Self {
        let pool = pool.as_str().to_owned();
        let led = Self {
            leads: metrics::gauge!("gpuledger_scheduler_leads", "pool" => pool.clone()),
            term: metrics::gauge!("gpuledger_scheduler_term", "pool" => pool.clone()),
            queued: metrics::gauge!("gpuledger_scheduler_queued", "pool" => pool.clone()),
            open: metrics::gauge!("gpuledger_scheduler_open_allocations", "pool" => pool),
        };
        led.leads.set(1);
        led.term.set(u32::try_from(term).unwrap_or(u32::MAX));
        led
    }

    /// How many requests wait, and how many allocations have not ended, these among them.
    pub fn count(&self, queued: usize, open: usize) {
        self.queued.set(u32::try_from(queued).unwrap_or(u32::MAX));
        self.open.set(u32::try_from(open).unwrap_or(u32::MAX));
    }
}

impl Drop for Led {
    fn drop(&mut self) {
        for gauge in [&self.leads, &self.term, &self.queued, &self.open] {
            gauge.set(0);
        }
    }
}

/// One line for each change that a batch will make durable, in words of its own; nothing where nobody reads them.
pub(super) fn changes(history: &[HistoryRow]) -> Vec<HistoryRow> {
    if tracing::enabled!(tracing::Level::DEBUG) { history.to_vec() } else { Vec::new() }
}

/// Says what a batch has changed, once it is durable.
pub(super) fn say(pool: PoolId, term: i64, changes: &[HistoryRow]) {
    for row in changes {
        tracing::debug!(
            %pool, term, allocation_id = %row.allocation_id, tenant_id = %row.tenant_id, state = row.to_state.name(),
            cause = row.cause.name(), actor = row.actor, "allocation changed"
        );
    }
}
