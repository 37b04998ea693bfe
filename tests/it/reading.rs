//! Ingest: each reading counts once, in the order of its stream, and no row stands in another's way.

use crate::{
    scheduler::futures,
    world::{Host, World, ask, at, member},
};
use app::{AppError, usage::By};
use sqlx::Row;
use types::{
    AllocationId, ByteMillis, Bytes, Instant, PartId, Span, StreamId, TenantId,
    wire::{BatchAck, Quality, Reading, ReadingBatch},
};

pub const START: &str = "2026-11-10T10:00:00Z";

/// A window all through which `used` bytes were in use.
pub fn reading(part_id: PartId, start: Instant, end: Instant, granted: Bytes, used: Bytes) -> Reading {
    let millis = end.since(start);
    Reading {
        part_id,
        start,
        end,
        granted,
        used: Some(used.over_millis(millis)),
        above: Some(used.less(granted).over_millis(millis)),
        peak: Some(used),
        covered_ms: u32::try_from(millis.max(0)).unwrap(),
        quality: Quality::Measured,
    }
}

pub async fn send(world: &World, host: &Host, batch: &ReadingBatch) -> Result<BatchAck, AppError> {
    app::reading::ingest(&world.app, &host.caller(), batch).await
}

/// A part of 10 GiB that runs since [`START`]; an hour has passed.
struct Part {
    world: World,
    host: Host,
    tenant: TenantId,
    allocation: AllocationId,
    id: PartId,
}

impl Part {
    async fn new() -> Self {
        let mut world = World::new(START).await;
        let host = world.host("host", &[Bytes::gib(80)]).await;
        let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
        let active = world.run(tenant, ask(Bytes::gib(10), 1)).await;
        world.pass(3600);
        world.report(&host, &[active.row.allocation_id]).await;
        Self { world, host, tenant, allocation: active.row.allocation_id, id: active.parts[0].row.part_id }
    }

    /// From minute to minute after the start.
    fn window(&self, from: i64, to: i64, used: Bytes) -> Reading {
        let minute = |n| at(START).plus_secs(60 * n);
        reading(self.id, minute(from), minute(to), Bytes::gib(10), used)
    }

    async fn send(&mut self, readings: Vec<Reading>) -> BatchAck {
        let batch = self.host.batch(self.world.now(), readings);
        send(&self.world, &self.host, &batch).await.unwrap()
    }

