//! Every GPU of a pool, with the parts on it.

use crate::gpu::{Gpu, PartUse, Parts, Service};
use std::collections::BTreeMap;
use types::{Bytes, GpuId, NodeId, PartId};

/// The GPUs of a pool, ordered by node and then by GPU id.
///
/// It holds that the parts granted on a GPU never exceed what is allocatable on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// A node without GPUs has no entry.
    nodes: BTreeMap<NodeId, BTreeMap<GpuId, Gpu>>,
    node_of: BTreeMap<GpuId, NodeId>,
}

/// A change that would contradict the inventory. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    #[error("the GPU {0} is not in the pool's inventory")]
    UnknownGpu(GpuId),
    #[error("the node {0} has no GPU in the pool's inventory")]
    UnknownNode(NodeId),
    #[error("the part {part} is not on the GPU {gpu}")]
    UnknownPart { gpu: GpuId, part: PartId },
    #[error("the part {part} is on the GPU {gpu} already")]
    KnownPart { gpu: GpuId, part: PartId },
    #[error("the GPU {gpu} cannot grant {asked}: the ledger has {free} left on it")]
    Over { gpu: GpuId, asked: Bytes, free: Bytes },
    #[error("the GPU {gpu} still has {parts} parts: it can be moved, shrunk or removed only when empty")]
    Occupied { gpu: GpuId, parts: usize },
}

impl Inventory {
    /// A pool without GPUs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a new GPU, or the present facts of a known one. A known GPU keeps its parts and what was measured on
    /// it; what the given one carries of these is ignored.
    ///
    /// # Errors
    /// [`InventoryError::Occupied`] where a GPU with parts would change its node or lose allocatable memory.
    pub fn upsert_gpu(&mut self, gpu: Gpu) -> Result<(), InventoryError> {
        let mut gpu = Gpu { parts: Parts::none(), unattributed: None, ..gpu };
        if let Some(old) = self.gpu_mut(gpu.id) {
            if !old.parts.is_empty() && (gpu.node != old.node || gpu.allocatable < old.allocatable) {
                return Err(InventoryError::Occupied { gpu: gpu.id, parts: old.parts.len() });
            }
            gpu.parts = std::mem::replace(&mut old.parts, Parts::none());
            gpu.unattributed = old.unattributed;
            self.forget(gpu.id);
        }
        self.node_of.insert(gpu.id, gpu.node);
        self.nodes.entry(gpu.node).or_default().insert(gpu.id, gpu);
        Ok(())
    }

    /// Forgets a GPU.
    ///
    /// # Errors
    /// [`InventoryError::Occupied`] while it has parts; [`InventoryError::UnknownGpu`].
    pub fn remove_gpu(&mut self, gpu: GpuId) -> Result<Gpu, InventoryError> {
        let parts = self.known_mut(gpu)?.parts.len();
        if parts > 0 {
            return Err(InventoryError::Occupied { gpu, parts });
        }
        self.forget(gpu).ok_or(InventoryError::UnknownGpu(gpu))
    }

    fn forget(&mut self, gpu: GpuId) -> Option<Gpu> {
        let node = self.node_of.remove(&gpu)?;
        let gpus = self.nodes.get_mut(&node)?;
        let forgotten = gpus.remove(&gpu);
        if gpus.is_empty() {
            self.nodes.remove(&node);
        }
        forgotten
    }

    /// Takes one GPU into or out of service. Its parts stay.
    ///
    /// # Errors
    /// [`InventoryError::UnknownGpu`].
    pub fn set_service(&mut self, gpu: GpuId, service: Service) -> Result<(), InventoryError> {
        self.known_mut(gpu)?.service = service;
        Ok(())
    }

    /// Takes every GPU of a node into or out of service. Their parts stay.
    ///
    /// # Errors
    /// [`InventoryError::UnknownNode`].
    pub fn set_node_service(&mut self, node: NodeId, service: Service) -> Result<(), InventoryError> {
        let gpus = self.nodes.get_mut(&node).ok_or(InventoryError::UnknownNode(node))?;
        for gpu in gpus.values_mut() {
            gpu.service = service;
        }
        Ok(())
    }

    /// Records what was granted on a GPU. It does not ask for service: what was decided stands, also on a GPU that has
    /// since been cordoned, and the inventory is rebuilt from the ledger by this.
    ///
    /// # Errors
    /// [`InventoryError::Over`] where the grants would exceed what is allocatable; [`InventoryError::KnownPart`];
    /// [`InventoryError::UnknownGpu`].
    pub fn add_part(&mut self, gpu: GpuId, part: PartId, bytes: Bytes) -> Result<(), InventoryError> {
        let on = self.known_mut(gpu)?;
        if on.parts.get(part).is_some() {
            return Err(InventoryError::KnownPart { gpu, part });
        }
        let free = on.ledger_free();
        if bytes > free {
            return Err(InventoryError::Over { gpu, asked: bytes, free });
        }
        let granted = PartUse { granted: bytes, measured: None };
        on.parts.put(part, granted);
        Ok(())
    }

