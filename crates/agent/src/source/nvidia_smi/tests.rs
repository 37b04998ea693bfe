use super::*;
use std::os::unix::fs::PermissionsExt;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../tests/fixtures/", $name))
    };
}

const FIRST: &str = "GPU-3f1c0a52-7d41-4b8e-9a60-1e5d2c7b9f01";
const SECOND: &str = "GPU-8a94d7e3-20b6-4f15-b3c8-6d0e41a27f02";

/// Each card's UUID, total, reserved and used bytes.
type Row = (String, Option<u64>, Option<u64>, Option<u64>);

fn gpus(text: &str) -> Vec<Row> {
    let rows = read_gpus(text).unwrap();
    rows.into_iter()
        .map(|g| (g.uuid.to_string(), g.total.map(|b| b.0), g.reserved.map(|b| b.0), g.used.map(|b| b.0)))
        .collect()
}

fn row(uuid: &str, total: Option<u64>, reserved: Option<u64>, used: Option<u64>) -> Row {
    (uuid.to_owned(), total, reserved, used)
}

fn processes(text: &str, gpu: &str) -> Users {
    read_apps(text).unwrap().take(&gpu.parse().unwrap())
}

fn listed(processes: &[(u32, Option<u64>)]) -> Users {
    Users::Processes(processes.iter().map(|(pid, bytes)| (*pid, bytes.map(Bytes))).collect())
}

#[test]
fn reserved_and_used_are_told_apart() {
    assert_eq!(
        gpus(fixture!("query_gpu_535_h100_reserved.csv")),
        [
            row(FIRST, Some(85_520_809_984), Some(577_765_376), Some(42_949_672_960)),
            row(SECOND, Some(85_520_809_984), Some(577_765_376), Some(0)),
        ]
    );
    assert_eq!(
        gpus(fixture!("query_gpu_590_h200_mig.csv")),
        [row(FIRST, Some(150_754_820_096), Some(643_825_664), Some(21_008_220_160))]
    );
}

/// nvml-wrapper 57: before 510, "used" counts what the driver keeps, so it is not what tenants use.
#[test]
fn an_old_drivers_used_is_not_reported_as_the_tenants() {
    let text = fixture!("query_gpu_384_not_supported.csv");
    assert_eq!(
        gpus(text),
        [
            row(FIRST, Some(17_066_622_976), None, Some(11_022_630_912)),
            row(SECOND, Some(2_097_152_000), None, Some(325_058_560)),
        ]
    );
    let report = read_gpus(text).unwrap().remove(0).report().unwrap();
    assert_eq!((report.driver_overhead, report.memory_used), (None, None));
}

/// nvsmi 7: MiB were called MB.
#[test]
fn the_headings_unit_counts_where_the_value_has_none() {
    let heading = "index, uuid, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%]\n";
    let text = format!("{heading}{}", fixture!("query_gpu_440_nounits.csv"));
    assert_eq!(gpus(&text), [row(FIRST, Some(34_089_205_760), None, Some(1_070_596_096))]);
    let total = |text: String| gpus(&text)[0].1;
    assert_eq!(total(format!("uuid, memory.total [MiB]\n{FIRST}, 16376 MiB\n")), Some(17_171_480_576));
    assert_eq!(total(format!("uuid, memory.total [MB]\n{FIRST}, 16376\n")), Some(16_376_000_000));
    // without any unit it could be anything
    assert_eq!(total(format!("uuid, memory.total\n{FIRST}, 16376\n")), None);
}

/// sacred 864, i3pystatus 776: what the driver does not say is unknown, in every spelling.
#[test]
fn what_the_driver_does_not_say_is_unknown() {
    assert_eq!(gpus(fixture!("query_gpu_permission.csv")), [row(FIRST, None, None, None)]);
    assert_eq!(gpus(fixture!("query_gpu_gb10_uma.csv")), [row(FIRST, None, None, None)]);
    for unknown in [
        "[N/A]",
        "[Not Supported]",
        "[Unknown Error]",
        "Insufficient Permissions",
        "N/A",
        "",
        "17592186044415 MiB",
        "17179869184 GiB",
        "-1 MiB",
    ] {
        let text = format!("uuid, memory.used [MiB]\n{FIRST}, {unknown}\n");
        assert_eq!(gpus(&text), [row(FIRST, None, None, None)], "{unknown:?}");
    }
}

