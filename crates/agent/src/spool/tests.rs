use super::*;
use types::{Bytes, Instant, PartId, wire::Quality};
use uuid::Uuid;

const LIMIT: u64 = 4 << 20;

fn stream(n: u128) -> StreamId {
    StreamId(Uuid::from_u128(n))
}

fn readings(n: u128) -> Vec<Reading> {
    vec![Reading {
        part_id: PartId(Uuid::from_u128(n)),
        start: Instant::EPOCH,
        end: Instant::EPOCH.plus_secs(60),
        granted: Bytes(1),
        used: None,
        above: None,
        peak: None,
        covered_ms: 0,
        quality: Quality::Unknown,
    }]
}

fn open(folder: &Path) -> Spool {
    Spool::open(folder, stream(1), LIMIT).unwrap()
}

/// All that the spool still holds, taken out one by one.
fn drain(spool: &mut Spool) -> Vec<(u64, Vec<Reading>)> {
    let mut batches = Vec::new();
    while let Some(batch) = spool.front().unwrap() {
        spool.acknowledge(batch.sequence).unwrap();
        batches.push((batch.sequence, batch.readings));
    }
    batches
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn only_segment(folder: &Path) -> PathBuf {
    let segments = files(&folder.join(stream(1).to_string()));
    assert_eq!(segments.len(), 1);
    segments[0].clone()
}

#[test]
fn batches_come_out_as_they_went_in_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    for n in 1..=3 {
        assert_eq!(spool.append(&readings(n)).unwrap(), n as u64);
    }
    spool.acknowledge(1).unwrap();
    drop(spool);

    // the acknowledged batch is offered again, because its segment holds others: the server knows it
    let mut spool = Spool::open(folder.path(), stream(9), LIMIT).unwrap();
    assert_eq!(spool.stream_id(), stream(1));
    assert_eq!(drain(&mut spool), [(1, readings(1)), (2, readings(2)), (3, readings(3))]);
    assert!(files(&folder.path().join(stream(1).to_string())).is_empty());
    drop(spool);

    // nothing is left on disk, and still no sequence is used twice
    assert_eq!(open(folder.path()).append(&readings(4)).unwrap(), 4);
}

#[test]
fn a_record_that_a_crash_tore_is_cut_off_wherever_it_tore() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    spool.append(&readings(1)).unwrap();
    let whole = fs::read(only_segment(folder.path())).unwrap();
    spool.append(&readings(2)).unwrap();
    let both = fs::read(only_segment(folder.path())).unwrap();
    drop(spool);
    for torn in whole.len()..both.len() {
        fs::write(only_segment(folder.path()), &both[..torn]).unwrap();
        let spool = open(folder.path());
        assert_eq!(spool.newest(), 1, "torn at {torn}");
        assert_eq!(fs::read(only_segment(folder.path())).unwrap().len(), whole.len());
    }
    let mut spool = open(folder.path());
    // the torn append had not returned, so its sequence is free
    assert_eq!(spool.append(&readings(3)).unwrap(), 2);
    assert_eq!(drain(&mut spool), [(1, readings(1)), (2, readings(3))]);
}

#[test]
fn a_damaged_record_is_never_taken_for_a_sound_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    spool.append(&readings(1)).unwrap();
    let path = only_segment(folder.path());
    let sound = fs::read(&path).unwrap();
    for index in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[index] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        match spool.front() {
            Err(SpoolError::Damaged(1)) => {}
            other => panic!("byte {index}: {other:?}"),
        }
    }
}

#[test]
fn segments_are_closed_and_removed_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    let large: Vec<Reading> = readings(1).into_iter().cycle().take(2_500).collect();
    for _ in 0..6 {
        spool.append(&large).unwrap();
    }
    let segments = || files(&folder.path().join(stream(1).to_string())).len();
    let all = segments();
    assert!(all > 1, "{all}");
    spool.acknowledge(3).unwrap();
    assert!(segments() < all);
    spool.acknowledge(6).unwrap();
    assert_eq!(segments(), 0);
}

#[test]
fn a_full_spool_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), stream(1), 700).unwrap();
    let mut kept = 0;
    let error = loop {
        match spool.append(&readings(kept + 1)) {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SpoolError::Full { limit: 700, .. }));
    assert!(kept > 0);
    spool.acknowledge(1).unwrap();
    assert_eq!(spool.append(&readings(9)).unwrap(), kept as u64 + 1);
    assert_eq!(drain(&mut spool)[0], (2, readings(2)));
}

#[test]
fn a_new_stream_takes_over_what_is_not_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    for n in 1..=4 {
        spool.append(&readings(n)).unwrap();
    }
    spool.acknowledge(1).unwrap();
    spool.restart_stream(stream(2), false).unwrap();
    assert_eq!(spool.newest(), 3);
    spool.restart_stream(stream(3), true).unwrap();
    drop(spool);

    let mut spool = open(folder.path());
    assert_eq!(spool.stream_id(), stream(3));
    assert_eq!(drain(&mut spool), [(1, readings(3)), (2, readings(4))]);
    assert_eq!(spool.append(&readings(5)).unwrap(), 3);
}

#[test]
fn a_new_stream_that_a_crash_cut_short_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).append(&readings(1)).unwrap();
    let half_done = folder.path().join(stream(2).to_string());
    fs::create_dir(&half_done).unwrap();
    fs::write(half_done.join("00000000000000000001.log"), b"x").unwrap();
    let mut spool = open(folder.path());
    assert!(!half_done.exists());
    assert_eq!(drain(&mut spool), [(1, readings(1))]);
}
