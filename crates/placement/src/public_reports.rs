//! Faults that users of other systems met, one test each: the right answer is kept here. Numbers are those of the
//! collection "Placement, quota, MIG" unless another is named.

use crate::{
    gpu::{Gpu, Service},
    inventory::{Inventory, InventoryError},
    place::place,
    reason::Reason,
    request::validate,
    sample::{card, gpu_id, node_id, part_id, request},
};
use std::collections::BTreeSet;
use types::{Bytes, GpuId};

fn mib(n: u64) -> u64 {
    Bytes::mib(n).0
}

/// GPUs 1 to `gpus` on node 1, each with `bytes` allocatable.
fn pool(gpus: u64, bytes: u64) -> Inventory {
    let mut inv = Inventory::new();
    for gpu in 1..=gpus {
        inv.upsert_gpu(card(gpu, 1, bytes)).unwrap();
    }
    inv
}

/// Places `bytes` on one GPU as part `part`; says where, or the reasons why not.
fn admit(inv: &mut Inventory, part: u64, bytes: u64) -> Result<GpuId, Vec<Reason>> {
    let placed = place(inv, &request(bytes, 1), &BTreeSet::new())
        .map_err(|no| no.reasons.iter().map(|e| e.reason).collect::<Vec<_>>())?;
    inv.add_part(placed.gpus[0], part_id(part), Bytes(bytes)).unwrap();
    Ok(placed.gpus[0])
}

fn free(inv: &Inventory, gpu: u64) -> Bytes {
    inv.gpu(gpu_id(gpu)).unwrap().free()
}

/// 1 (KAI-Scheduler 416): of 24 requests for 2000 MiB, a GPU of 46068 MiB takes 23.
#[test]
fn report_1_mib_are_not_mb() {
    let mut inv = pool(1, mib(46_068));
    let placed = (1..=24).filter(|n| admit(&mut inv, *n, mib(2000)).is_ok());
    assert_eq!(placed.count(), 23);
    assert_eq!(admit(&mut inv, 24, mib(2000)), Err(vec![Reason::Full]));
}

/// 5 (KAI-Scheduler 2153): 16 halves at once on 8 GPUs are 2 on each.
#[test]
fn report_5_halves_pair_up() {
    let mut inv = pool(8, mib(40_000));
    for n in 1..=16 {
        admit(&mut inv, n, mib(20_000)).unwrap();
    }
    assert!(inv.gpus().all(|gpu| gpu.parts().count() == 2));
}

/// 6 and 40 (KAI-Scheduler 2212, nvml-wrapper 57): what the driver keeps is neither granted, nor taken off twice.
#[test]
fn report_6_and_40_the_driver_share_is_never_granted() {
    let (total, driver) = (mib(15_360), mib(450));
    let mut inv = pool(1, total - driver);
    inv.set_unattributed(gpu_id(1), Some(Bytes::ZERO)).unwrap();
    assert_eq!(free(&inv, 1), Bytes(total - driver));
    assert!(admit(&mut inv, 1, total / 2).is_ok());
    assert_eq!(admit(&mut inv, 2, total / 2), Err(vec![Reason::Full]));
    assert!(admit(&mut inv, 3, total / 2 - driver).is_ok());
    assert_eq!(free(&inv, 1), Bytes::ZERO);
}

/// 7 (KAI-Scheduler 1798): amounts that are no number, infinite, negative or nothing.
#[test]
fn report_7_an_amount_is_a_number_above_0() {
    let inv = pool(1, mib(1000));
    for text in ["NaN", "inf", "-inf", "-1", "-0.5", "0.0", "0", "0MiB"] {
        let refused = text.parse::<Bytes>().map_or(true, |bytes| validate(&request(bytes.0, 1), &inv).is_err());
        assert!(refused, "{text}");
    }
}

/// 9 (volcano 5470, 2859): 3000 used of 1000 leaves 0, and takes nothing more.
#[test]
fn report_9_free_memory_does_not_wrap_around() {
    let mut inv = pool(1, 1000);
    admit(&mut inv, 1, 1000).unwrap();
    inv.measured(gpu_id(1), part_id(1), Some(Bytes(3000))).unwrap();
    assert_eq!(free(&inv, 1), Bytes::ZERO);
    assert_eq!(admit(&mut inv, 2, 500), Err(vec![Reason::Full]));
}

