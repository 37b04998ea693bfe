//! The demo's nodes and jobs, drawn from the counts of a production cluster (see `data/README.md`).

use rand::{Rng, RngExt, rngs::StdRng};
use types::{Bytes, GpuModel};

/// A model: its name in the trace, the real card that the demo makes of it, and that card's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    trace: &'static str,
    name: &'static str,
    pub total: Bytes,
    /// What the driver keeps.
    pub overhead: Bytes,
}

/// `G2` and `G3` are not disclosed in the trace; the cards behind them are the demo's choice.
const MODELS: [Model; 7] = [
    Model { trace: "G2", name: "NVIDIA A100-SXM4-40GB", total: Bytes::mib(40_960), overhead: Bytes::mib(616) },
    Model { trace: "G3", name: "NVIDIA H100 80GB HBM3", total: Bytes::mib(81_559), overhead: Bytes::mib(614) },
    Model { trace: "T4", name: "Tesla T4", total: Bytes::mib(15_360), overhead: Bytes::mib(450) },
    Model { trace: "P100", name: "Tesla P100-PCIE-16GB", total: Bytes::mib(16_384), overhead: Bytes::mib(290) },
    Model { trace: "V100M16", name: "Tesla V100-SXM2-16GB", total: Bytes::mib(16_384), overhead: Bytes::mib(300) },
    Model { trace: "V100M32", name: "Tesla V100-SXM2-32GB", total: Bytes::mib(32_768), overhead: Bytes::mib(310) },
    Model { trace: "A10", name: "NVIDIA A10", total: Bytes::mib(23_028), overhead: Bytes::mib(310) },
];

impl Model {
    /// As its driver names it.
    pub fn gpu_model(&self) -> Result<GpuModel, String> {
        self.name.parse().map_err(|e| format!("{}: {e}", self.name))
    }

    /// What workloads can have.
    pub fn allocatable(&self) -> Bytes {
        self.total.less(self.overhead)
    }
}

/// A kind of node and how many of them there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShape {
    pub model: Model,
    pub gpus: u32,
    count: u64,
}

/// A kind of job: a fraction of a GPU's memory, or whole GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobClass {
    pub gpus: u32,
    /// Thousandths of a GPU.
    pub milli: u64,
    count: u64,
}

fn rows(text: &str, columns: [usize; 4]) -> Result<Vec<[String; 4]>, String> {
    text.lines()
        .skip(1)
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let cell = |i: usize| cells.get(i).map(|c| c.trim().to_owned()).ok_or_else(|| format!("{line:?} is short"));
            Ok([cell(columns[0])?, cell(columns[1])?, cell(columns[2])?, cell(columns[3])?])
        })
        .collect()
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// The cluster's node shapes.
pub fn node_shapes() -> Result<Vec<NodeShape>, String> {
    rows(include_str!("data/openb_node_histogram.csv"), [0, 1, 4, 4])?
        .into_iter()
        .map(|[model, gpus, count, _]| {
            let known = MODELS.iter().find(|m| m.trace == model).ok_or_else(|| format!("unknown model {model}"))?;
            let gpus = u32::try_from(number(&gpus)?).map_err(|e| e.to_string())?;
            Ok(NodeShape { model: known.clone(), gpus, count: number(&count)? })
        })
        .collect()
}

/// The cluster's jobs that use GPUs.
pub fn job_classes() -> Result<Vec<JobClass>, String> {
    let classes: Result<Vec<JobClass>, String> = rows(include_str!("data/openb_class_histogram.csv"), [2, 3, 4, 4])?
        .into_iter()
        .map(|[gpus, milli, count, _]| {
            let gpus = u32::try_from(number(&gpus)?).map_err(|e| e.to_string())?;
            Ok(JobClass { gpus, milli: number(&milli)?, count: number(&count)? })
        })
        .collect();
    Ok(classes?.into_iter().filter(|class| class.gpus > 0).collect())
}

/// A smaller cluster of the same make: each shape's share of `gpus`, whole nodes first, then those with the largest
/// remainder that still fit.
pub fn scaled_nodes(shapes: &[NodeShape], gpus: u32) -> Vec<NodeShape> {
    let all: u64 = shapes.iter().map(|s| s.count * u64::from(s.gpus)).sum();
    let share = |s: &NodeShape| (s.count * u64::from(gpus) / all, s.count * u64::from(gpus) % all);
    let mut nodes: Vec<NodeShape> = Vec::new();
    for shape in shapes {
        nodes.extend(std::iter::repeat_n(shape.clone(), usize::try_from(share(shape).0).unwrap_or(0)));
    }
    let mut rest: Vec<&NodeShape> = shapes.iter().collect();
    rest.sort_by_key(|s| std::cmp::Reverse(share(s).1));
    let mut placed: u32 = nodes.iter().map(|n| n.gpus).sum();
    for shape in rest {
        if placed + shape.gpus <= gpus {
            placed += shape.gpus;
            nodes.push(shape.clone());
        }
    }
    nodes
}

