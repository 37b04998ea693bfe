use super::*;
use types::{ByteMillis, GpuId, NodeId, ProjectId, TenantId, wire::Quality};
use uuid::Uuid;

const MINUTE: i64 = 60;

fn at(secs: i64) -> Instant {
    Instant::from_millis(1_700_000_040_000 + secs * 1000).unwrap() // a whole minute
}

fn gpu(n: u8) -> GpuUuid {
    format!("GPU-00000000-0000-0000-0000-0000000000{n:02}").parse().unwrap()
}

fn allocation(n: u128) -> AllocationId {
    AllocationId(Uuid::from_u128(n))
}

/// Part `n` of allocation `n` on card 1, active since `since`.
fn order(n: u128, since: Option<i64>) -> PartOrder {
    PartOrder {
        tenant_id: TenantId(Uuid::nil()),
        project_id: ProjectId(Uuid::nil()),
        allocation_id: allocation(n),
        part_id: PartId(Uuid::from_u128(n)),
        gpu_id: GpuId(Uuid::nil()),
        gpu_uuid: gpu(1),
        bytes: Bytes(100),
        active_since: since.map(at),
        ends_by: None,
    }
}

fn orders(server_time: i64, parts: &[PartOrder]) -> NodeOrders {
    NodeOrders {
        node_id: NodeId(Uuid::nil()),
        server_time: at(server_time),
        parts: parts.to_vec(),
        rotate_credential: false,
    }
}

fn card(n: u8, users: Users) -> Card {
    Card {
        report: GpuReport {
            uuid: gpu(n),
            model: "NVIDIA A30".parse().unwrap(),
            memory_total: Bytes(1000),
            driver_overhead: Some(Bytes(10)),
            memory_used: Some(Bytes(500)),
        },
        users,
    }
}

fn process(pid: u32, start_ticks: u64) -> ProcessId {
    ProcessId { boot_id: "boot".parse().unwrap(), pid, start_ticks, uid: 1000 }
}

/// Processes 10 (bound in these tests) with a child 11, and 20, which belongs to nobody.
fn stat_of(pid: u32) -> Option<ProcessStat> {
    let (parent, start_ticks) = match pid {
        10 => (1, 100),
        11 => (10, 110),
        20 => (1, 90),
        _ => return None,
    };
    Some(ProcessStat { pid, parent, state: 'S', start_ticks })
}

fn nobody(_: u32) -> Option<ProcessStat> {
    None
}

fn node(source_is_workload: bool) -> Node {
    Node::new("boot".parse().unwrap(), source_is_workload, WindowLength::MINUTE, 15_000)
}

/// One exchange of report and orders.
fn exchange(node: &mut Node, now: i64, parts: &[PartOrder]) -> NodeReport {
    let report = node.report(at(now));
    node.take_orders(&report, orders(now, parts), at(now));
    report
}

fn processes(list: &[(u32, Option<u64>)]) -> Option<Vec<Card>> {
    let list = list.iter().map(|(pid, b)| (*pid, b.map(Bytes))).collect();
    Some(vec![card(1, Users::Processes(list))])
}

/// Metered from 0 to 10 s with this one sample at 5 s.
fn used_in_ten_seconds(node: &mut Node, cards: Option<Vec<Card>>) -> Option<ByteMillis> {
    node.take_sample(at(5), cards, &stat_of);
    node.close_all(at(10));
    let closed = node.take_closed();
    assert_eq!(closed.len(), 1);
    closed[0].used
}

fn bound_node() -> Node {
    let mut node = node(false);
    exchange(&mut node, 0, &[order(1, Some(0)), order(2, Some(0))]);
    node.bind(allocation(1), process(10, 100), at(0)).unwrap();
    node
}

fn used_of_first(cards: Option<Vec<Card>>) -> Option<ByteMillis> {
    let mut node = bound_node();
    node.orders.remove(&PartId(Uuid::from_u128(2)));
    node.meters.remove(&PartId(Uuid::from_u128(2)));
    used_in_ten_seconds(&mut node, cards)
}

