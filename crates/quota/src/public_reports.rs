//! Faults that users of other systems met, one test each: the right answer is kept here. Numbers are those of the
//! collection "Placement, quota, MIG" unless another is named.

use crate::{
    decide::{Account, Ask, Level, Limits, Use, decide},
    life,
};
use types::{AllocationState, Bytes, Cause, Request};

fn tenant(limits: Limits, used: Use) -> Account {
    Account { level: Level::Tenant, limits, used }
}

fn at_once(bytes: Bytes) -> Limits {
    Limits { bytes: Some(bytes), ..Limits::default() }
}

fn request(memory: Bytes, gpus: u32) -> Request {
    Request { memory, gpus, model: None, node_id: None, max_duration_s: None }
}

/// 3 (KAI-Scheduler 1370): 60 of 100 MiB on each of two devices is 1.2 GPUs.
#[test]
fn report_3_each_device_of_a_request_counts() {
    let one_gpu = tenant(at_once(Bytes::mib(100)), Use::default());
    let ask = Ask::from(&request(Bytes::mib(60), 2));
    assert_eq!(decide(&[one_gpu], ask).unwrap_err()[0].asked, Bytes::mib(120).0);
}

/// 14 (HAMi 2386): an edit of a limit leaves no moment without one, and keeps the use.
#[test]
fn report_14_an_edit_leaves_no_moment_without_a_limit() {
    let used = Use { bytes: Bytes::mib(3000), allocations: 1 };
    let mut account = tenant(at_once(Bytes::mib(3000)), used);
    for n in 0..50_000 {
        account.limits = at_once(Bytes::mib(if n % 2 == 0 { 2000 } else { 3000 }));
        assert!(decide(&[account], Ask { bytes: Bytes(1) }).is_err());
    }
    assert_eq!(account.used, used);
}

/// 15 (HAMi 2313): 0 is nothing, not unlimited.
#[test]
fn report_15_a_limit_of_0_denies() {
    let ask = Ask { bytes: Bytes::mib(500) };
    let zero = [
        at_once(Bytes::ZERO),
        Limits { workload_bytes: Some(Bytes::ZERO), ..Limits::default() },
        Limits { allocations: Some(0), ..Limits::default() },
    ];
    for limits in zero {
        assert!(decide(&[tenant(limits, Use::default())], ask).is_err(), "{limits:?}");
    }
    assert_eq!(decide(&[tenant(Limits::default(), Use::default())], ask), Ok(()));
}

/// 17 (HAMi 1393): two GPUs of 2048 use 4096.
#[test]
fn report_17_two_gpus_use_twice_the_memory() {
    let mut used = Use::default();
    used.take(Ask::from(&request(Bytes::mib(2048), 2)));
    assert_eq!(used.bytes, Bytes::mib(4096));
}

/// 18 (HAMi 2536): a request for a whole card is bytes like any other.
#[test]
fn report_18_a_whole_card_does_not_skip_the_quota() {
    let whole_card = Ask::from(&request(Bytes::mib(46_068), 1));
    let account = tenant(at_once(Bytes::mib(46_067)), Use::default());
    assert!(decide(&[account], whole_card).is_err());
}

/// 21 (HAMi 1927, 1898, 1905): who vanishes between placement and start leaves nothing.
#[test]
fn report_21_an_expired_hold_restores_the_use() {
    let ask = Ask { bytes: Bytes::gib(4) };
    let mut used = Use::default();
    used.take(ask);
    let state = life::next(AllocationState::Held, Cause::HoldGrace).unwrap();
    assert_eq!(state, AllocationState::Expired);
    used.give_back(ask.bytes).unwrap();
    assert_eq!(used, Use::default());
}

/// 22 (HAMi 1966): a release that nobody knows of does not make the quota grow.
#[test]
fn report_22_use_is_never_negative() {
    let mut used = Use::default();
    let error = used.give_back(Bytes::mib(1)).unwrap_err();
    assert_eq!(error.given_back, Bytes::mib(1));
    assert_eq!(used, Use::default());
    used.take(Ask { bytes: Bytes::mib(2) });
    let before = used;
    assert!(used.give_back(Bytes::mib(3)).is_err());
    assert_eq!(used, before);
}

/// 41 (Slurm's `resource_limits.shtml`): naming no model does not dodge a limit.
#[test]
fn report_41_a_request_without_a_model_counts_too() {
    let untyped = request(Bytes::gib(1), 2);
    let typed = Request { model: Some("Tesla T4".parse().unwrap()), ..untyped.clone() };
    let account = tenant(at_once(Bytes::gib(1)), Use::default());
    assert_eq!(decide(&[account], Ask::from(&untyped)), decide(&[account], Ask::from(&typed)));
    assert!(decide(&[account], Ask::from(&untyped)).is_err());
}

/// "Metering, rating, invoices" 45 (openmeter 4712): 99.3 of 100 GB leave 0.7, whatever an invoice rounds to.
#[test]
fn report_metering_45_limits_are_compared_unrounded() {
    let used = Use { bytes: Bytes(99_300_000_000), allocations: 1 };
    let account = tenant(at_once(Bytes(100_000_000_000)), used);
    assert_eq!(decide(&[account], Ask { bytes: Bytes(700_000_000) }), Ok(()));
    assert!(decide(&[account], Ask { bytes: Bytes(700_000_001) }).is_err());
}
