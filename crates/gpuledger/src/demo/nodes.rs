//! The demo's nodes: joined through the front door, with invented cards.

use super::shapes::NodeShape;
use agent::{SimulatedGpu, simulated_uuid};
use app::{App, AppError, Caller, Principal, join_token, node};
use serde::{Deserialize, Serialize};
use types::{
    Bytes, Name, NodeId, PoolId,
    wire::{GpuReport, Join},
};

/// A node that joined, as the demo keeps it between two starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoNode {
    pub node_id: NodeId,
    pub pool_id: PoolId,
    pub hostname: String,
    pub credential: String,
    /// Makes its cards and their use.
    pub seed: u64,
    pub gpus: Vec<DemoGpu>,
}

/// An invented card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoGpu {
    pub model: types::GpuModel,
    pub memory_total: Bytes,
    pub driver_overhead: Bytes,
}

impl DemoNode {
    /// Its cards for the simulated source.
    pub fn simulated(&self) -> Vec<SimulatedGpu> {
        self.gpus
            .iter()
            .map(|gpu| SimulatedGpu {
                model: gpu.model.clone(),
                memory_total: gpu.memory_total,
                driver_overhead: gpu.driver_overhead,
            })
            .collect()
    }

    /// Its cards as its agent reports them.
    pub fn reported(&self) -> Vec<GpuReport> {
        (0_u32..)
            .zip(&self.gpus)
            .map(|(index, gpu)| GpuReport {
                uuid: simulated_uuid(self.seed, index),
                model: gpu.model.clone(),
                memory_total: gpu.memory_total,
                driver_overhead: Some(gpu.driver_overhead),
                memory_used: None,
            })
            .collect()
    }

    /// The node as a caller.
    pub fn caller(&self) -> Caller {
        Caller { principal: Principal::Node { node: self.node_id, pool: self.pool_id }, request_id: None }
    }
}

/// Lets one node of each shape join the pool.
pub async fn join_all(app: &App, pool_id: PoolId, shapes: &[NodeShape]) -> Result<Vec<DemoNode>, AppError> {
    let mut nodes = Vec::with_capacity(shapes.len());
    for (seed, shape) in (1_u64..).zip(shapes) {
        let token = join_token::create(app, &Caller::system(), pool_id, 3600).await?.secret;
        let hostname = format!("node-{seed:02}");
        let name = |text: &str| text.parse::<Name>().map_err(|e| AppError::Internal(format!("{text:?} {e}")));
        let join = Join { token, hostname: name(&hostname)?, machine_id: name(&format!("demo-{seed:028}"))? };
        let joined = node::join(app, &join).await?;
        let gpu = DemoGpu {
            model: shape.model.gpu_model().map_err(AppError::Internal)?,
            memory_total: shape.model.total,
            driver_overhead: shape.model.overhead,
        };
        nodes.push(DemoNode {
            node_id: joined.node_id,
            pool_id: joined.pool_id,
            hostname,
            credential: joined.credential,
            seed,
            gpus: vec![gpu; usize::try_from(shape.gpus).unwrap_or(0)],
        });
    }
    Ok(nodes)
}