/// 10 (volcano 5253, 4809): a part that is told twice counts once; when it has ended nothing of it stays.
#[test]
fn report_10_a_replay_counts_once() {
    let mut inv = pool(1, mib(4000));
    let before = inv.clone();
    let add = |inv: &mut Inventory| inv.add_part(gpu_id(1), part_id(1), Bytes::mib(1000));
    add(&mut inv).unwrap();
    assert!(matches!(add(&mut inv), Err(InventoryError::KnownPart { .. })));
    assert_eq!(free(&inv, 1), Bytes::mib(3000));
    inv.remove_part(gpu_id(1), part_id(1)).unwrap();
    assert_eq!(inv, before);
    add(&mut inv).unwrap();
    assert_eq!(free(&inv, 1), Bytes::mib(3000));
}

/// 13 (HAMi 1106, volcano 5532): the node of a placement is that of its GPUs, and cannot change beneath a part.
#[test]
fn report_13_gpu_and_node_are_one_decision() {
    let mut inv = Inventory::new();
    inv.upsert_gpu(card(1, 114, 1000)).unwrap();
    inv.upsert_gpu(card(2, 117, 1000)).unwrap();
    let pinned = types::Request { node_id: Some(node_id(117)), ..request(10, 1) };
    let placed = place(&inv, &pinned, &BTreeSet::new()).unwrap();
    assert_eq!(placed.gpus, [gpu_id(2)]);
    inv.add_part(gpu_id(2), part_id(1), Bytes(10)).unwrap();
    assert!(inv.upsert_gpu(card(2, 114, 1000)).is_err());
    assert_eq!(inv.gpu(gpu_id(2)).unwrap().node, node_id(117));
}

/// 21 (HAMi 1927, 1898, 1905): who vanishes between placement and start gives all of it back.
#[test]
fn report_21_an_expired_hold_frees_its_gpu() {
    let mut inv = pool(1, 1000);
    let gpu = admit(&mut inv, 1, 1000).unwrap();
    assert_eq!(inv.remove_part(gpu, part_id(1)), Ok(Bytes(1000)));
    assert!(admit(&mut inv, 2, 1000).is_ok());
}

/// 22 (HAMi 1966): the release of a part that nobody knows of frees nothing.
#[test]
fn report_22_an_unknown_release_frees_nothing() {
    let mut inv = pool(1, 1000);
    admit(&mut inv, 1, 1000).unwrap();
    assert!(inv.remove_part(gpu_id(1), part_id(2)).is_err());
    assert_eq!(free(&inv, 1), Bytes::ZERO);
}

/// 23 (HAMi 3041): memory that somebody took past the ledger is no part; it is nobody's, and is not granted again.
#[test]
fn report_23_only_the_ledger_authorises() {
    let mut inv = pool(1, mib(24_000));
    let claimed = inv.measured(gpu_id(1), part_id(1), Some(Bytes::mib(20_000)));
    assert!(matches!(claimed, Err(InventoryError::UnknownPart { .. })));
    inv.set_unattributed(gpu_id(1), Some(Bytes::mib(20_000))).unwrap();
    assert_eq!(free(&inv, 1), Bytes::mib(4000));
    assert_eq!(inv.gpu(gpu_id(1)).unwrap().granted(), Bytes::ZERO);
}

/// 24 (HAMi 2618, NVSentinel 1585): the card that replaces another in its slot is another card, and all free.
#[test]
fn report_24_a_replaced_card_starts_empty() {
    let mut inv = pool(1, 1024);
    admit(&mut inv, 1, 100).unwrap();
    inv.set_service(gpu_id(1), Service::Removed).unwrap();
    inv.upsert_gpu(card(2, 1, 1024)).unwrap();
    assert_eq!(free(&inv, 2), Bytes(1024));
    assert_eq!(admit(&mut inv, 2, 10), Ok(gpu_id(2)));
    assert!(inv.remove_gpu(gpu_id(1)).is_err());
    inv.remove_part(gpu_id(1), part_id(1)).unwrap();
    assert!(inv.remove_gpu(gpu_id(1)).is_ok());
}