/// Draws one of several by weight.
fn draw<'a, T>(rng: &mut StdRng, items: &'a [T], weight: impl Fn(&T) -> u64) -> Option<&'a T> {
    let total: u64 = items.iter().map(&weight).sum();
    let mut at = rng.random_range(0..total.max(1));
    items.iter().find(|item| {
        let w = weight(item);
        let hit = at < w;
        at = at.saturating_sub(w);
        hit
    })
}

/// A job that somebody wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub memory: Bytes,
    pub gpus: u32,
    /// Half of the jobs that fit several models insist on theirs.
    pub model: Option<GpuModel>,
    pub lifetime_ms: i64,
    /// From the answer to the start of the workload.
    pub launch_ms: i64,
}

/// Draws a job: a class by its count, memory as the class' fraction of the memory of a card that the cluster has.
pub fn draw_job(rng: &mut StdRng, classes: &[JobClass], nodes: &[NodeShape]) -> Result<Job, String> {
    let class = draw(rng, classes, |c| c.count).ok_or("no job classes")?;
    let hosts: Vec<NodeShape> = nodes.iter().filter(|n| n.gpus >= class.gpus).cloned().collect();
    let host = draw(rng, &hosts, |n| u64::from(n.gpus)).ok_or("no node is large enough")?;
    let whole = host.model.allocatable();
    // whole MiB, as people ask for it
    let memory = Bytes::mib((whole.0 / 1000 * class.milli.min(1000)) >> 20);
    let insists = class.gpus > 1 || rng.random_range(0..2) == 0;
    Ok(Job {
        memory,
        gpus: class.gpus,
        model: insists.then(|| host.model.gpu_model()).transpose()?,
        lifetime_ms: draw_lifetime_ms(rng),
        launch_ms: rng.random_range(5_000..60_000),
    })
}

/// Quantiles of job lifetimes in the trace, in seconds, and the ends of the range: between two of them a lifetime is
/// equally likely on a logarithmic scale.
const LIFETIMES: [(u64, f64); 5] =
    [(0, 30.0), (500_000, 655.0), (900_000, 7_389.0), (990_000, 147_608.0), (1_000_000, 400_000.0)];

#[expect(clippy::float_arithmetic, reason = "an invented lifetime is no fact of the ledger")]
fn draw_lifetime_ms(rng: &mut StdRng) -> i64 {
    let q = u64::from(rng.next_u32()) % 1_000_000;
    let upper = LIFETIMES.iter().position(|(quantile, _)| *quantile > q).unwrap_or(LIFETIMES.len() - 1);
    let ((q0, low), (q1, high)) = (LIFETIMES[upper - 1], LIFETIMES[upper]);
    #[expect(clippy::cast_precision_loss, reason = "below a million")]
    let along = (q - q0) as f64 / (q1 - q0) as f64;
    #[expect(clippy::cast_possible_truncation, reason = "at most 400,000,000")]
    let millis = (low * (high / low).powf(along) * 1000.0) as i64;
    millis
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_small_cluster_has_seventy_two_gpus_of_the_large_ones_make() {
        let nodes = scaled_nodes(&node_shapes().unwrap(), 72);
        assert_eq!(nodes.iter().map(|n| n.gpus).sum::<u32>(), 72);
        assert!(nodes.iter().filter(|n| n.model.trace == "G2").count() >= 6);
    }

    #[test]
    fn lifetimes_have_the_published_quantiles() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut lifetimes: Vec<i64> = (0..40_000).map(|_| draw_lifetime_ms(&mut rng) / 1000).collect();
        lifetimes.sort_unstable();
        for (quantile, seconds) in [(20_000, 655), (36_000, 7_389), (39_600, 147_608)] {
            let found = lifetimes[quantile];
            assert!((found - seconds).abs() * 10 < seconds, "quantile {quantile}: {found} for {seconds}");
        }
    }

    #[test]
    fn every_job_fits_some_card() {
        let (classes, nodes) = (job_classes().unwrap(), scaled_nodes(&node_shapes().unwrap(), 72));
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..2000 {
            let job = draw_job(&mut rng, &classes, &nodes).unwrap();
            assert!(job.memory > Bytes::ZERO);
            assert!(nodes.iter().any(|n| n.gpus >= job.gpus && n.model.allocatable() >= job.memory));
        }
    }
}