    /// Records that a part has ended, and returns what it was granted.
    ///
    /// # Errors
    /// [`InventoryError::UnknownPart`]; [`InventoryError::UnknownGpu`].
    pub fn remove_part(&mut self, gpu: GpuId, part: PartId) -> Result<Bytes, InventoryError> {
        self.known_mut(gpu)?
            .parts
            .remove(part)
            .map(|ended| ended.granted)
            .ok_or(InventoryError::UnknownPart { gpu, part })
    }

    /// Records what a node measured of a part; `None` when it is unknown or has grown stale.
    ///
    /// # Errors
    /// [`InventoryError::UnknownPart`]; [`InventoryError::UnknownGpu`].
    pub fn measured(&mut self, gpu: GpuId, part: PartId, bytes: Option<Bytes>) -> Result<(), InventoryError> {
        let parts = &mut self.known_mut(gpu)?.parts;
        let used = parts.get(part).ok_or(InventoryError::UnknownPart { gpu, part })?;
        parts.put(part, PartUse { measured: bytes, ..used });
        Ok(())
    }

    /// Records the memory in use on a GPU that belongs to no part, without the driver's share; `None` when it is
    /// unknown or has grown stale.
    ///
    /// # Errors
    /// [`InventoryError::UnknownGpu`].
    pub fn set_unattributed(&mut self, gpu: GpuId, bytes: Option<Bytes>) -> Result<(), InventoryError> {
        self.known_mut(gpu)?.unattributed = bytes;
        Ok(())
    }

    /// One GPU.
    #[must_use]
    pub fn gpu(&self, gpu: GpuId) -> Option<&Gpu> {
        self.nodes.get(self.node_of.get(&gpu)?)?.get(&gpu)
    }

