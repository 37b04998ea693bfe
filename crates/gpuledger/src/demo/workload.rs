//! Who asks for what, and when.

use super::{
    shapes::{self, Job, JobClass, NodeShape},
    tenants::DemoTenant,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use types::{Instant, PoolId, ProjectId, Request, TenantId};

/// A job of a tenant's project.
#[derive(Debug, Clone)]
pub struct TenantJob {
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    pub job: Job,
}

impl TenantJob {
    /// What it asks for.
    pub fn ask(&self, pool_id: PoolId) -> app::allocation::Ask {
        app::allocation::Ask {
            tenant_id: Some(self.tenant_id),
            project_id: Some(self.project_id),
            pool_id: Some(pool_id),
            request: Request {
                memory: self.job.memory,
                gpus: self.job.gpus,
                model: self.job.model.clone(),
                node_id: None,
                max_duration_s: None,
            },
        }
    }
}

/// Draws jobs for the demo's tenants.
#[derive(Debug)]
pub struct Workload {
    pub rng: StdRng,
    classes: Vec<JobClass>,
    nodes: Vec<NodeShape>,
    tenants: Vec<DemoTenant>,
}

impl Workload {
    /// The same seed gives the same jobs.
    pub fn new(seed: u64, nodes: Vec<NodeShape>, tenants: Vec<DemoTenant>) -> Result<Self, String> {
        Ok(Self { rng: StdRng::seed_from_u64(seed), classes: shapes::job_classes()?, nodes, tenants })
    }

    /// The next job.
    pub fn draw(&mut self) -> Result<TenantJob, String> {
        let job = shapes::draw_job(&mut self.rng, &self.classes, &self.nodes)?;
        let total: u32 = self.tenants.iter().map(|t| t.share).sum();
        let mut at = self.rng.random_range(0..total.max(1));
        let tenant = self
            .tenants
            .iter()
            .find(|tenant| {
                let hit = at < tenant.share;
                at = at.saturating_sub(tenant.share);
                hit
            })
            .ok_or("no tenants")?;
        let project = tenant.projects.get(self.rng.random_range(0..tenant.projects.len().max(1)));
        Ok(TenantJob {
            tenant_id: tenant.tenant_id,
            project_id: *project.ok_or_else(|| format!("{} has no projects", tenant.name))?,
            job,
        })
    }

    /// `count` arrivals over a span, in order.
    pub fn arrivals(&mut self, count: usize, from: Instant, to: Instant) -> Result<Vec<(Instant, TenantJob)>, String> {
        let span = to.since(from).max(1);
        let mut times: Vec<i64> = (0..count).map(|_| self.rng.random_range(0..span)).collect();
        times.sort_unstable();
        times.into_iter().map(|offset| Ok((from.plus_millis(offset), self.draw()?))).collect()
    }
}
