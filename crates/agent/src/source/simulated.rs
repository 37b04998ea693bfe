//! Invented cards and workloads. What a part uses is a pure function of seed, part and time, so that a replay gives the
//! same readings again.

use super::{Card, MemorySource, SourceError, Users};
use types::{
    Bytes, GpuModel, GpuUuid, Instant, PartId,
    wire::{GpuReport, PartOrder},
};
use uuid::Uuid;

/// A card to invent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedGpu {
    pub model: GpuModel,
    pub memory_total: Bytes,
    pub driver_overhead: Bytes,
}

/// The invented cards of one node.
#[derive(Debug)]
pub struct Simulated {
    seed: u64,
    gpus: Vec<(GpuUuid, SimulatedGpu)>,
}

impl Simulated {
    /// Invents the cards of the node that `seed` stands for.
    #[must_use]
    pub fn new(seed: u64, gpus: Vec<SimulatedGpu>) -> Self {
        let named = (0_u32..).zip(gpus).map(|(index, gpu)| (simulated_uuid(seed, index), gpu)).collect();
        Self { seed, gpus: named }
    }

    fn card(&self, uuid: &GpuUuid, gpu: &SimulatedGpu, orders: &[PartOrder], at: Instant) -> Card {
        let users: std::collections::BTreeMap<_, _> = orders
            .iter()
            .filter(|order| order.gpu_uuid == *uuid)
            .filter_map(|order| {
                let since = order.active_since?;
                let used = simulated_use(self.seed, order.part_id, order.bytes, since, at);
                Some((order.part_id, used))
            })
            .collect();
        let used = users.values().fold(Bytes::ZERO, |sum, b| sum.plus(*b));
        let most = gpu.memory_total.less(gpu.driver_overhead);
        Card {
            report: GpuReport {
                uuid: uuid.clone(),
                model: gpu.model.clone(),
                memory_total: gpu.memory_total,
                driver_overhead: Some(gpu.driver_overhead),
                memory_used: Some(used.min(most)),
            },
            users: Users::Parts(users),
        }
    }
}

impl MemorySource for Simulated {
    const IS_THE_WORKLOAD: bool = true;

    async fn look(&mut self, orders: &[PartOrder], at: Instant) -> Result<Vec<Card>, SourceError> {
        Ok(self.gpus.iter().map(|(uuid, gpu)| self.card(uuid, gpu, orders, at)).collect())
    }
}

/// The name of the card at `index` of the node that `seed` stands for.
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the text is made of a UUID just before it is read")]
pub fn simulated_uuid(seed: u64, index: u32) -> GpuUuid {
    let high = mix(seed ^ mix(u64::from(index)));
    let bits = u128::from(high) << 64 | u128::from(mix(high));
    let uuid = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
    format!("GPU-{uuid}").parse().expect("GPU- and a UUID is the name of a card")
}

/// For this long a workload stays at a level.
const LEVEL_MS: i64 = 300_000;
/// The most that a workload takes above its grant: less than any driver keeps, so that a part never exceeds its card.
const MAX_EXCESS: Bytes = Bytes::mib(256);

/// What a part that is active `since` then uses `at` an instant. It loads for half a minute to two minutes, then stays
/// between 60 % and 95 % of its grant, at a level that changes a little every five minutes; one part in eight goes
/// slightly above its grant now and then.
#[must_use]
pub fn simulated_use(seed: u64, part_id: PartId, granted: Bytes, since: Instant, at: Instant) -> Bytes {
    let age_ms = at.since(since);
    if age_ms <= 0 {
        return Bytes::ZERO;
    }
    let character = mix(seed ^ character_of(part_id.uuid()));
    let level = mix(character ^ at.as_millis().div_euclid(LEVEL_MS).unsigned_abs());
    let per_mille = 620 + character % 310 + level % 41 - 20;
    let greedy = character % 8 == 3 && level.is_multiple_of(6);
    let plateau =
        if greedy { granted.plus(Bytes(granted.0 / 12).min(MAX_EXCESS)) } else { share(granted, per_mille, 1000) };
    let ramp_ms = 30_000 + (character >> 32) % 90_000;
    let loaded_ms = age_ms.unsigned_abs().min(ramp_ms);
    share(plateau, loaded_ms, ramp_ms)
}

/// `part` of `whole` parts of an amount, rounded down; `part` is at most `whole`.
fn share(amount: Bytes, part: u64, whole: u64) -> Bytes {
    let bytes = u128::from(amount.0) * u128::from(part) / u128::from(whole);
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn character_of(id: Uuid) -> u64 {
    let (high, low) = id.as_u64_pair();
    mix(high ^ mix(low))
}

/// Scatters a number over all numbers (the finaliser of SplitMix64).
const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Instant {
        Instant::from_millis(1_700_000_000_000 + secs * 1000).unwrap()
    }

    #[test]
    fn workloads_load_then_stay_near_their_grant() {
        let granted = Bytes::gib(20);
        let mut above = 0;
        for n in 0..400 {
            let part = PartId(Uuid::from_u128(n));
            let used = |secs| simulated_use(7, part, granted, at(0), at(secs));
            assert_eq!(used(0), Bytes::ZERO);
            assert_eq!(used(-5), Bytes::ZERO);
            assert!(used(10) < used(25));
            for secs in (120..7_200).step_by(300) {
                let now = used(secs);
                assert!(now >= share(granted, 600, 1000), "{now}");
                assert!(now <= granted.plus(MAX_EXCESS), "{now}");
                above += u32::from(now > granted);
                assert!(now > granted || now <= share(granted, 950, 1000), "{now}");
            }
        }
        let samples = 400 * 24;
        assert!(above > samples / 200 && above < samples / 20, "{above}");
    }

    #[test]
    fn the_same_seed_gives_the_same_and_another_gives_another() {
        let part = PartId(Uuid::from_u128(9));
        let used = |seed| simulated_use(seed, part, Bytes::gib(10), at(0), at(5_000));
        assert_eq!(used(1), used(1));
        assert_ne!(used(1), used(2));
        assert_eq!(simulated_uuid(1, 0), simulated_uuid(1, 0));
        assert_ne!(simulated_uuid(1, 0), simulated_uuid(1, 1));
        assert_ne!(simulated_uuid(1, 1), simulated_uuid(2, 0));
    }
}