/// dcgm-exporter 604: a card that fell off its bus is a gap of its own.
#[test]
fn a_lost_card_does_not_hide_the_others() {
    assert_eq!(gpus(fixture!("query_gpu_lost.txt")), [row(FIRST, None, None, Some(42_949_672_960))]);
}

/// translations 1167: after a driver's upgrade, nothing can be read until the library is loaded anew.
#[test]
fn a_driver_that_does_not_fit_its_library_is_named() {
    let error = read_gpus(fixture!("driver_mismatch.txt")).unwrap_err();
    assert!(matches!(&error, SourceError::DriverMismatch { library } if library == "550.144"), "{error}");
    assert!(matches!(read_gpus("").unwrap_err(), SourceError::Unreadable { .. }));
}

#[test]
fn processes_are_told_by_card_and_pid() {
    let text = fixture!("compute_apps_linux.csv");
    assert_eq!(processes(text, FIRST), listed(&[(12249, Some(34_359_738_368)), (12250, Some(8_283_750_400))]));
    assert_eq!(processes(text, SECOND), listed(&[(12249, Some(536_870_912))]));
    assert_eq!(
        processes(fixture!("compute_apps_comma_name.csv"), FIRST),
        listed(&[(900, Some(1_073_741_824)), (901, Some(16_777_216))])
    );
    assert_eq!(processes(fixture!("compute_apps_dead_pid.csv"), FIRST), listed(&[(31794, Some(5_631_901_696))]));
    assert_eq!(processes(fixture!("compute_apps_empty.csv"), FIRST), listed(&[]));
    assert_eq!(processes(fixture!("compute_apps_wddm.csv"), FIRST), listed(&[(12444, None)]));
}

/// An unreadable row is unattributed memory, not an idle card.
#[test]
fn an_unreadable_list_is_not_an_empty_one() {
    assert_eq!(processes(fixture!("compute_apps_permission.csv"), FIRST), Users::Unavailable(UNREADABLE));
    // nvtop 432: rows that name no card
    let text = format!("pid, used_gpu_memory [MiB]\n{}", fixture!("compute_apps_wsl2_nounits.csv"));
    assert_eq!(processes(&text, FIRST), Users::Unavailable(UNREADABLE));
}

fn program(folder: &std::path::Path, script: &str) -> NvidiaSmi {
    let path = folder.join("nvidia-smi");
    std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    NvidiaSmi { sees_host_pids: true, ..NvidiaSmi::new(path) }
}

fn epoch() -> Instant {
    Instant::EPOCH
}

#[tokio::test]
async fn the_program_is_asked_for_cards_and_processes() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"case "$1" in
*memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2;;
*query-gpu*) printf 'uuid, name, memory.total [MiB], memory.used [MiB]\n{FIRST}, Tesla T4, 15360 MiB, 900 MiB\n';;
*) printf 'gpu_uuid, pid, used_gpu_memory [MiB]\n{FIRST}, 77, 800 MiB\n';;
esac"#
    );
    let mut smi = program(folder.path(), &script);
    let cards = smi.look(&[], epoch()).await.unwrap();
    assert_eq!(cards.len(), 1);
    assert_eq!(cards[0].report.memory_total, Bytes::mib(15_360));
    assert_eq!(cards[0].report.memory_used, None);
    assert_eq!(cards[0].users, listed(&[(77, Some(800 << 20))]));
    assert!(!smi.reserved_is_known);
}

#[tokio::test]
async fn a_program_that_hangs_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut smi = program(folder.path(), "echo $$ > \"$0.pid\"\nexec sleep 600");
    smi.timeout = Duration::from_millis(300);
    let error = smi.look(&[], epoch()).await.unwrap_err();
    assert!(matches!(error, SourceError::Timeout { .. }), "{error}");
    let pid = std::fs::read_to_string(folder.path().join("nvidia-smi.pid")).unwrap();
    for _ in 0..50 {
        if crate::proc_stat(pid.trim().parse().unwrap()).is_none_or(|stat| stat.has_ended()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the program still runs");
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let mut smi = NvidiaSmi::new("/nowhere/nvidia-smi".into());
    let error = smi.look(&[], epoch()).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/nvidia-smi"), "{error}");
}
