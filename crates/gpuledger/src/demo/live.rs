//! After the replay: simulated nodes report through their real agents, and jobs come and go in real time.

use super::{
    nodes::DemoNode,
    workload::{TenantJob, Workload},
};
use agent::{AgentSettings, SourceSettings};
use app::{App, AppError, Caller, allocation, allocation::AllocationView};
use metering::integrate::WindowLength;
use rand::RngExt;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};
use store::allocation::Filter;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use types::{AllocationId, AllocationState, Clock, Instant, PoolId};

/// Starts the agent of every node. They speak to the server as on a real node: by HTTP, with their own credentials.
pub fn start_agents(
    nodes: &[DemoNode],
    server_url: &str,
    state_dir: &Path,
    stop: &CancellationToken,
    agents: &mut JoinSet<()>,
) -> Result<(), String> {
    let window = WindowLength::minutes(1).map_err(|e| e.to_string())?;
    for node in nodes {
        let folder = state_dir.join(&node.hostname);
        let settings = AgentSettings {
            credential_file: None,
            rotate_every: Duration::from_secs(30 * 86_400),
            server_url: server_url.to_owned(),
            node_id: node.node_id,
            pool_id: node.pool_id,
            credential: node.credential.clone(),
            socket: socket_of(state_dir, &node.hostname),
            state_dir: folder,
            ca_file: None,
            report_interval: Duration::from_secs(5),
            sample_interval: Duration::from_secs(5),
            window,
            source: SourceSettings::Simulated { seed: node.seed, gpus: node.simulated() },
        };
        let (hostname, stop) = (node.hostname.clone(), stop.clone());
        agents.spawn(async move {
            if let Err(error) = agent::run(settings, Clock::System, stop).await {
                tracing::error!(hostname, error = &error as &dyn std::error::Error, "a simulated node's agent ended");
            }
        });
    }
    Ok(())
}

/// The socket of a node's agent.
pub fn socket_of(state_dir: &Path, hostname: &str) -> PathBuf {
    state_dir.join(hostname).join("agent.sock")
}

/// The live workload: what runs goes on, and new jobs arrive.
#[derive(Debug)]
pub struct Live {
    app: App,
    pool_id: PoolId,
    workload: Workload,
    ends: BTreeMap<(Instant, AllocationId), ()>,
    waiting: BTreeMap<AllocationId, TenantJob>,
}

/// How often the workload looks at what is due.
const STEP: Duration = Duration::from_secs(2);
/// A new job arrives in one of so many steps.
const STEPS_PER_JOB: u32 = 12;

impl Live {
    /// Takes over whatever is open in the pool.
    pub async fn new(app: App, pool_id: PoolId, workload: Workload) -> Result<Self, AppError> {
        let mut live = Self { app, pool_id, workload, ends: BTreeMap::new(), waiting: BTreeMap::new() };
        let filter = Filter { open_only: true, ..Filter::default() };
        let mut before = None;
        loop {
            let page = allocation::list(&live.app, &Caller::system(), filter.clone(), before, 200).await?;
            let Some(last) = page.last() else { break };
            before = Some(last.row.allocation_id);
            for view in page {
                live.adopt(&view)?;
            }
        }
        Ok(live)
    }

    fn adopt(&mut self, view: &AllocationView) -> Result<(), AppError> {
        let mut job = self.workload.draw().map_err(AppError::Internal)?;
        job.tenant_id = view.row.tenant_id;
        job.project_id = view.row.project_id;
        if view.row.state == AllocationState::Active {
            self.ends.insert((self.app.clock.now().plus_millis(job.job.lifetime_ms), view.row.allocation_id), ());
        } else {
            self.waiting.insert(view.row.allocation_id, job);
        }
        Ok(())
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut timer = tokio::time::interval(STEP);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = timer.tick() => {
                    if let Err(error) = self.step().await {
                        tracing::info!(%error, "the live workload waits");
                    }
                }
            }
        }
    }

    async fn step(&mut self) -> Result<(), AppError> {
        let caller = Caller::system();
        if self.workload.rng.random_range(0..STEPS_PER_JOB) == 0 {
            let job = self.workload.draw().map_err(AppError::Internal)?;
            let key = format!("demo-{}", self.app.id(AllocationId::new));
            match allocation::request(&self.app, &caller, job.ask(self.pool_id), &key).await {
                Ok((view, _)) => {
                    self.waiting.insert(view.row.allocation_id, job);
                }
                Err(AppError::Refused(_)) => {}
                Err(other) => return Err(other),
            }
        }
        let waiting: Vec<AllocationId> = self.waiting.keys().copied().collect();
        for id in waiting {
            let view = allocation::get(&self.app, &caller, id).await?;
            match view.row.state {
                AllocationState::Queued => {}
                AllocationState::Held => {
                    let view = allocation::confirm(&self.app, &caller, id).await?;
                    if let (Some(job), Some(since)) = (self.waiting.remove(&id), view.row.active_since) {
                        self.ends.insert((since.plus_millis(job.job.lifetime_ms), id), ());
                    }
                }
                _ => {
                    self.waiting.remove(&id);
                }
            }
        }
        while let Some(entry) = self.ends.first_entry().filter(|e| e.key().0 <= self.app.clock.now()) {
            let (_, id) = *entry.key();
            allocation::release(&self.app, &caller, id).await?;
            entry.remove();
        }
        Ok(())
    }
}
