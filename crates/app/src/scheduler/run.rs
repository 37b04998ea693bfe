//! The loop: who leads, and how a batch becomes durable.

use super::{
    Answer, Command, Pending, SchedulerSettings,
    batch::{Batch, gather, scope},
    loading,
    seen::{self, Led},
    state::PoolState,
    writes::Writes,
};
use crate::{App, Random, error::AppError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use store::{Store, StoreError};
use tokio::{sync::mpsc, time::Instant as Monotonic};
use types::{AllocationId, AllocationState, Clock, Instant, PoolId, ServerId};

/// How long the open state of a pool may take to be read.
const LOADED_WITHIN: Duration = Duration::from_secs(30);

/// One pool's loop on this server.
pub(super) struct Loop {
    store: Store,
    clock: Clock,
    random: Random,
    server: ServerId,
    pool: PoolId,
    settings: SchedulerSettings,
    changes: tokio::sync::broadcast::Sender<AllocationId>,
    /// Tells others on this server whether it leads.
    leads: Arc<AtomicBool>,
    leading: Option<Leadership>,
    /// When waiting requests were last looked at.
    looked: Option<Monotonic>,
}

/// A leadership in course.
struct Leadership {
    state: PoolState,
    /// Until when nobody else can lead, by this machine's steady clock.
    sure_until: Monotonic,
    led: Led,
}

impl Leadership {
    fn new(state: PoolState, sure_until: Monotonic) -> Self {
        let led = Led::new(&state.pool.name, state.term);
        led.count(state.queue.len(), state.open.len());
        Self { state, sure_until, led }
    }
}

impl Loop {
    pub fn new(app: &App, pool: PoolId, leads: Arc<AtomicBool>) -> Self {
        Self {
            store: app.store.clone(),
            clock: app.clock.clone(),
            random: app.random.clone(),
            server: app.schedulers.server,
            pool,
            settings: app.schedulers.settings,
            changes: app.schedulers.changes.clone(),
            leads,
            leading: None,
            looked: None,
        }
    }

    /// Runs until the last sender is gone, and gives the lease up then.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Pending>) {
        let mut lease_timer = tokio::time::interval(self.settings.lease / 4);
        lease_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tick_timer = tokio::time::interval(self.settings.tick.unwrap_or(Duration::from_secs(3600)));
        tick_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut waiting = Vec::with_capacity(self.settings.batch);
        loop {
            tokio::select! {
                _ = lease_timer.tick() => self.keep_lease().await,
                _ = tick_timer.tick(), if self.settings.tick.is_some() && self.leading.is_some() => self.tick().await,
                received = commands.recv_many(&mut waiting, self.settings.batch) => {
                    if received == 0 {
                        break;
                    }
                    self.serve(std::mem::take(&mut waiting)).await;
                }
            }
            self.leads.store(self.leading.is_some(), Ordering::Relaxed);
        }
        self.give_up().await;
    }

    /// How long Postgres may take over one transaction. Longer than its own limits, so it is not reached: the network may
    /// swallow what is sent, and then nothing else would ever end the waiting.
    fn answered_within(&self) -> Duration {
        self.settings.lease * 2 + Duration::from_secs(1)
    }

    /// Renews the lease, or tries to take it.
    async fn keep_lease(&mut self) {
        let asked_at = Monotonic::now();
        let result = match &mut self.leading {
            Some(_) => within(self.answered_within(), self.renew()).await,
            None => within(LOADED_WITHIN, self.take_over()).await,
        };
        match result {
            Ok(true) => {
                if let Some(leading) = &mut self.leading {
                    leading.sure_until = asked_at + self.settings.lease;
                }
            }
            Ok(false) => {}
            Err(error @ (AppError::Unavailable(_) | AppError::NotLeading)) => {
                tracing::warn!(pool = %self.pool, %error, "the lease could not be renewed or taken");
                if self.leading.as_ref().is_some_and(|l| l.sure_until <= Monotonic::now()) {
                    self.step_down("the lease ran out");
                }
            }
            Err(error) => {
                tracing::error!(pool = %self.pool, %error, "the scheduler cannot go on");
                self.step_down("an error");
            }
        }
    }

    async fn take_over(&mut self) -> Result<bool, AppError> {
        let now = self.clock.now();
        let mut tx = begin(&self.store, "take_lease", &self.settings).await?;
        let lease =
            store::leadership::take(&mut tx, self.pool, self.server, now, self.settings.lease.as_secs_f64()).await?;
        let Some(lease) = lease else { return Ok(false) };
        // nobody listened meanwhile, so no deadline may have run out because of that
        let leaderless_ms = now.since(lease.pool_time).max(0);
        store::allocation::put_off_deadlines(&mut tx, self.pool, leaderless_ms).await?;
        // so that the next leader adds only what comes after
        store::leadership::keep_time(&mut tx, self.pool, lease.term, now).await?;
        tx.commit().await?;
        let mut tx = self.store.begin("load_pool", scope()).await?;
        let state = loading::load(&mut tx, self.pool, lease, now).await?;
        tracing::info!(pool = %self.pool, term = lease.term, open = state.open.len(), "leads the pool");
        self.leading = Some(Leadership::new(state, Monotonic::now() + self.settings.lease));
        metrics::counter!("gpuledger_take_overs_total").increment(1);
        Ok(true)
    }

    /// Renews the lease, and stores the signs of life that came since.
    async fn renew(&mut self) -> Result<bool, AppError> {
        let Some(leading) = &mut self.leading else { return Ok(false) };
        let state = &mut leading.state;
        state.time = state.time.max(self.clock.now());
        let mut tx = begin(&self.store, "renew_lease", &self.settings).await?;
        let lease = self.settings.lease.as_secs_f64();
        match store::leadership::renew(&mut tx, self.pool, state.term, state.time, lease).await {
            Ok(()) => {}
            Err(StoreError::LeaseLost) => {
                self.step_down("another server leads");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        let signs: Vec<_> = state
            .fresh_signs
            .iter()
            .filter_map(|id| state.open.get(id))
            .filter_map(|open| Some((open.row.tenant_id, open.row.allocation_id, open.row.last_sign?)))
            .collect();
        store::allocation::set_last_sign(&mut tx, &signs).await?;
        let heard: Vec<_> = state
            .fresh_nodes
            .iter()
            .filter_map(|id| state.nodes.get(id))
            .filter_map(|node| Some((node.row.node_id, node.row.boot_id.clone(), node.row.last_heard?)))
            .collect();
        store::node::set_heard(&mut tx, &heard).await?;
        // graces may have been changed through another server
        let pool = store::pool::get(&mut tx, self.pool).await?;
        tx.commit().await?;
        state.pool = pool.unwrap_or_else(|| state.pool.clone());
        state.fresh_signs.clear();
        state.fresh_nodes.clear();
        Ok(true)
    }

    fn step_down(&mut self, why: &str) {
        if let Some(leading) = self.leading.take() {
            tracing::warn!(pool = %self.pool, term = leading.state.term, why, "no longer leads the pool");
            metrics::counter!("gpuledger_step_downs_total").increment(1);
        }
    }

    async fn give_up(&mut self) {
        if self.leading.is_some()
            && let Err(error) = within(self.answered_within(), self.renew()).await
        {
            tracing::warn!(pool = %self.pool, %error, "the last signs of life were not stored");
        }
        if let Some(leading) = self.leading.take()
            && let Ok(mut tx) = self.store.begin("give_up_lease", scope()).await
            && store::leadership::give_up(&mut tx, self.pool, leading.state.term, leading.state.time).await.is_ok()
            && let Err(error) = tx.commit().await
        {
            // it runs out by itself
            tracing::warn!(pool = %self.pool, %error, "the lease was not given up");
        }
    }

    /// Lets deadlines pass, when any has.
    async fn tick(&mut self) {
        let (answer, _) = tokio::sync::oneshot::channel();
        self.serve(vec![Pending { command: Command::Tick, at: self.clock.now(), answer }]).await;
    }

    /// Answers all commands of a batch: together, or one by one where together fails.
    async fn serve(&mut self, batch: Vec<Pending>) {
        let batch = self.answer_from_memory(batch);
        if batch.is_empty() {
            return;
        }
        metrics::histogram!("gpuledger_scheduler_batch_commands")
            .record(f64::from(u32::try_from(batch.len()).unwrap_or(u32::MAX)));
        let commands: Vec<(&Command, Instant)> = batch.iter().map(|p| (&p.command, p.at)).collect();
        let limit = self.answered_within();
        match within(limit, self.attempt(&commands)).await {
            Ok(answers) => {
                for (pending, answer) in batch.into_iter().zip(answers) {
                    let _ = pending.answer.send(answer);
                }
            }
            Err(error) if batch.len() == 1 => {
                self.recover(&error).await;
                for pending in batch {
                    let _ = pending.answer.send(Err(copy(&error)));
                }
            }
            Err(error) => {
                tracing::warn!(pool = %self.pool, %error, commands = batch.len(), "a batch failed; its commands are tried one by one");
                self.recover(&error).await;
                for pending in batch {
                    let answer = match within(limit, self.attempt(&[(&pending.command, pending.at)])).await {
                        Ok(mut answers) => answers.pop().unwrap_or_else(|| Err(AppError::Internal("no answer".into()))),
                        Err(error) => {
                            self.recover(&error).await;
                            Err(error)
                        }
                    };
                    let _ = pending.answer.send(answer);
                }
            }
        }
    }

    /// Whether waiting requests are to be looked at although nothing became free here.
    fn looks(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= self.settings.look)
    }

    /// Answers what needs no transaction; gives back the rest. Only while the lease is sure.
    fn answer_from_memory(&mut self, batch: Vec<Pending>) -> Vec<Pending> {
        let looks = self.looks();
        let Some(leading) = self.leading.as_mut().filter(|l| l.sure_until > Monotonic::now()) else { return batch };
        let mut rest = Vec::with_capacity(batch.len());
        for pending in batch {
            let mut memory = Batch {
                state: &mut leading.state,
                random: &self.random,
                quotas: BTreeMap::new(),
                keys: BTreeMap::new(),
                writes: Writes::default(),
                freed: false,
                ended: BTreeMap::new(),
                changed: BTreeSet::new(),
            };
            // in order: what came behind a command that needs a transaction waits for it
            let answer = match &pending.command {
                Command::Look if rest.is_empty() => Ok(Answer::Look(memory.state.look())),
                Command::Tick
                    if rest.is_empty() && memory.nothing_is_due(pending.at) && !(looks && memory.someone_waits()) =>
                {
                    memory.state.time = memory.state.time.max(pending.at);
                    Ok(Answer::Done)
                }
                Command::Cut(tenant, edge) if rest.is_empty() && memory.is_cut(*tenant, *edge) => Ok(Answer::Cut(0)),
                Command::Renew(id, _) if rest.is_empty() && !memory.meter_stands(*id) => {
                    memory.apply(&pending.command, pending.at)
                }
                Command::Report(node, report)
                    if rest.is_empty()
                        && (memory.is_routine(*node, report) || memory.is_anothers(*node, report, pending.at)) =>
                {
                    memory.apply(&pending.command, pending.at)
                }
                _ => {
                    rest.push(pending);
                    continue;
                }
            };
            let _ = pending.answer.send(answer);
        }
        rest
    }

    /// One transaction for all the commands.
    async fn attempt(&mut self, commands: &[(&Command, Instant)]) -> Result<Vec<Result<Answer, AppError>>, AppError> {
        let looks = self.looks();
        let begun = Monotonic::now();
        let leading = self.leading.as_mut().ok_or(AppError::NotLeading)?;
        let state = &mut leading.state;
        let mut tx = begin(&self.store, "pool_batch", &self.settings).await?;
        store::leadership::hold(&mut tx, self.pool, state.term).await?;
        for (command, _) in commands {
            match command {
                Command::NodeJoined(node) => loading::node(&mut tx, state, *node).await?,
                Command::Report(node, report) => {
                    loading::former_boot(&mut tx, state, *node, report).await?;
                    loading::cards_from_elsewhere(&mut tx, state, *node, report).await?;
                }
                Command::Reconsider => {
                    if let Some(pool) = store::pool::get(&mut tx, self.pool).await? {
                        state.pool = pool;
                    }
                }
                _ => {}
            }
        }
        let (quotas, keys) = gather(&mut tx, state, commands).await?;
        let mut batch = Batch {
            state,
            random: &self.random,
            quotas,
            keys,
            writes: Writes::default(),
            freed: false,
            ended: BTreeMap::new(),
            changed: BTreeSet::new(),
        };
        let mut answers = Vec::with_capacity(commands.len());
        for (command, at) in commands {
            let answer = batch.apply(command, *at);
            if let Err(AppError::Internal(text)) = answer {
                return Err(AppError::Internal(text));
            }
            answers.push(answer);
            // in between, so that what one command frees goes to the first that waits, and not to a later command
            let looks = looks && matches!(command, Command::Tick);
            if std::mem::take(&mut batch.freed) || looks {
                batch.scan_queue()?;
                self.looked = Some(Monotonic::now());
            }
        }
        let changed = std::mem::take(&mut batch.changed);
        let writes = std::mem::take(&mut batch.writes);
        if writes.is_empty() {
            return Ok(answers);
        }
        let (now, term) = (batch.state.time, batch.state.term);
        let changes = seen::changes(&writes.history);
        writes.flush(&mut tx, now).await?;
        store::leadership::keep_time(&mut tx, self.pool, term, now).await?;
        tx.commit().await?;
        metrics::histogram!("gpuledger_scheduler_batch_seconds").record(begun.elapsed());
        leading.led.count(leading.state.queue.len(), leading.state.open.len());
        seen::say(self.pool, term, &changes);
        for id in changed {
            // nobody may be waiting
            let _ = self.changes.send(id);
        }
        Ok(answers)
    }

    /// After a failed batch the state in memory is ahead of what is stored: it is read anew, or the leadership ends.
    async fn recover(&mut self, error: &AppError) {
        let Some(leading) = self.leading.take() else { return };
        if matches!(error, AppError::Unavailable(_) | AppError::NotLeading) {
            // lost lease, lost connection, unknown outcome: whoever takes the lease next reads what really happened
            tracing::warn!(pool = %self.pool, term = leading.state.term, %error, "steps down");
            metrics::counter!("gpuledger_step_downs_total").increment(1);
            let Leadership { state, led, .. } = leading;
            drop(led);
            let given_up = async {
                let mut tx = self.store.begin("give_up_lease", scope()).await?;
                store::leadership::give_up(&mut tx, self.pool, state.term, state.time).await?;
                Ok(tx.commit().await?)
            };
            if within(self.settings.lease, given_up).await.is_ok() {
                self.keep_lease().await;
            }
            return;
        }
        let Leadership { state: before, sure_until, led } = leading;
        drop(led);
        let lease = store::leadership::Lease { term: before.term, pool_time: before.time };
        let reloaded = within(LOADED_WITHIN, async {
            let mut tx = self.store.begin("load_pool", scope()).await?;
            let mut state = loading::load(&mut tx, self.pool, lease, before.time).await?;
            state.leader_since = before.leader_since;
            keep_signs(&mut state, before);
            Ok::<_, AppError>(state)
        })
        .await;
        match reloaded {
            Ok(state) => self.leading = Some(Leadership::new(state, sure_until)),
            Err(error) => tracing::error!(pool = %self.pool, %error, "the pool's state could not be read anew"),
        }
    }
}

/// Waits for a transaction, but not for ever. What it did is not known then.
async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, AppError>>) -> Result<T, AppError> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(AppError::Unavailable("Postgres does not answer".into())))
}