/// dcgm-exporter 587, gpustack 6058: a part is worth what its own processes use, not what the card says.
#[test]
fn a_part_is_worth_its_own_processes_and_their_children() {
    let cards = processes(&[(10, Some(5)), (11, Some(7)), (20, Some(300))]);
    assert_eq!(used_of_first(cards), Some(ByteMillis(12 * 10_000)));
    // a whole list without any of them is a measured nothing
    assert_eq!(used_of_first(processes(&[(20, Some(300))])), Some(ByteMillis(0)));
}

#[test]
fn what_cannot_be_told_is_unknown() {
    assert_eq!(used_of_first(processes(&[(10, None)])), None);
    assert_eq!(used_of_first(Some(vec![card(1, Users::Unavailable("why"))])), None);
    // the card is gone, another is there
    assert_eq!(used_of_first(Some(vec![card(2, Users::Processes(Vec::new()))])), None);
    assert_eq!(used_of_first(None), None);
    // nobody is bound
    let mut node = node(false);
    exchange(&mut node, 0, &[order(1, Some(0))]);
    assert_eq!(used_in_ten_seconds(&mut node, processes(&[(20, Some(300))])), None);
}

#[test]
fn a_source_that_fails_keeps_the_cards_and_forgets_their_use() {
    let mut node = node(false);
    assert!(node.take_sample(at(0), processes(&[]), &nobody));
    assert!(!node.take_sample(at(5), processes(&[]), &nobody));
    assert!(!node.take_sample(at(10), None, &nobody));
    let report = node.report(at(10));
    assert_eq!(report.gpus.len(), 1);
    assert_eq!(report.gpus[0].memory_used, None);
    assert!(node.take_sample(at(15), Some(Vec::new()), &nobody));
}

#[test]
fn only_the_first_process_is_bound() {
    let mut node = bound_node();
    let bind = |node: &mut Node, n, process| node.bind(allocation(n), process, at(1));
    assert_eq!(bind(&mut node, 1, process(10, 100)).map(|p| p.len()), Ok(1));
    assert_eq!(bind(&mut node, 1, process(10, 101)), Err(BindError::Taken));
    assert_eq!(bind(&mut node, 7, process(20, 90)), Err(BindError::Unknown));
    assert!(node.ended(allocation(1), &process(10, 100), at(2)));
    assert_eq!(bind(&mut node, 1, process(20, 90)), Err(BindError::Ended));
}

#[test]
fn bound_workloads_live_until_their_process_ends() {
    let mut node = bound_node();
    // 2 is active and nobody has bound it
    assert_eq!(node.report(at(1)).alive, [allocation(1)]);
    assert!(!node.check_bound(at(3), &stat_of));
    assert!(node.check_bound(at(4), &nobody));
    let report = exchange(&mut node, 5, &[order(1, Some(0)), order(2, Some(0))]);
    assert!(report.alive.is_empty());
    // it ended when it was last seen
    let exit = Exit { allocation_id: allocation(1), at: at(3) };
    assert_eq!(report.exited, [exit]);
    // told again until the server no longer orders it, and then no more
    assert_eq!(exchange(&mut node, 6, &[order(2, Some(0))]).exited.len(), 1);
    assert!(node.report(at(7)).exited.is_empty());
}

/// A reused pid is another process: the bound one has ended.
#[test]
fn a_reused_pid_does_not_live_on() {
    let mut node = bound_node();
    let reused = |pid| stat_of(pid).map(|stat| ProcessStat { start_ticks: 999, ..stat });
    assert!(node.check_bound(at(4), &reused));
}

#[test]
fn the_meter_stops_at_the_exit() {
    let mut node = bound_node();
    node.take_sample(at(5), processes(&[(10, Some(50))]), &stat_of);
    node.ended(allocation(1), &process(10, 100), at(8));
    // the server still orders it: its meter does not begin again
    exchange(&mut node, 9, &[order(1, Some(0))]);
    node.take_sample(at(10), processes(&[]), &stat_of);
    node.close_all(at(11));
    let closed = node.take_closed();
    assert_eq!(closed.len(), 1);
    assert_eq!((closed[0].end, closed[0].covered_ms), (at(8), 8_000));
}