    /// All GPUs, ordered by node and then by GPU id.
    pub fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.nodes.values().flat_map(BTreeMap::values)
    }

    /// The GPUs of one node, in order of their ids; none where the node is unknown.
    pub fn gpus_of(&self, node: NodeId) -> impl Iterator<Item = &Gpu> {
        self.nodes.get(&node).into_iter().flat_map(BTreeMap::values)
    }

    /// Every node that has GPUs, in order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// The GPUs of each node.
    pub(crate) fn by_node(&self) -> impl Iterator<Item = &BTreeMap<GpuId, Gpu>> {
        self.nodes.values()
    }

    fn gpu_mut(&mut self, gpu: GpuId) -> Option<&mut Gpu> {
        self.nodes.get_mut(self.node_of.get(&gpu)?)?.get_mut(&gpu)
    }

    fn known_mut(&mut self, gpu: GpuId) -> Result<&mut Gpu, InventoryError> {
        self.gpu_mut(gpu).ok_or(InventoryError::UnknownGpu(gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{card, gpu_id, node_id, part_id};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn capacity_shrinks_and_moves_only_when_empty() {
        let mut inv = Inventory::new();
        inv.upsert_gpu(card(1, 1, 10)).unwrap();
        inv.add_part(gpu_id(1), part_id(1), Bytes(4)).unwrap();
        let occupied = InventoryError::Occupied { gpu: gpu_id(1), parts: 1 };
        assert_eq!(inv.upsert_gpu(card(1, 1, 9)), Err(occupied.clone()));
        assert_eq!(inv.upsert_gpu(card(1, 2, 10)), Err(occupied.clone()));
        assert_eq!(inv.remove_gpu(gpu_id(1)), Err(occupied));
        inv.upsert_gpu(card(1, 1, 12)).unwrap();
        assert_eq!(inv.gpu(gpu_id(1)).unwrap().free(), Bytes(8));
        inv.remove_part(gpu_id(1), part_id(1)).unwrap();
        inv.upsert_gpu(card(1, 2, 9)).unwrap();
        assert_eq!(inv.nodes().collect::<Vec<_>>(), [node_id(2)]);
        assert_eq!(inv.gpus_of(node_id(1)).count(), 0);
        inv.remove_gpu(gpu_id(1)).unwrap();
        assert_eq!(inv, Inventory::new());
    }

    #[test]
    fn unknown_measurements_leave_the_decision_to_the_ledger() {
        let mut inv = Inventory::new();
        inv.upsert_gpu(card(1, 1, 10)).unwrap();
        inv.add_part(gpu_id(1), part_id(1), Bytes(4)).unwrap();
        let free = |inv: &Inventory| {
            let gpu = inv.gpu(gpu_id(1)).unwrap();
            (gpu.free().0, gpu.is_measured())
        };
        assert_eq!(free(&inv), (6, false));
        inv.measured(gpu_id(1), part_id(1), Some(Bytes(1))).unwrap();
        assert_eq!(free(&inv), (6, false));
        inv.set_unattributed(gpu_id(1), Some(Bytes(2))).unwrap();
        assert_eq!(free(&inv), (4, true));
        inv.measured(gpu_id(1), part_id(1), Some(Bytes(7))).unwrap();
        assert_eq!(free(&inv), (1, true));
        inv.measured(gpu_id(1), part_id(1), None).unwrap();
        assert_eq!(free(&inv), (4, false));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Gpu(u64, u64, u64),
        RemoveGpu(u64),
        Add(u64, u64, u64),
        RemovePart(u64, u64),
        Measured(u64, u64, Option<u64>),
        Unattributed(u64, Option<u64>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let (gpu, part) = (1u64..4, 1u64..6);
        let bytes = || proptest::option::of(0u64..30);
        let step = prop_oneof![
            (gpu.clone(), 1u64..3, 1u64..20).prop_map(|(g, n, b)| Step::Gpu(g, n, b)),
            gpu.clone().prop_map(Step::RemoveGpu),
            (gpu.clone(), part.clone(), 1u64..12).prop_map(|(g, p, b)| Step::Add(g, p, b)),
            (gpu.clone(), part.clone()).prop_map(|(g, p)| Step::RemovePart(g, p)),
            (gpu.clone(), part, bytes()).prop_map(|(g, p, b)| Step::Measured(g, p, b)),
            (gpu, bytes()).prop_map(|(g, b)| Step::Unattributed(g, b)),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        /// Against a model that keeps (GPU, part) → granted in one flat map and GPU → (node, allocatable) in another.
        #[test]
        fn no_history_exceeds_a_gpu(steps in steps()) {
            let mut inv = Inventory::new();
            let mut gpus: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let mut parts: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            for step in steps {
                let on = |gpu: u64, parts: &BTreeMap<(u64, u64), u64>| {
                    parts.iter().filter(|((g, _), _)| *g == gpu).map(|(_, b)| *b).collect::<Vec<_>>()
                };
                match step {
                    Step::Gpu(g, node, bytes) => {
                        let legal = on(g, &parts).is_empty()
                            || gpus.get(&g).is_some_and(|(n, b)| *n == node && *b <= bytes);
                        prop_assert_eq!(inv.upsert_gpu(card(g, node, bytes)).is_ok(), legal);
                        if legal {
                            gpus.insert(g, (node, bytes));
                        }
                    }
                    Step::RemoveGpu(g) => {
                        let legal = gpus.contains_key(&g) && on(g, &parts).is_empty();
                        prop_assert_eq!(inv.remove_gpu(gpu_id(g)).is_ok(), legal);
                        if legal {
                            gpus.remove(&g);
                        }
                    }
                    Step::Add(g, p, bytes) => {
                        let room = gpus.get(&g).is_some_and(|(_, b)| on(g, &parts).iter().sum::<u64>() + bytes <= *b);
                        let legal = room && !parts.contains_key(&(g, p));
                        prop_assert_eq!(inv.add_part(gpu_id(g), part_id(p), Bytes(bytes)).is_ok(), legal);
                        if legal {
                            parts.insert((g, p), bytes);
                        }
                    }
                    Step::RemovePart(g, p) => {
                        let granted = parts.remove(&(g, p));
                        prop_assert_eq!(inv.remove_part(gpu_id(g), part_id(p)).ok(), granted.map(Bytes));
                    }
                    Step::Measured(g, p, bytes) => {
                        let known = parts.contains_key(&(g, p));
                        prop_assert_eq!(inv.measured(gpu_id(g), part_id(p), bytes.map(Bytes)).is_ok(), known);
                    }
                    Step::Unattributed(g, bytes) => {
                        let known = gpus.contains_key(&g);
                        prop_assert_eq!(inv.set_unattributed(gpu_id(g), bytes.map(Bytes)).is_ok(), known);
                    }
                }
                prop_assert_eq!(inv.gpus().count(), gpus.len());
                for (g, (node, allocatable)) in &gpus {
                    let gpu = inv.gpu(gpu_id(*g)).unwrap();
                    let granted: u64 = on(*g, &parts).iter().sum();
                    prop_assert_eq!(gpu.node, node_id(*node));
                    prop_assert_eq!(gpu.granted().0, granted);
                    prop_assert!(granted <= *allocatable);
                    prop_assert_eq!(gpu.ledger_free().0, allocatable - granted);
                    prop_assert!(gpu.free() <= gpu.ledger_free());
                }
            }
        }
    }
}