    async fn stored(&self) -> Vec<(i64, i64, i64)> {
        let rows = sqlx::query(
            "select (extract(epoch from starts_at) * 1000)::bigint, (extract(epoch from ends_at) * 1000)::bigint, skew_ms
               from reading order by starts_at",
        )
        .fetch_all(&mut self.world.owner().await)
        .await
        .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    async fn set_aside(&self) -> Vec<String> {
        sqlx::query_scalar("select reason from set_aside order by sequence, row_number")
            .fetch_all(&mut self.world.owner().await)
            .await
            .unwrap()
    }
}

fn outcome(ack: &BatchAck) -> (u64, u32, u32) {
    (ack.sequence, ack.accepted, ack.set_aside)
}

/// Lago 4725, cf-abacus 434: the same batch twice is one batch, also when both come at once.
#[tokio::test]
async fn report_29_the_same_batch_twice_counts_once() {
    let mut part = Part::new().await;
    let batch = {
        let reading = part.window(0, 1, Bytes::gib(4));
        part.host.batch(part.world.now(), vec![reading])
    };
    assert_eq!(outcome(&send(&part.world, &part.host, &batch).await.unwrap()), (1, 1, 0));
    // sent again later, from the spool
    part.world.pass(50);
    let again = ReadingBatch { sent_at: part.world.now(), ..batch };
    assert_eq!(outcome(&send(&part.world, &part.host, &again).await.unwrap()), (1, 0, 0));
    assert_eq!(part.stored().await.len(), 1);

    let next = part.window(1, 2, Bytes::gib(4));
    let next = part.host.batch(part.world.now(), vec![next]);
    let acks = futures((0..6).map(|_| send(&part.world, &part.host, &next))).await;
    let accepted: u32 = acks.into_iter().map(|ack| ack.unwrap().accepted).sum();
    assert_eq!(accepted, 1);
    assert_eq!(part.stored().await.len(), 2);
}

#[tokio::test]
async fn a_gap_in_a_stream_names_the_expected_batch_and_changes_nothing() {
    let mut part = Part::new().await;
    let first = part.window(0, 1, Bytes::gib(4));
    let batch = |sequence, stream_id| ReadingBatch {
        stream_id,
        run_id: None,
        sequence,
        sent_at: part.world.now(),
        readings: vec![first.clone()],
    };
    let stream = part.host.stream;
    for (sequence, expected) in [(2, 1), (9, 1)] {
        let gap = send(&part.world, &part.host, &batch(sequence, stream)).await;
        assert!(matches!(gap, Err(AppError::SequenceGap { expected: e }) if e == expected), "{gap:?}");
    }
    send(&part.world, &part.host, &batch(1, stream)).await.unwrap();
    let gap = send(&part.world, &part.host, &batch(3, stream)).await;
    assert!(matches!(gap, Err(AppError::SequenceGap { expected: 2 })), "{gap:?}");
    let zero = send(&part.world, &part.host, &batch(0, stream)).await;
    assert!(matches!(zero, Err(AppError::Invalid(_))), "{zero:?}");
    assert_eq!(part.stored().await.len(), 1);
    part.host.sequence = 1;
    let next = part.window(1, 2, Bytes::gib(4));
    assert_eq!(outcome(&part.send(vec![next]).await), (2, 1, 0));
}

#[tokio::test]
async fn another_nodes_stream_is_none_of_yours() {
    let mut part = Part::new().await;
    let first = part.window(0, 1, Bytes::gib(4));
    part.send(vec![first]).await;
    let stranger = part.world.host("stranger", &[]).await;
    let next = ReadingBatch {
        stream_id: part.host.stream,
        run_id: None,
        sequence: 2,
        sent_at: part.world.now(),
        readings: vec![],
    };
    let foreign = send(&part.world, &stranger, &next).await;
    assert!(matches!(foreign, Err(AppError::NotFound("stream"))), "{foreign:?}");
    let tenant = app::reading::ingest(&part.world.app, &member(part.tenant), &next).await;
    assert!(matches!(tenant, Err(AppError::Forbidden)), "{tenant:?}");
    assert_eq!(outcome(&send(&part.world, &part.host, &next).await.unwrap()), (2, 0, 0));
}

/// No batch blocks its node: what cannot be true is set aside row by row, with its reason.
#[tokio::test]
async fn impossible_rows_are_set_aside_one_by_one() {
    let mut part = Part::new().await;
    let gib = Bytes::gib;
    let unknown = PartId(uuid::Uuid::from_u128(5));
    let rows = vec![
        part.window(0, 1, gib(4)),
        part.window(0, 1, gib(4)),
        part.window(1, 1, gib(4)),
        part.window(1, 2, gib(81)),
        part.window(59, 61, gib(4)),
        part.window(-5, -4, gib(4)),
        Reading { part_id: unknown, ..part.window(1, 2, gib(4)) },
        Reading { used: None, ..part.window(1, 2, gib(4)) },
        part.window(1, 2, gib(12)),
    ];
    assert_eq!(outcome(&part.send(rows).await), (1, 2, 7));
    let reasons = ["overlap", "too_long", "above_device", "future", "before_active", "unknown_part", "inconsistent"];
    assert_eq!(part.set_aside().await, reasons);
    // a batch of nothing but rows that nobody knows goes through, too
    let only_unknown = Reading { part_id: unknown, ..part.window(2, 3, gib(4)) };
    assert_eq!(outcome(&part.send(vec![only_unknown]).await), (2, 0, 1));
}

#[tokio::test]
async fn another_nodes_parts_are_set_aside() {
    let part = Part::new().await;
    let mut stranger = part.world.host("stranger", &[Bytes::gib(80)]).await;
    let batch = stranger.batch(part.world.now(), vec![part.window(0, 1, Bytes::gib(4))]);
    let ack = send(&part.world, &stranger, &batch).await.unwrap();
    assert_eq!(outcome(&ack), (1, 0, 1));
    assert_eq!(part.set_aside().await, ["unknown_part"]);
    // nobody's reading yet, so no tenant's invoice waits for it
    let tenants: Vec<Option<uuid::Uuid>> =
        sqlx::query_scalar("select tenant_id from set_aside").fetch_all(&mut part.world.owner().await).await.unwrap();
    assert_eq!(tenants, [None]);
}

#[tokio::test]
async fn skew_is_measured_corrected_flagged_and_at_last_refused() {
    let mut part = Part::new().await;
    let start = at(START).as_millis();
    for (n, (skew_ms, correction)) in [(1500, 0), (5000, 5000), (-60_000, -60_000), (2000, 0)].into_iter().enumerate() {
        let minute = i64::try_from(n).unwrap() * 3;
        let window = part.window(minute, minute + 1, Bytes::gib(4));
        let batch = part.host.batch(part.world.now().plus_millis(-skew_ms), vec![window]);
        let ack = send(&part.world, &part.host, &batch).await.unwrap();
        assert_eq!((ack.skew_ms, ack.accepted), (skew_ms, 1));
        let from = start + minute * 60_000 + correction;
        assert!(part.stored().await.contains(&(from, from + 60_000, correction)), "{:?}", part.stored().await);
    }
    let window = part.window(20, 21, Bytes::gib(4));
    let batch = part.host.batch(part.world.now().plus_millis(-60_001), vec![window]);
    assert_eq!(outcome(&send(&part.world, &part.host, &batch).await.unwrap()), (5, 0, 1));
    assert_eq!(part.set_aside().await, ["skew"]);
}

/// A clock that hovers around the tolerance is corrected in one batch and not in the next: nothing is lost or billed
/// twice by that, and the invoice comes.
#[tokio::test]
async fn a_clock_at_the_edge_of_the_tolerance_harms_no_invoice() {
    let mut part = Part::new().await;
    for minute in 0..10 {
        let skew = if minute % 2 == 0 { 2001 } else { 1999 };
        let window = part.window(minute, minute + 1, Bytes::gib(12));
        let batch = part.host.batch(part.world.now().plus_millis(-skew), vec![window]);
        assert_eq!(send(&part.world, &part.host, &batch).await.unwrap().accepted, 1);
    }
    part.world.release(part.allocation).await;
    part.world.pass_to("2026-12-01T00:00:00Z");
    let (row, _, _) =
        app::invoice::issue(&part.world.app, &app::Caller::system(), part.tenant, "2026-11", None).await.unwrap();
    let above: rust_decimal::Decimal = sqlx::query_scalar("select sum(quantity) from charge where kind = 'above'")
        .fetch_one(&mut part.world.owner().await)
        .await
        .unwrap();
    assert_eq!(above.to_string(), Bytes::gib(2).over_millis(600_000).to_string());
    let verified = app::invoice::verify(&part.world.app, &app::Caller::system(), row.invoice_id).await.unwrap();
    assert_eq!(verified.differences, [""; 0]);
}

/// Unknown is not zero: it is absent, and shown as time of which nobody can tell.
#[tokio::test]
async fn unknown_use_is_not_zero() {
    let mut part = Part::new().await;
    let unknown = Reading {
        used: None,
        above: None,
        peak: None,
        covered_ms: 0,
        quality: Quality::Unknown,
        ..part.window(0, 2, Bytes::ZERO)
    };
    let known = part.window(2, 3, Bytes::gib(12));
    let in_part = Reading {
        covered_ms: 45_000,
        used: Some(Bytes::gib(4).over_millis(45_000)),
        ..part.window(3, 4, Bytes::gib(4))
    };
    assert_eq!(outcome(&part.send(vec![unknown, known, in_part]).await), (1, 3, 0));
    let hour = Span::new(at(START), at(START).plus_secs(3600)).unwrap();
    let usage = app::usage::usage(&part.world.app, &member(part.tenant), None, hour, By::Project).await.unwrap();
    let row = &usage.rows[0];
    assert_eq!(row.unknown_ms, 120_000 + 15_000);
    assert_eq!(row.used, Bytes::gib(12).over_millis(60_000) + Bytes::gib(4).over_millis(45_000));
    assert_eq!(row.above, Bytes::gib(2).over_millis(60_000));
    assert_eq!(row.peak, Some(Bytes::gib(12)));
    assert_eq!(row.reserved, Bytes::gib(10).over_millis(3_600_000));
}

/// gpustack 6058 and 5710: a part sees its own use, and an hour that it runs through is a whole hour.
#[tokio::test]
async fn reports_48_and_50_an_hour_is_an_hour_and_a_part_is_a_part() {
    let mut part = Part::new().await;
    let readings = (0..60).map(|n| part.window(n, n + 1, Bytes::gib(10))).collect();
    part.send(readings).await;
    let day = Span::new(at("2026-11-10T00:00:00Z"), at("2026-11-11T00:00:00Z")).unwrap();
    let usage = app::usage::usage(&part.world.app, &member(part.tenant), None, day, By::Hour).await.unwrap();
    let hours: Vec<(&str, ByteMillis, ByteMillis)> =
        usage.rows.iter().map(|row| (row.key.as_str(), row.reserved, row.used)).collect();
    let whole = Bytes::gib(10).over_millis(3_600_000);
    assert_eq!(hours, [(START, whole, whole)]);
}

/// The spool of another disk is another stream; what was read once is not read again by it.
#[tokio::test]
async fn report_33_two_exporters_on_one_node_count_once() {
    let mut part = Part::new().await;
    let window = part.window(0, 1, Bytes::gib(4));
    part.send(vec![window.clone()]).await;
    let other = ReadingBatch {
        stream_id: StreamId(uuid::Uuid::from_u128(9)),
        run_id: None,
        sequence: 1,
        sent_at: part.world.now(),
        readings: vec![window],
    };
    assert_eq!(outcome(&send(&part.world, &part.host, &other).await.unwrap()), (1, 0, 1));
    assert_eq!(part.set_aside().await, ["overlap"]);
}
