//! Why a request cannot be placed now, and what would change that.

use crate::{
    gpu::{Gpu, Service},
    inventory::Inventory,
    reason::{Excluded, Reason, gpus_needed, unsuited, why_not},
};
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
};
use types::{Bytes, GpuId, NodeId, Request};

/// The request cannot be placed now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NoRoom {
    /// How many GPUs each reason excluded; together they are all GPUs of the pool.
    pub reasons: Vec<Excluded>,
    /// Whether it would fit if all that the pool has were free and in service. Where not, it is unsatisfiable.
    pub ever: bool,
    /// The nearest thing that would make it fit now; absent where no single thing would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
}

/// One thing that would make a request fit now, provided that no earlier request takes what it opens up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Nearest {
    /// That so much of what occupies this GPU goes: parts end, or memory of no part is freed.
    FreeBytes { gpu_id: GpuId, bytes: Bytes },
    /// That an operator uncordons the GPUs of this node.
    Uncordon { node_id: NodeId },
    /// Asking for no particular model.
    Model,
    /// Asking for at most so much memory on each GPU.
    Smaller { largest: Bytes },
    /// Asking for at most so many GPUs.
    Fewer { gpus: u32 },
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreeBytes { gpu_id, bytes } => {
                write!(f, "it fits once {bytes} more are free on the GPU {gpu_id}")
            }
            Self::Uncordon { node_id } => {
                write!(f, "it fits once the node {node_id} is uncordoned")
            }
            Self::Model => f.write_str("it fits now if any model will do"),
            Self::Smaller { largest } => {
                write!(f, "it fits now with {largest} or less on each GPU")
            }
            Self::Fewer { gpus } => write!(f, "it fits now with {gpus} or fewer GPUs"),
        }
    }
}

