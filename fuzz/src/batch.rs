//! Batches of readings with any values: each row is judged once, and what is accepted can be true, row by row and in sum.

use crate::draw::Draw;
use metering::ingest::{self, Judged, KnownPart, MAX_WINDOW_MS, TIME_TOLERANCE_MS};
use std::collections::BTreeMap;
use types::{
    AllocationId, ByteMillis, GpuId, Instant, PartId, ProjectId, TenantId,
    wire::{Quality, Reading},
};
use uuid::Uuid;

pub(crate) fn run(data: &[u8]) {
    let mut draw = Draw(data);
    let now = Instant::from_millis(1_700_000_000_000).unwrap().plus_millis(draw.number());
    let skew_ms = draw.number();
    let known: BTreeMap<PartId, KnownPart> = (0..3).map(|n| (part(n), known_part(&mut draw, now))).collect();
    let mut batch = Vec::new();
    while !draw.is_empty() && batch.len() < 64 {
        batch.push(reading(&mut draw, now));
    }
    let judged = ingest::judge(&batch, |id| known.get(id).copied(), now, skew_ms);
    each_is_judged_once(&judged, batch.len());
    for accepted in &judged.accepted {
        can_be_true(&accepted.reading, &accepted.part, now);
    }
    sums_hold(&judged, &known);
    let (mark, got) = (draw.u64(), draw.u64());
    if let ingest::Sequence::Gap { expected } = ingest::sequence(mark, got) {
        assert!(mark < expected && expected < got);
    }
}

fn part(n: u8) -> PartId {
    PartId(Uuid::from_u128(u128::from(n)))
}

fn known_part(draw: &mut Draw<'_>, now: Instant) -> KnownPart {
    KnownPart {
        tenant_id: TenantId(Uuid::nil()),
        project_id: ProjectId(Uuid::nil()),
        allocation_id: AllocationId(Uuid::nil()),
        gpu_id: GpuId(Uuid::nil()),
        device_bytes: draw.bytes(),
        active_from: draw.instant(now),
        ended: draw.flip().then(|| draw.instant(now)),
        read_to: draw.flip().then(|| draw.instant(now)),
    }
}

fn reading(draw: &mut Draw<'_>, now: Instant) -> Reading {
    let start = draw.instant(now);
    let quantity =
        |draw: &mut Draw<'_>| draw.flip().then(|| ByteMillis(i128::from(draw.number()) * i128::from(draw.number())));
    Reading {
        part_id: part(draw.byte() % 4),
        start,
        end: draw.instant(start),
        granted: draw.bytes(),
        used: quantity(draw),
        above: quantity(draw),
        peak: draw.flip().then(|| draw.bytes()),
        covered_ms: u32::try_from(draw.number().unsigned_abs() % (1 << 32)).unwrap(),
        quality: [Quality::Measured, Quality::Estimated, Quality::Unknown][usize::from(draw.byte() % 3)],
    }
}

fn each_is_judged_once(judged: &Judged, rows: usize) {
    let accepted = judged.accepted.iter().map(|a| a.index);
    let mut judged: Vec<usize> = accepted.chain(judged.set_aside.iter().map(|(index, _)| *index)).collect();
    judged.sort_unstable();
    assert!(judged.into_iter().eq(0..rows));
}

fn can_be_true(reading: &Reading, part: &KnownPart, now: Instant) {
    let window = reading.end.since(reading.start);
    assert!(window > 0 && window <= MAX_WINDOW_MS, "{reading:?}");
    assert!(reading.end.since(now) <= TIME_TOLERANCE_MS, "{reading:?}");
    assert!(i64::from(reading.covered_ms) <= window && reading.granted <= part.device_bytes, "{reading:?}");
    let most = part.device_bytes.over_millis(window);
    match (reading.used, reading.above, reading.peak) {
        (Some(used), Some(above), Some(peak)) => {
            assert!(ByteMillis::ZERO <= above && above <= used && used <= most, "{reading:?}");
            assert!(peak <= part.device_bytes && used <= peak.over_millis(window), "{reading:?}");
        }
        (None, None, None) => assert_eq!(reading.quality, Quality::Unknown),
        _ => panic!("half of the quantities are there: {reading:?}"),
    }
}

/// No part used more than its card over the time from its first window to its last, and no two windows share time.
fn sums_hold(judged: &Judged, known: &BTreeMap<PartId, KnownPart>) {
    for (id, part) in known {
        let rows: Vec<_> = judged.accepted.iter().filter(|a| a.reading.part_id == *id).collect();
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        assert!(part.read_to.is_none_or(|read_to| first.read_to > read_to));
        assert!(rows.windows(2).all(|w| w[0].reading.end <= w[1].reading.start), "{rows:?}");
        let used: ByteMillis = rows.iter().filter_map(|a| a.reading.used).sum();
        let most = part.device_bytes.over_millis(last.reading.end.since(first.reading.start));
        assert!(used <= most, "{rows:?}");
    }
}
