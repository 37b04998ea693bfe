//! A month or two of work in virtual time, through the same use cases that the API calls: request, quota, placement,
//! confirmation, readings, ingest, intervals. Five-minute windows; the events of a window are sent together, each with
//! its own time.

use super::{nodes::DemoNode, progress::Progress, workload::TenantJob};
use agent::simulated_use;
use app::{App, AppError, Caller, allocation, allocation::AllocationView, node, reading};
use metering::integrate::{Integrator, WindowLength};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;
use types::{
    AllocationId, AllocationState, Bytes, Clock, Instant, Name, NodeId, PartId, PoolId, StreamId,
    wire::{NodeReport, Reading, ReadingBatch},
};

/// The length of a window.
const WINDOW_MS: i64 = 300_000;
/// Windows between two uploads of a node's readings, as after an outage: batches are as large as they may be.
const WINDOWS_PER_UPLOAD: i64 = 72;
/// How long a sample stands for what follows it.
const SAMPLE_MS: i64 = 60_000;

/// What is due at an instant.
#[derive(Debug, Clone)]
enum Event {
    Arrive(Box<TenantJob>),
    Confirm(AllocationId),
    Release(AllocationId),
}

/// What came of it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    pub requests: usize,
    pub refused: usize,
    pub queued: usize,
    pub readings: u64,
}

/// A part whose use is integrated.
struct Metered {
    integrator: Integrator,
    node: NodeId,
    granted: Bytes,
    since: Instant,
    /// Samples are taken up to here.
    sampled_to: Instant,
}

/// The replay in course.
pub struct Replay<'a> {
    app: &'a App,
    pool_id: PoolId,
    nodes: &'a [DemoNode],
    boot_id: Name,
    length: WindowLength,
    /// By time, then in order of making.
    events: BTreeMap<(Instant, u64), Event>,
    made: u64,
    /// Jobs that were admitted and not yet confirmed.
    waiting: BTreeMap<AllocationId, TenantJob>,
    /// Confirmed, by the node they run on.
    alive: BTreeMap<NodeId, BTreeSet<AllocationId>>,
    metered: BTreeMap<(AllocationId, PartId), Metered>,
    spool: BTreeMap<NodeId, (StreamId, u64, Vec<Reading>)>,
    outcome: Outcome,
}

impl<'a> Replay<'a> {
    /// Ready to replay a workload's arrivals.
    pub fn new(
        app: &'a App,
        pool_id: PoolId,
        nodes: &'a [DemoNode],
        boot_id: Name,
        arrivals: Vec<(Instant, TenantJob)>,
    ) -> Result<Self, AppError> {
        let length = WindowLength::minutes(5).map_err(|e| AppError::Internal(e.to_string()))?;
        let mut replay = Self {
            app,
            pool_id,
            nodes,
            boot_id,
            length,
            events: BTreeMap::new(),
            made: 0,
            waiting: BTreeMap::new(),
            alive: BTreeMap::new(),
            metered: BTreeMap::new(),
            spool: nodes.iter().map(|n| (n.node_id, (app.id(StreamId::new), 0, Vec::new()))).collect(),
            outcome: Outcome::default(),
        };
        for (at, job) in arrivals {
            replay.due(at, Event::Arrive(Box::new(job)));
        }
        Ok(replay)
    }

    fn due(&mut self, at: Instant, event: Event) {
        self.made += 1;
        self.events.insert((at, self.made), event);
    }

    /// The use case's view of the world at an instant of the window.
    fn app_at(&self, at: Instant) -> App {
        self.app.with_clock(Clock::standing_at(at))
    }

    /// Replays from the clock's time up to `end`.
    pub async fn run(mut self, end: Instant, progress: &mut Progress) -> Result<Outcome, AppError> {
        let start = self.app.clock.now();
        let mut from = start;
        let mut window = 0;
        while from < end {
            let to = from.plus_millis(WINDOW_MS).min(end);
            self.window(from, to).await?;
            self.app.clock.advance_to(to);
            window += 1;
            if window % WINDOWS_PER_UPLOAD == 0 || to == end {
                self.upload().await?;
                app::tasks::run_due(self.app).await;
            }
            progress.at(to.since(start), end.since(start), || {
                format!(
                    "{}  {} requests, {} refused, {} running, {} waiting, {} readings",
                    to.to_string().get(..16).unwrap_or_default().replace('T', " "),
                    self.outcome.requests,
                    self.outcome.refused,
                    self.alive.values().map(BTreeSet::len).sum::<usize>(),
                    self.waiting.len(),
                    self.outcome.readings,
                )
            });
            from = to;
        }
        Ok(self.outcome)
    }

