//! Best fit on shared GPUs: which GPUs a request gets, all of its parts or none.

use crate::{
    gpu::Gpu,
    inventory::Inventory,
    no_room::{self, NoRoom},
    reason::{gpus_needed, why_not},
};
use std::collections::BTreeSet;
use types::{Bytes, GpuId, Request};

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Distinct GPUs of one node, in order of their ids: one for each part.
    pub gpus: Vec<GpuId>,
    /// Whether what is free on each of them was measured, too. Where not, the ledger alone decided.
    pub measured: bool,
}

/// The GPUs on which the request leaves the least memory free, over all of its parts; ties go to the first node and
/// then to the first GPU. GPUs in `closed` are kept for earlier requests and never chosen.
///
/// # Errors
/// [`NoRoom`], with the reasons.
pub fn place(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Result<Placement, NoRoom> {
    inv.by_node()
        .filter_map(|gpus| BestFit::on_node(gpus.values(), request, closed))
        // of equals, this is the first, and nodes come in order
        .min_by_key(|fit| fit.left_free)
        .map(BestFit::into_placement)
        .ok_or_else(|| no_room::explain(inv, request, closed))
}

/// The best GPUs of one node.
struct BestFit<'a> {
    gpus: Vec<&'a Gpu>,
    /// What stays free on them, in bytes.
    left_free: u128,
}

impl<'a> BestFit<'a> {
    fn on_node(gpus: impl Iterator<Item = &'a Gpu>, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Self> {
        let needed = gpus_needed(request);
        let mut fits: Vec<(Bytes, GpuId, &Gpu)> =
            gpus.filter(|gpu| why_not(gpu, request, closed).is_none()).map(|gpu| (gpu.free(), gpu.id, gpu)).collect();
        if fits.len() < needed {
            return None;
        }
        fits.sort_unstable_by_key(|(free, id, _)| (*free, *id));
        fits.truncate(needed);
        Some(Self {
            left_free: fits.iter().map(|(free, ..)| u128::from(free.less(request.memory).0)).sum(),
            gpus: fits.into_iter().map(|(.., gpu)| gpu).collect(),
        })
    }

    fn into_placement(self) -> Placement {
        let measured = self.gpus.iter().all(|gpu| gpu.is_measured());
        let mut gpus: Vec<GpuId> = self.gpus.into_iter().map(|gpu| gpu.id).collect();
        gpus.sort_unstable();
        Placement { gpus, measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::Service,
        sample::{self, card, gpu_id, part_id, request},
    };
    use proptest::prelude::*;

    /// Every set of `needed` GPUs of one node that can take the request, tried one by one; the least left free, then the
    /// first node, then the first GPUs.
    fn brute_force(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Vec<GpuId>> {
        let all: Vec<&Gpu> = inv.gpus().collect();
        (1u32..1 << all.len())
            .filter(|set| set.count_ones() == request.gpus)
            .map(|set| -> Vec<&Gpu> { (0..all.len()).filter(|n| set >> n & 1 == 1).map(|n| all[n]).collect() })
            .filter(|set| {
                set.iter().all(|gpu| {
                    let used: u64 = gpu
                        .parts()
                        .map(|(_, p)| p.granted.0.max(p.measured.map_or(0, |m| m.0)))
                        .chain(gpu.unattributed().map(|u| u.0))
                        .sum();
                    gpu.node == set[0].node
                        && gpu.service == Service::InService
                        && request.model.as_ref().is_none_or(|m| *m == gpu.model)
                        && request.node_id.is_none_or(|n| n == gpu.node)
                        && !closed.contains(&gpu.id)
                        && used + request.memory.0 <= gpu.allocatable.0
                })
            })
            .min_by_key(|set| {
                let left: u64 = set.iter().map(|gpu| gpu.free().0 - request.memory.0).sum();
                let ids: Vec<GpuId> = set.iter().map(|gpu| gpu.id).collect();
                (left, set[0].node, ids)
            })
            .map(|set| set.into_iter().map(|gpu| gpu.id).collect())
    }

    proptest! {
        #[test]
        fn best_fit_is_what_brute_force_finds(inv in sample::pools(), request in sample::requests(), closed in sample::closed()) {
            let placed = place(&inv, &request, &closed).ok().map(|p| p.gpus);
            prop_assert_eq!(placed, brute_force(&inv, &request, &closed));
        }

        #[test]
        fn parts_are_distinct_on_one_node_and_the_ledger_takes_them(
            inv in sample::pools(), request in sample::requests(), closed in sample::closed(),
        ) {
            let Ok(placed) = place(&inv, &request, &closed) else { return Ok(()) };
            let distinct: BTreeSet<_> = placed.gpus.iter().collect();
            prop_assert_eq!(distinct.len(), request.gpus as usize);
            let nodes: BTreeSet<_> = placed.gpus.iter().map(|id| inv.gpu(*id).unwrap().node).collect();
            prop_assert_eq!(nodes.len(), 1);
            let mut after = inv.clone();
            for (n, gpu) in (100..).zip(&placed.gpus) {
                prop_assert!(after.add_part(*gpu, part_id(n), request.memory).is_ok());
            }
        }

        #[test]
        fn the_order_in_which_gpus_were_learnt_is_nothing_to_it(
            inv in sample::pools(), request in sample::requests(), closed in sample::closed(),
        ) {
            let mut other = Inventory::new();
            let gpus: Vec<&Gpu> = inv.gpus().collect();
            for gpu in gpus.iter().rev() {
                other.upsert_gpu((*gpu).clone()).unwrap();
                for (id, part) in gpu.parts() {
                    other.add_part(gpu.id, id, part.granted).unwrap();
                    other.measured(gpu.id, id, part.measured).unwrap();
                }
                other.set_unattributed(gpu.id, gpu.unattributed()).unwrap();
            }
            prop_assert_eq!(&inv, &other);
            prop_assert_eq!(place(&inv, &request, &closed), place(&other, &request, &closed));
        }

        #[test]
        fn no_sequence_of_placements_exceeds_a_gpu(
            mut inv in sample::pools(), requests in proptest::collection::vec(sample::requests(), 1..40),
        ) {
            for (n, request) in (0..).zip(&requests) {
                if let Ok(placed) = place(&inv, request, &BTreeSet::new()) {
                    for (part, gpu) in (100 * (n + 1)..).zip(&placed.gpus) {
                        inv.add_part(*gpu, part_id(part), request.memory).unwrap();
                    }
                }
                for gpu in inv.gpus() {
                    let granted: u64 = gpu.parts().map(|(_, part)| part.granted.0).sum();
                    prop_assert!(granted <= gpu.allocatable.0);
                }
            }
        }
    }

    #[test]
    fn the_answer_says_whether_free_memory_was_measured() {
        let mut inv = Inventory::new();
        inv.upsert_gpu(card(1, 1, 10)).unwrap();
        inv.upsert_gpu(card(2, 1, 10)).unwrap();
        let measured = |inv: &Inventory, gpus| place(inv, &request(1, gpus), &BTreeSet::new()).unwrap().measured;
        assert!(!measured(&inv, 1));
        inv.set_unattributed(gpu_id(1), Some(Bytes::ZERO)).unwrap();
        assert!(measured(&inv, 1));
        assert!(!measured(&inv, 2));
    }
}