/// A transaction that touches the lease. A take-over waits for it, so Postgres ends it within the lease should this
/// server stand still or be cut off.
async fn begin(store: &Store, name: &'static str, settings: &SchedulerSettings) -> Result<store::Tx, StoreError> {
    store.begin_leading(name, scope(), settings.lease * 2 / 3, settings.lease).await
}

/// What was heard and not stored yet was heard all the same.
fn keep_signs(state: &mut PoolState, heard: PoolState) {
    for (id, node) in heard.nodes {
        if let Some(loaded) = state.nodes.get_mut(&id) {
            loaded.reported = node.reported;
            loaded.row.last_heard = loaded.row.last_heard.max(node.row.last_heard);
        }
    }
    for id in &heard.fresh_signs {
        let sign = heard.open.get(id).and_then(|open| open.row.last_sign);
        if let Some(loaded) = state.open.get_mut(id).filter(|open| open.row.state == AllocationState::Active) {
            loaded.row.last_sign = loaded.row.last_sign.max(sign);
            state.fresh_signs.insert(*id);
        }
    }
    state.fresh_nodes = heard.fresh_nodes;
}

/// The same failure for every command of a batch.
fn copy(error: &AppError) -> AppError {
    match error {
        AppError::NotLeading => AppError::NotLeading,
        AppError::Unavailable(text) => AppError::Unavailable(text.clone()),
        AppError::NotFound(what) => AppError::NotFound(what),
        AppError::Conflict { code, detail } => AppError::Conflict { code, detail: detail.clone() },
        other => AppError::Internal(other.to_string()),
    }
}