/// Explains a request that [`place`](crate::place) found no room for.
pub(crate) fn explain(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> NoRoom {
    let mut counts: BTreeMap<Reason, u32> = BTreeMap::new();
    for gpu in inv.gpus() {
        // what is excluded by nothing else lacks siblings, or there would have been room
        let reason = why_not(gpu, request, closed).unwrap_or(Reason::Siblings);
        *counts.entry(reason).or_default() += 1;
    }
    let ever = inv.by_node().any(|gpus| {
        let suited = |gpu: &&Gpu| gpu.service != Service::Removed && unsuited(gpu, request).is_none();
        gpus.values().filter(suited).count() >= gpus_needed(request)
    });
    NoRoom {
        reasons: counts.into_iter().map(|(reason, gpus)| Excluded { reason, gpus }).collect(),
        ever,
        nearest: nearest(inv, request, closed),
    }
}

/// First what somebody else can do while the request waits, then how the request itself would have to change.
fn nearest(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Nearest> {
    uncordon(inv, request, closed)
        .or_else(|| free_bytes(inv, request, closed))
        .or_else(|| any_model(inv, request, closed))
        .or_else(|| less(inv, request, closed))
}

fn uncordon(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Nearest> {
    let would_fit = |gpu: &&Gpu| match why_not(gpu, request, closed) {
        None => true,
        Some(Reason::Cordoned) => !closed.contains(&gpu.id) && gpu.free() >= request.memory,
        Some(_) => false,
    };
    inv.by_node().find_map(|gpus| {
        let node_id = gpus.values().next()?.node;
        (gpus.values().filter(would_fit).count() >= gpus_needed(request)).then_some(Nearest::Uncordon { node_id })
    })
}

/// The GPU with the least to be freed, of those that are all that stands between the request and their node.
fn free_bytes(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Nearest> {
    let needed = gpus_needed(request);
    inv.by_node()
        .filter_map(|gpus| {
            let mut lacking: Vec<(Bytes, GpuId)> = gpus
                .values()
                .filter(|gpu| matches!(why_not(gpu, request, closed), None | Some(Reason::Full)))
                .map(|gpu| {
                    let lack = gpu.occupied().plus(request.memory).less(gpu.allocatable);
                    (lack, gpu.id)
                })
                .collect();
            lacking.sort_unstable();
            let last = *lacking.get(needed - 1)?;
            let others_fit = lacking[..needed - 1].iter().all(|(lack, _)| lack.0 == 0);
            others_fit.then_some(last)
        })
        .min_by_key(|(lack, _)| *lack)
        .map(|(bytes, gpu_id)| Nearest::FreeBytes { gpu_id, bytes })
}

fn any_model(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Nearest> {
    request.model.as_ref()?;
    let any = Request { model: None, ..request.clone() };
    inv.by_node()
        .any(|gpus| {
            let fits = |gpu: &&Gpu| why_not(gpu, &any, closed).is_none();
            gpus.values().filter(fits).count() >= gpus_needed(request)
        })
        .then_some(Nearest::Model)
}

/// Less memory on each GPU, or fewer GPUs: whichever keeps more of the memory that was asked for.
fn less(inv: &Inventory, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Nearest> {
    let tiny = Request { memory: Bytes(1), ..request.clone() };
    let needed = gpus_needed(request);
    let (mut largest, mut most) = (Bytes::ZERO, 0_u32);
    for gpus in inv.by_node() {
        let mut free: Vec<Bytes> =
            gpus.values().filter(|gpu| why_not(gpu, &tiny, closed).is_none()).map(Gpu::free).collect();
        free.sort_unstable_by_key(|bytes| Reverse(*bytes));
        largest = largest.max(free.get(needed - 1).copied().unwrap_or(Bytes::ZERO));
        let enough = free.iter().take_while(|b| **b >= request.memory).count();
        most = most.max(u32::try_from(enough).unwrap_or(u32::MAX));
    }
    let kept = |bytes: Bytes, gpus: u32| u128::from(bytes.0) * u128::from(gpus);
    if most > 0 && kept(request.memory, most) >= kept(largest, request.gpus) {
        Some(Nearest::Fewer { gpus: most })
    } else {
        (largest > Bytes::ZERO).then_some(Nearest::Smaller { largest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        place::place,
        sample::{self, card, gpu_id, model, node_id, part_id, request},
    };
    use proptest::prelude::*;

    /// Does what `nearest` says, and nothing else.
    fn follow(inv: &mut Inventory, request: &mut Request, nearest: &Nearest) {
        match nearest {
            Nearest::Model => request.model = None,
            Nearest::Smaller { largest } => {
                assert!(*largest < request.memory);
                request.memory = *largest;
            }
            Nearest::Fewer { gpus } => {
                assert!(*gpus < request.gpus);
                request.gpus = *gpus;
            }
            Nearest::Uncordon { node_id } => {
                let gpus: Vec<_> = inv.gpus_of(*node_id).cloned().collect();
                for gpu in gpus.iter().filter(|g| g.service == Service::Cordoned) {
                    inv.set_service(gpu.id, Service::InService).unwrap();
                }
            }
            Nearest::FreeBytes { gpu_id, bytes } => {
                assert!(bytes.0 > 0);
                let gpu = inv.gpu(*gpu_id).unwrap().clone();
                let mut left = bytes.0;
                for (id, part) in gpu.parts() {
                    if left == 0 {
                        break;
                    }
                    inv.remove_part(*gpu_id, id).unwrap();
                    left = left.saturating_sub(part.occupied().0);
                }
                if left > 0 {
                    let nobodys = gpu.unattributed().unwrap();
                    assert!(nobodys.0 >= left);
                    inv.set_unattributed(*gpu_id, Some(Bytes(nobodys.0 - left))).unwrap();
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn every_gpu_counts_once_and_what_is_nearest_is_true(
            inv in sample::pools(), request in sample::requests(), closed in sample::closed(),
        ) {
            let Err(no_room) = place(&inv, &request, &closed) else { return Ok(()) };
            let counted: u32 = no_room.reasons.iter().map(|e| e.gpus).sum();
            prop_assert_eq!(counted as usize, inv.gpus().count());
            prop_assert!(no_room.reasons.iter().all(|e| e.gpus > 0));
            prop_assert!(no_room.reasons.windows(2).all(|w| w[0].reason < w[1].reason));

            if let Some(nearest) = &no_room.nearest {
                let (mut then, mut changed) = (inv.clone(), request.clone());
                follow(&mut then, &mut changed, nearest);
                prop_assert!(place(&then, &changed, &closed).is_ok(), "{nearest}");
            }

            let mut empty = Inventory::new();
            for gpu in inv.gpus().filter(|g| g.service != Service::Removed) {
                empty.upsert_gpu(Gpu { service: Service::InService, ..gpu.clone() }).unwrap();
            }
            prop_assert_eq!(place(&empty, &request, &BTreeSet::new()).is_ok(), no_room.ever);
        }
    }

    #[test]
    fn each_reason_counts_the_gpus_that_it_excluded() {
        let mut inv = Inventory::new();
        let mut add = |gpu: u64, node: u64, bytes: u64, service: Service| {
            let card = Gpu { service, ..card(gpu, node, bytes) };
            inv.upsert_gpu(card).unwrap();
        };
        add(1, 1, 4, Service::InService);
        add(2, 1, 8, Service::Cordoned);
        add(3, 1, 8, Service::Silent);
        add(4, 1, 8, Service::NotYetReported);
        add(5, 1, 8, Service::Removed);
        add(6, 1, 8, Service::InService);
        add(7, 1, 8, Service::InService);
        add(8, 1, 8, Service::InService);
        add(9, 2, 8, Service::InService);
        inv.upsert_gpu(Gpu { model: model("other"), ..card(10, 1, 8) }).unwrap();
        inv.add_part(gpu_id(7), part_id(1), Bytes(6)).unwrap();
        let request = Request { model: Some(card(1, 1, 1).model), node_id: Some(node_id(1)), ..request(5, 2) };
        let no_room = place(&inv, &request, &BTreeSet::from([gpu_id(6)])).unwrap_err();
        let names: Vec<_> = no_room.reasons.iter().map(|e| e.reason.name()).collect();
        assert_eq!(
            names,
            [
                "model",
                "node",
                "too_small",
                "cordoned",
                "silent",
                "not_yet_reported",
                "removed",
                "earlier_request",
                "full",
                "siblings"
            ]
        );
        assert!(no_room.reasons.iter().all(|e| e.gpus == 1));
        assert!(no_room.ever);
        assert_eq!(no_room.nearest, Some(Nearest::Uncordon { node_id: node_id(1) }));
        assert_eq!(no_room.reasons[7].to_string(), "1 GPU reserved for an earlier request");
        for excluded in &no_room.reasons {
            assert_eq!(serde_json::to_value(excluded.reason).unwrap(), excluded.reason.name());
        }
    }

    #[test]
    fn more_gpus_than_any_node_has_are_unsatisfiable() {
        let mut inv = Inventory::new();
        for gpu in 1..=4 {
            inv.upsert_gpu(card(gpu, gpu % 2, 10)).unwrap();
        }
        let no_room = place(&inv, &request(5, 3), &BTreeSet::new()).unwrap_err();
        assert!(!no_room.ever);
        assert_eq!(no_room.nearest, Some(Nearest::Fewer { gpus: 2 }));
        let json = serde_json::to_string(&no_room).unwrap();
        assert_eq!(
            json,
            r#"{"reasons":[{"reason":"siblings","gpus":4}],"ever":false,"nearest":{"kind":"fewer","gpus":2}}"#
        );
        assert_eq!(serde_json::from_str::<NoRoom>(&json).unwrap(), no_room);
    }

    #[test]
    fn a_pool_without_gpus_has_no_reasons() {
        let no_room = place(&Inventory::new(), &request(1, 1), &BTreeSet::new()).unwrap_err();
        assert_eq!(no_room.reasons, []);
        assert!(!no_room.ever && no_room.nearest.is_none());
    }
}