#[test]
fn simulated_parts_live_while_they_are_active() {
    let mut node = node(true);
    let parts = BTreeMap::from([(PartId(Uuid::from_u128(1)), Bytes(70))]);
    exchange(&mut node, 0, &[order(1, Some(0)), order(2, None)]);
    assert_eq!(node.report(at(1)).alive, [allocation(1)]);
    let cards = Some(vec![card(1, Users::Parts(parts))]);
    assert_eq!(used_in_ten_seconds(&mut node, cards), Some(ByteMillis(700_000)));
}

#[test]
fn metering_begins_with_the_part_and_never_before_the_agent() {
    let mut node = node(true);
    exchange(&mut node, 30, &[order(1, Some(0))]);
    exchange(&mut node, 40, &[order(1, Some(0)), order(2, Some(38))]);
    node.close_all(at(50));
    let starts: Vec<_> = node.take_closed().iter().map(|r| r.start).collect();
    assert_eq!(starts, [at(30), at(38)]);
}

/// A part leaves the orders some time after it ended: a window that may lie wholly after its end is not told.
#[test]
fn no_window_begins_after_the_part_was_last_listed() {
    let sample = |node: &mut Node, now| {
        let parts = BTreeMap::from([(PartId(Uuid::from_u128(1)), Bytes(70))]);
        node.take_sample(at(now), Some(vec![card(1, Users::Parts(parts))]), &nobody);
    };
    let run = |last_listed, last_sample| {
        let mut node = node(true);
        exchange(&mut node, 0, &[order(1, Some(0))]);
        for now in (0..last_listed).step_by(5) {
            sample(&mut node, now);
        }
        exchange(&mut node, last_listed, &[order(1, Some(0))]);
        sample(&mut node, last_sample);
        exchange(&mut node, last_sample + 1, &[]);
        node.close_all(at(last_sample + 9));
        node.take_closed()
    };
    let across = run(MINUTE - 2, MINUTE + 2);
    assert_eq!(across.len(), 1);
    assert_eq!(across[0].end, at(MINUTE));
    let within = run(MINUTE + 1, MINUTE + 3);
    assert_eq!(within.len(), 2);
    assert_eq!((within[1].start, within[1].end), (at(MINUTE), at(MINUTE + 3)));
}

#[test]
fn a_resized_part_gets_windows_of_its_own() {
    let mut node = node(true);
    exchange(&mut node, 0, &[order(1, Some(0))]);
    let resized = PartOrder { bytes: Bytes(200), ..order(1, Some(0)) };
    let report = node.report(at(10));
    assert!(node.take_orders(&report, orders(10, std::slice::from_ref(&resized)), at(10)));
    assert!(!node.take_orders(&report, orders(11, &[resized]), at(11)));
    node.close_all(at(20));
    let windows: Vec<_> = node.take_closed().iter().map(|r| (r.granted, r.end, r.quality)).collect();
    assert_eq!(windows, [(Bytes(100), at(10), Quality::Unknown), (Bytes(200), at(20), Quality::Unknown)]);
}

#[test]
fn an_agent_that_starts_anew_knows_the_processes_that_still_live() {
    let bindings = vec![
        (allocation(1), process(10, 100)),
        (allocation(2), process(20, 1)),
        (allocation(3), ProcessId { boot_id: "another boot".parse().unwrap(), ..process(11, 110) }),
    ];
    let mut node = node(false);
    node.restore(bindings, at(0), &stat_of);
    let parts = [order(1, Some(0)), order(2, Some(0)), order(3, Some(0))];
    exchange(&mut node, 0, &parts);
    let report = node.report(at(1));
    assert_eq!(report.alive, [allocation(1)]);
    assert!(report.exited.is_empty());
}

#[test]
fn readings_that_found_no_room_come_out_first_and_are_bounded() {
    let mut node = node(true);
    exchange(&mut node, 0, &[order(1, Some(0))]);
    node.close_all(at(10));
    let early = node.take_closed();
    exchange(&mut node, 20, &[order(1, Some(20))]);
    node.close_all(at(30));
    assert_eq!(node.put_back(&early, 1), 0);
    assert_eq!(node.put_back(&early, 2), 1);
    let ends: Vec<_> = node.take_closed().iter().map(|r| r.end).collect();
    assert_eq!(ends, [at(10), at(30)]);
}
