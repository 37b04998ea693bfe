//! Small pools and requests to try things on.

use crate::{gpu::Gpu, gpu::Service, inventory::Inventory};
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::{Bytes, GpuId, GpuModel, Instant, NodeId, PartId, Request};

fn at(n: u64) -> Instant {
    Instant::EPOCH.plus_millis(i64::try_from(n).unwrap())
}

pub fn gpu_id(n: u64) -> GpuId {
    GpuId::new(at(n), [0; 10])
}

pub fn node_id(n: u64) -> NodeId {
    NodeId::new(at(n), [0; 10])
}

pub fn part_id(n: u64) -> PartId {
    PartId::new(at(n), [0; 10])
}

pub fn model(name: &str) -> GpuModel {
    name.parse().unwrap()
}

/// GPU `gpu` of node `node`, in service, with `bytes` allocatable.
pub fn card(gpu: u64, node: u64, bytes: u64) -> Gpu {
    let uuid = format!("GPU-{}", gpu_id(gpu)).parse().unwrap();
    Gpu::new(gpu_id(gpu), uuid, node_id(node), model("NVIDIA L4"), Bytes(bytes), Service::InService)
}

/// `bytes` on each of `gpus` GPUs, of any model and node.
pub fn request(bytes: u64, gpus: u32) -> Request {
    Request { memory: Bytes(bytes), gpus, model: None, node_id: None, max_duration_s: None }
}

/// Up to 8 GPUs on 3 nodes, of 2 models, some out of service, with parts that use less or more than they were granted.
pub fn pools() -> impl Strategy<Value = Inventory> {
    let service = prop_oneof![
        8 => Just(Service::InService),
        2 => Just(Service::Cordoned),
        1 => Just(Service::Silent),
        1 => Just(Service::NotYetReported),
        1 => Just(Service::Removed),
    ];
    let parts = proptest::collection::vec((1u64..8, proptest::option::of(0u64..12)), 0..4);
    let gpu = (
        1u64..4,
        prop_oneof![3 => Just("NVIDIA L4"), 1 => Just("NVIDIA H200")],
        1u64..20,
        service,
        parts,
        proptest::option::of(0u64..6),
    );
    proptest::collection::vec(gpu, 0..=8).prop_map(|gpus| {
        let mut inv = Inventory::new();
        for (n, (node, name, bytes, service, parts, unattributed)) in (1..).zip(gpus) {
            inv.upsert_gpu(Gpu { model: model(name), service, ..card(n, node, bytes) }).unwrap();
            for (p, (granted, measured)) in (10 * n..).zip(parts) {
                // what the GPU has no room for is refused, and then is not there
                if inv.add_part(gpu_id(n), part_id(p), Bytes(granted)).is_ok() {
                    inv.measured(gpu_id(n), part_id(p), measured.map(Bytes)).unwrap();
                }
            }
            inv.set_unattributed(gpu_id(n), unattributed.map(Bytes)).unwrap();
        }
        inv
    })
}

pub fn requests() -> impl Strategy<Value = Request> {
    let name = prop_oneof![
        4 => Just(None),
        2 => Just(Some("NVIDIA L4")),
        1 => Just(Some("NVIDIA H200")),
        1 => Just(Some("no such card")),
    ];
    let node = prop_oneof![4 => Just(None), 1 => (1u64..5).prop_map(Some)];
    (1u64..20, prop_oneof![3 => Just(1u32), 2 => 2u32..5], name, node).prop_map(|(bytes, gpus, name, node)| Request {
        model: name.map(model),
        node_id: node.map(node_id),
        ..request(bytes, gpus)
    })
}

/// Any of the GPUs that [`pools`] makes, mostly none.
pub fn closed() -> impl Strategy<Value = BTreeSet<GpuId>> {
    prop_oneof![
        1 => Just(BTreeSet::new()),
        1 => proptest::collection::btree_set((1u64..=8).prop_map(gpu_id), 0..4),
    ]
}