/// 27 (gpushare-scheduler-extender 10): a whole card and a share of it exclude each other, whichever comes first.
#[test]
fn report_27_a_whole_card_and_a_share_exclude_each_other() {
    for (first, second) in [(1000, 1), (1, 1000)] {
        let mut inv = pool(1, 1000);
        admit(&mut inv, 1, first).unwrap();
        assert_eq!(admit(&mut inv, 2, second), Err(vec![Reason::Full]));
    }
}

/// 35 (instaslice-operator 614): who asks for two gets two or none.
#[test]
fn report_35_two_or_none() {
    let mut inv = pool(2, 1000);
    let placed = place(&inv, &request(600, 2), &BTreeSet::new()).unwrap();
    assert_eq!(placed.gpus, [gpu_id(1), gpu_id(2)]);
    admit(&mut inv, 1, 600).unwrap();
    assert!(place(&inv, &request(600, 2), &BTreeSet::new()).is_err());
}

/// 36 (instaslice-operator 96): what has not yet reported is waited for, neither used nor taken for nothing.
#[test]
fn report_36_capacity_is_waited_for() {
    let mut inv = pool(1, 1000);
    inv.set_node_service(node_id(1), Service::NotYetReported).unwrap();
    let no_room = place(&inv, &request(600, 1), &BTreeSet::new()).unwrap_err();
    assert!(no_room.ever);
    assert_eq!(no_room.reasons[0].reason, Reason::NotYetReported);
    inv.set_node_service(node_id(1), Service::InService).unwrap();
    assert!(admit(&mut inv, 1, 600).is_ok());
}

/// 39 (k8s-device-plugin 2038, 1014): one sick GPU stops only itself, and is back once uncordoned.
#[test]
fn report_39_one_sick_gpu_stops_only_itself() {
    let mut inv = pool(2, 1000);
    inv.set_service(gpu_id(1), Service::Cordoned).unwrap();
    assert_eq!(admit(&mut inv, 1, 1000), Ok(gpu_id(2)));
    assert_eq!(admit(&mut inv, 2, 1000), Err(vec![Reason::Cordoned, Reason::Full]));
    inv.set_service(gpu_id(1), Service::InService).unwrap();
    assert_eq!(admit(&mut inv, 2, 1000), Ok(gpu_id(1)));
}

/// 42 (Slurm bugs 16356, 16545): counts are exact to the end, and the same after a rebuild.
#[test]
fn report_42_nothing_leaks_and_a_rebuild_keeps_all() {
    let mut inv = pool(2, 1000);
    for n in 1..=20 {
        admit(&mut inv, n, 100).unwrap();
    }
    let mut rebuilt = Inventory::new();
    for gpu in inv.gpus() {
        rebuilt.upsert_gpu(gpu.clone()).unwrap();
        for (part, used) in gpu.parts() {
            rebuilt.add_part(gpu.id, part, used.granted).unwrap();
        }
    }
    assert_eq!(rebuilt, inv);
    let parts: Vec<_> = inv.gpus().flat_map(|gpu| gpu.parts().map(|(part, _)| (gpu.id, part))).collect();
    for (gpu, part) in parts {
        rebuilt.remove_part(gpu, part).unwrap();
    }
    assert_eq!(rebuilt, pool(2, 1000));
}

/// 44 (Olares 3693): a known GPU that is told again, under whatever host name, keeps its parts.
#[test]
fn report_44_a_gpu_that_is_told_again_keeps_its_parts() {
    let mut inv = pool(1, 1000);
    admit(&mut inv, 1, 300).unwrap();
    let again: Gpu = card(1, 1, 1000);
    inv.upsert_gpu(again).unwrap();
    assert_eq!(free(&inv, 1), Bytes(700));
    assert_eq!(inv.gpus().count(), 1);
}

/// "Metering, rating, invoices" 36 (console 6612, HAMi 2363): two decisions for the last place, and one is committed.
#[test]
fn report_metering_36_the_last_place_is_given_once() {
    let mut inv = pool(1, 1000);
    let decided = [1, 2].map(|n| {
        let placed = place(&inv, &request(1000, 1), &BTreeSet::new()).unwrap();
        (placed.gpus[0], part_id(n))
    });
    let committed = decided.map(|(gpu, part)| inv.add_part(gpu, part, Bytes(1000)).is_ok());
    assert_eq!(committed, [true, false]);
}
