//! Order of arrival: a later request never takes a GPU that an earlier waiting request could use.

use crate::{
    gpu::{Gpu, Service},
    inventory::Inventory,
    reason::{gpus_needed, unsuited},
};
use std::collections::BTreeSet;
use types::{GpuId, Request};

/// The GPUs that a waiting request could be given once they have room: in service, of its model and node, large enough
/// when empty, and with enough of their like on their node.
#[must_use]
pub fn could_use(inv: &Inventory, request: &Request) -> BTreeSet<GpuId> {
    let mut usable = BTreeSet::new();
    for gpus in inv.by_node() {
        let suited = |gpu: &&Gpu| gpu.service == Service::InService && unsuited(gpu, request).is_none();
        if gpus.values().filter(suited).count() >= gpus_needed(request) {
            usable.extend(gpus.values().filter(suited).map(|gpu| gpu.id));
        }
    }
    usable
}

/// The GPUs that are closed to whoever comes after these waiting requests.
///
/// A request that waits only for its quota closes nothing, so it does not belong among `earlier`. Who scans a queue in
/// order of arrival need not start anew for each: the set grows by [`could_use`] of each request that stays.
#[must_use]
pub fn closed_by<'a>(inv: &Inventory, earlier: impl IntoIterator<Item = &'a Request>) -> BTreeSet<GpuId> {
    let mut closed = BTreeSet::new();
    // a queue is long, but of few shapes
    let mut shapes = BTreeSet::new();
    for request in earlier {
        let shape = (request.memory, request.gpus, request.model.as_ref(), request.node_id);
        if shapes.insert(shape) {
            closed.extend(could_use(inv, request));
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        place::place,
        sample::{self, card, gpu_id, node_id, part_id, request},
    };
    use proptest::prelude::*;
    use types::Bytes;

    #[test]
    fn a_request_closes_only_what_it_could_use() {
        let mut inv = Inventory::new();
        for (gpu, node, bytes) in [(1, 1, 10), (2, 1, 10), (3, 2, 10), (4, 3, 5), (5, 3, 5)] {
            inv.upsert_gpu(card(gpu, node, bytes)).unwrap();
        }
        // a pair of 8 bytes fits only the first node; the second has one GPU, the third two that are too small
        let pair = request(8, 2);
        assert_eq!(could_use(&inv, &pair), [1, 2].map(gpu_id).into());
        inv.set_service(gpu_id(2), Service::Cordoned).unwrap();
        assert_eq!(could_use(&inv, &pair), BTreeSet::new());
        let pinned = Request { node_id: Some(node_id(3)), ..request(1, 1) };
        assert_eq!(closed_by(&inv, [&pair, &pinned, &pinned]), [4, 5].map(gpu_id).into());
    }

    #[test]
    fn who_waits_only_for_quota_closes_nothing() {
        let mut inv = Inventory::new();
        inv.upsert_gpu(card(1, 1, 10)).unwrap();
        let waiting = [(request(4, 1), "over its quota"), (request(12, 1), "no room")];
        let for_room = waiting.iter().filter(|(_, why)| *why == "no room").map(|(request, _)| request);
        let closed = closed_by(&inv, for_room);
        assert!(place(&inv, &request(5, 1), &closed).is_ok());
    }

    proptest! {
        /// Scans a queue from a full pool on, as a leader does: whoever stays closes what he could use.
        #[test]
        fn nobody_takes_what_an_earlier_request_could_use(
            mut inv in sample::pools(), waiting in proptest::collection::vec(sample::requests(), 1..12),
        ) {
            let mut stayed: Vec<&Request> = Vec::new();
            for (n, request) in (1..).zip(&waiting) {
                let closed = closed_by(&inv, stayed.iter().copied());
                match place(&inv, request, &closed) {
                    Err(_) => stayed.push(request),
                    Ok(placed) => {
                        for earlier in &stayed {
                            let usable = could_use(&inv, earlier);
                            prop_assert!(placed.gpus.iter().all(|gpu| !usable.contains(gpu)));
                        }
                        for (part, gpu) in (100 * n..).zip(&placed.gpus) {
                            inv.add_part(*gpu, part_id(part), request.memory).unwrap();
                        }
                    }
                }
            }
        }

        /// Whatever comes later, the head is placed at the latest when all that ran before it has ended.
        #[test]
        fn nothing_that_comes_later_delays_the_head(
            mut inv in sample::pools(), head in sample::requests(),
            later in proptest::collection::vec(sample::requests(), 0..12),
        ) {
            if could_use(&inv, &head).is_empty() {
                return Ok(());
            }
            let before: Vec<Gpu> = inv.gpus().cloned().collect();
            for (n, request) in (1..).zip(&later) {
                let closed = closed_by(&inv, [&head]);
                if let Ok(placed) = place(&inv, request, &closed) {
                    for (part, gpu) in (100 * n..).zip(&placed.gpus) {
                        inv.add_part(*gpu, part_id(part), request.memory).unwrap();
                    }
                }
            }
            for gpu in before {
                for (part, _) in gpu.parts() {
                    inv.remove_part(gpu.id, part).unwrap();
                }
                inv.set_unattributed(gpu.id, Some(Bytes::ZERO)).unwrap();
            }
            prop_assert!(place(&inv, &head, &BTreeSet::new()).is_ok());
        }
    }
}
