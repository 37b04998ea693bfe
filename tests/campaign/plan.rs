//! What a seed makes: the world, each client's generator, and the kills.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

pub const GIB: i128 = 1 << 30;
/// The cards of scripted nodes.
pub const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// Billing zones whose months begin at the same instant in every month that a run can lie in.
const ZONES: [[&str; 2]; 6] = [
    ["UTC", "Africa/Abidjan"],
    ["Asia/Seoul", "Asia/Tokyo"],
    ["Europe/Berlin", "Europe/Paris"],
    ["Asia/Kolkata", "Asia/Colombo"],
    ["America/New_York", "America/Toronto"],
    ["Australia/Sydney", "Australia/Melbourne"],
];
const CURRENCIES: [(&str, u32); 4] = [("USD", 2), ("JPY", 0), ("KRW", 0), ("KWD", 3)];
/// Byte-milliseconds of each billing unit.
const UNITS: [(&str, i128); 3] =
    [("GB-second", 1_000_000_000 * 1_000), ("GB-hour", 1_000_000_000 * 3_600_000), ("GiB-hour", GIB * 3_600_000)];

/// Everything that is known before a run begins.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    /// The month that ends in the middle of the run.
    pub year: i16,
    pub month: i8,
    /// How long before that month's end, in the world's time, the run begins.
    pub early_ms: i64,
    /// How long before its end the loss of power in the middle of the run leads to.
    pub edge_lead_ms: i64,
    pub servers: usize,
    pub tenants: Vec<PlannedTenant>,
    /// Cards of each scripted node: their memory. The last one joins in the middle of the run.
    pub nodes: Vec<Vec<i128>>,
    pub hold_grace_s: i64,
    pub members: Vec<PlannedMember>,
    pub operator_seed: u64,
    pub operator_steps: usize,
    pub kills: Vec<Kill>,
}

/// Who is billed.
#[derive(Debug)]
pub struct PlannedTenant {
    pub zone: &'static str,
    pub currency: &'static str,
    pub minor_digits: u32,
    pub unit: &'static str,
    pub unit_byte_ms: i128,
    /// Prices of both plan versions in nano-units: reserved, and above the reservation.
    pub prices: [(i128, Option<i128>); 2],
    pub limit_bytes: i128,
    pub limit_allocations: Option<i64>,
}

/// Who asks for memory.
#[derive(Debug, Clone, Copy)]
pub struct PlannedMember {
    pub tenant: usize,
    pub seed: u64,
    pub steps: usize,
}

/// What is killed together.
#[derive(Debug, Clone)]
pub struct Kill {
    /// Once so many operations are acknowledged since the run began.
    pub after: u64,
    pub what: What,
    /// How long all of it is away.
    pub down_ms: u64,
    /// Whether servers are started before Postgres is.
    pub servers_first: bool,
    /// Killed once more so long after it was started again: during recovery or take-over.
    pub again_after_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Server(usize),
    Agent,
    Postgres,
    ServerAndAgent(usize),
    ServerAndPostgres(usize),
    /// Everything at once; afterwards the month is about to end.
    Power,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let servers = servers(&mut rng);
        let zones = ZONES.choose(&mut rng).unwrap();
        let tenants: Vec<_> = (0..rng.random_range(2..=3)).map(|_| tenant(&mut rng, zones)).collect();
        let members = (0..rng.random_range(3..=4))
            .map(|n: usize| PlannedMember {
                tenant: n % tenants.len(),
                seed: rng.next_u64(),
                steps: rng.random_range(24..36),
            })
            .collect::<Vec<_>>();
        let operator_steps = rng.random_range(12..18);
        let steps: usize = members.iter().map(|member| member.steps).sum();
        let nodes = (0..3).map(|_| (0..2).map(|_| rng.random_range(24..=80) * GIB).collect()).collect();
        Self {
            seed,
            year: rng.random_range(2040..2060),
            month: rng.random_range(1..=12),
            early_ms: rng.random_range(10..50) * 60_000,
            edge_lead_ms: rng.random_range(300..1500),
            servers,
            nodes,
            hold_grace_s: rng.random_range(2..=4),
            operator_seed: rng.next_u64(),
            operator_steps,
            kills: kills(&mut rng, servers, u64::try_from(steps + operator_steps).unwrap()),
            tenants,
            members,
        }
    }
}

/// One, until servers forward to the leader of a pool.
fn servers(rng: &mut StdRng) -> usize {
    *[1, 1, 1].choose(rng).unwrap()
}

fn tenant(rng: &mut StdRng, zones: &[&'static str; 2]) -> PlannedTenant {
    let (currency, minor_digits) = *CURRENCIES.choose(rng).unwrap();
    let (unit, unit_byte_ms) = *UNITS.choose(rng).unwrap();
    let mut prices = || {
        let above = rng.random_bool(0.7).then(|| rng.random_range(1..5_000_000_000));
        (rng.random_range(1..2_000_000_000), above)
    };
    PlannedTenant {
        prices: [prices(), prices()],
        zone: zones.choose(rng).unwrap(),
        currency,
        minor_digits,
        unit,
        unit_byte_ms,
        limit_bytes: rng.random_range(60..200) * GIB,
        limit_allocations: rng.random_bool(0.3).then(|| rng.random_range(4..10)),
    }
}

/// Several kills, in the order in which they happen; the loss of power is one of them.
fn kills(rng: &mut StdRng, servers: usize, operations: u64) -> Vec<Kill> {
    let count = rng.random_range(3..=5);
    let power_at = rng.random_range(1..count);
    // what is asked again after a kill counts once, so all of them are reached
    let mut after: Vec<u64> = (0..count).map(|_| rng.random_range(operations / 20..operations * 7 / 10)).collect();
    after.sort_unstable();
    (0..count)
        .map(|n| {
            let server = rng.random_range(0..servers);
            let all = [
                What::Server(server),
                What::Server(server),
                What::Postgres,
                What::Postgres,
                What::Agent,
                What::ServerAndAgent(server),
                What::ServerAndPostgres(server),
            ];
            let what = if n == power_at { What::Power } else { *all.choose(rng).unwrap() };
            Kill {
                after: after[n],
                what,
                down_ms: rng.random_range(0..150),
                servers_first: rng.random_bool(0.5),
                again_after_ms: (what != What::Power && rng.random_bool(0.25)).then(|| rng.random_range(20..500)),
            }
        })
        .collect()
}
