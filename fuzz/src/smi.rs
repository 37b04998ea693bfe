//! What `nvidia-smi` may print, and what it never should: no panic, and no card or amount that is not one. The two
//! tables are parted by a line of four hyphens.

use agent::source::{Users, nvidia_smi::read_cards};
use types::Bytes;

pub(crate) const WORDS: &[&str] = &[
    "uuid, name, memory.total [MiB], memory.reserved [MiB], memory.used [MiB]\n",
    "GPU-8c5f0a6e-2b1d-4d39-9a7b-0c1f4be0a001, NVIDIA A10, 24564 MiB, 512 MiB, 1 MiB\n",
    "\n----\n",
    "gpu_uuid, pid, used_gpu_memory [MiB]\n",
    "GPU-8c5f0a6e-2b1d-4d39-9a7b-0c1f4be0a001, 4242, 1024 MiB\n",
    "[N/A]",
    "[Insufficient Permissions]",
    "9223372036854775807",
    "8796093022207 MiB",
    ", ",
    "Driver/library version mismatch\nNVML library version: ",
];

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (gpus, apps) = text.split_once("\n----\n").unwrap_or((&text, ""));
    let Ok(cards) = read_cards(gpus, apps) else { return };
    for card in &cards {
        let report = &card.report;
        assert!(gpus.to_ascii_lowercase().contains(&report.uuid.as_str().to_ascii_lowercase()), "{report:?}");
        assert!(report.memory_total <= Bytes::MAX);
        // known apart from the driver's share only where that is known
        assert!(report.memory_used.is_none() || report.driver_overhead.is_some(), "{report:?}");
        if let Users::Processes(list) = &card.users {
            assert!(list.iter().all(|(_, memory)| memory.is_none_or(|memory| memory <= Bytes::MAX)));
        }
    }
}