    /// One window: the nodes report, its events happen, deadlines pass, and use is measured.
    async fn window(&mut self, from: Instant, to: Instant) -> Result<(), AppError> {
        let mut due: Vec<(Instant, Event)> = Vec::new();
        while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 < to) {
            due.push((entry.key().0.max(from), entry.remove()));
        }
        let mut tasks: JoinSet<Result<Happened, AppError>> = JoinSet::new();
        for node in self.nodes {
            let report = NodeReport {
                boot_id: self.boot_id.clone(),
                run: None,
                sent_at: from,
                gpus: node.reported(),
                alive: self.alive.get(&node.node_id).into_iter().flatten().copied().collect(),
                exited: Vec::new(),
            };
            let (app, caller) = (self.app_at(from), node.caller());
            tasks.spawn(async move { node::report(&app, &caller, report).await.map(|_| Happened::Reported) });
        }
        for (at, event) in due {
            let (app, pool) = (self.app_at(at), self.pool_id);
            tasks.spawn(happen(app, pool, at, event));
        }
        while let Some(joined) = tasks.join_next().await {
            let happened = joined.map_err(|e| AppError::Internal(e.to_string()))??;
            self.take(happened, to);
        }
        self.app_at(to).tick(self.pool_id).await?;
        self.look_at_waiting(to).await?;
        self.measure(to);
        Ok(())
    }

    fn take(&mut self, happened: Happened, next_window: Instant) {
        match happened {
            Happened::Reported => {}
            Happened::Refused => {
                self.outcome.requests += 1;
                self.outcome.refused += 1;
            }
            Happened::Admitted(at, view, job) => {
                self.outcome.requests += 1;
                let id = view.row.allocation_id;
                if view.row.state == AllocationState::Held {
                    self.due(at.plus_millis(job.job.launch_ms).max(next_window), Event::Confirm(id));
                } else {
                    self.outcome.queued += 1;
                }
                self.waiting.insert(id, *job);
            }
            Happened::Confirmed(view) => self.start(&view),
            Happened::Released(at, id) => self.finish(id, at),
        }
    }

    /// Queued requests that were placed meanwhile start with the next window; those that ended never do.
    async fn look_at_waiting(&mut self, to: Instant) -> Result<(), AppError> {
        let scheduled: BTreeSet<AllocationId> = self
            .events
            .values()
            .filter_map(|event| if let Event::Confirm(id) = event { Some(*id) } else { None })
            .collect();
        let queued: Vec<AllocationId> = self.waiting.keys().filter(|id| !scheduled.contains(id)).copied().collect();
        for id in queued {
            let view = allocation::get(self.app, &Caller::system(), id).await?;
            match view.row.state {
                AllocationState::Held => self.due(to, Event::Confirm(id)),
                AllocationState::Queued => {}
                _ => {
                    self.waiting.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// A workload starts: its parts are measured from now on.
    fn start(&mut self, view: &AllocationView) {
        let id = view.row.allocation_id;
        let (Some(job), Some(since)) = (self.waiting.remove(&id), view.row.active_since) else { return };
        self.due(since.plus_millis(job.job.lifetime_ms), Event::Release(id));
        for part in &view.parts {
            self.alive.entry(part.row.node_id).or_default().insert(id);
            let integrator = Integrator::new(part.row.part_id, part.row.bytes, since, self.length, SAMPLE_MS * 2);
            let metered =
                Metered { integrator, node: part.row.node_id, granted: part.row.bytes, since, sampled_to: since };
            self.metered.insert((id, part.row.part_id), metered);
        }
    }

    /// A workload ended: its last window closes.
    fn finish(&mut self, id: AllocationId, at: Instant) {
        for alive in self.alive.values_mut() {
            alive.remove(&id);
        }
        let keys: Vec<_> =
            self.metered.range((id, PartId(uuid_min()))..).map(|(k, _)| *k).take_while(|k| k.0 == id).collect();
        for key in keys {
            let Some(mut metered) = self.metered.remove(&key) else { continue };
            let mut readings = metered.sample(self.seed_of(metered.node), key.1, at);
            let node = metered.node;
            readings.extend(metered.integrator.finish(at));
            self.keep(node, readings);
        }
    }

    fn seed_of(&self, node: NodeId) -> u64 {
        self.nodes.iter().find(|n| n.node_id == node).map_or(0, |n| n.seed)
    }

    /// Samples every running part up to the end of the window.
    fn measure(&mut self, to: Instant) {
        let seeds: BTreeMap<NodeId, u64> = self.nodes.iter().map(|n| (n.node_id, n.seed)).collect();
        let mut closed: Vec<(NodeId, Vec<Reading>)> = Vec::new();
        for ((_, part), metered) in &mut self.metered {
            let seed = seeds.get(&metered.node).copied().unwrap_or(0);
            closed.push((metered.node, metered.sample(seed, *part, to)));
        }
        for (node, readings) in closed {
            self.keep(node, readings);
        }
    }

    fn keep(&mut self, node: NodeId, readings: Vec<Reading>) {
        self.outcome.readings += readings.len() as u64;
        if let Some((.., spooled)) = self.spool.get_mut(&node) {
            spooled.extend(readings);
        }
    }

    /// Every node uploads what it has spooled, in batches in the order of its stream.
    async fn upload(&mut self) -> Result<(), AppError> {
        let mut tasks: JoinSet<Result<(), AppError>> = JoinSet::new();
        for node in self.nodes {
            let Some((stream_id, sequence, spooled)) = self.spool.get_mut(&node.node_id) else { continue };
            let readings = std::mem::take(spooled);
            let (stream_id, mut next) = (*stream_id, *sequence);
            *sequence += readings.chunks(ReadingBatch::MAX_READINGS).len() as u64;
            let (app, caller) = (self.app.clone(), node.caller());
            tasks.spawn(async move {
                for chunk in readings.chunks(ReadingBatch::MAX_READINGS) {
                    next += 1;
                    let sent_at = app.clock.now();
                    let batch =
                        ReadingBatch { stream_id, run_id: None, sequence: next, sent_at, readings: chunk.to_vec() };
                    let ack = reading::ingest(&app, &caller, &batch).await?;
                    if ack.set_aside > 0 {
                        tracing::warn!(set_aside = ack.set_aside, "readings of the replay were set aside");
                    }
                }
                Ok(())
            });
        }
        while let Some(joined) = tasks.join_next().await {
            joined.map_err(|e| AppError::Internal(e.to_string()))??;
        }
        Ok(())
    }
}

impl Metered {
    /// Takes the samples that are due up to an instant.
    fn sample(&mut self, seed: u64, part: PartId, to: Instant) -> Vec<Reading> {
        let mut closed = Vec::new();
        while self.sampled_to <= to {
            let used = simulated_use(seed, part, self.granted, self.since, self.sampled_to);
            closed.extend(self.integrator.sample(self.sampled_to, Some(used)));
            self.sampled_to = self.sampled_to.plus_millis(SAMPLE_MS);
        }
        closed
    }
}

/// What an event led to.
enum Happened {
    Reported,
    Refused,
    Admitted(Instant, Box<AllocationView>, Box<TenantJob>),
    Confirmed(Box<AllocationView>),
    Released(Instant, AllocationId),
}

async fn happen(app: App, pool: PoolId, at: Instant, event: Event) -> Result<Happened, AppError> {
    let caller = Caller::system();
    match event {
        Event::Arrive(job) => {
            let key = format!("demo-{}", app.id(AllocationId::new));
            match allocation::request(&app, &caller, job.ask(pool), &key).await {
                Ok((view, _)) => Ok(Happened::Admitted(at, Box::new(view), job)),
                Err(AppError::Refused(_)) => Ok(Happened::Refused),
                Err(other) => Err(other),
            }
        }
        Event::Confirm(id) => {
            let view = allocation::confirm(&app, &caller, id).await?;
            Ok(Happened::Confirmed(Box::new(view)))
        }
        Event::Release(id) => {
            let view = allocation::release(&app, &caller, id).await?;
            let ended = view.row.ended_at.unwrap_or(at);
            Ok(Happened::Released(ended, id))
        }
    }
}

const fn uuid_min() -> uuid::Uuid {
    uuid::Uuid::nil()
}
