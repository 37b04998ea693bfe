//! Durable admissions and releases per second, beside `pgbench`.

use crate::{
    Outcome, Settings,
    client::{Answer, request},
    deployment::{Deployment, Tenant},
    load::{self, Load, Script, whole},
    postgres_server::PostgresServer,
    row::Row,
    yardstick::Pgbench,
};
use std::time::Duration;

const BENCH: &str = "admission";
/// A tenth of a card.
const BODY: &str = r#"{"memory":"8GiB"}"#;

/// What one turn found, for each kind of request.
#[derive(Debug, Default)]
struct Turn {
    admit: Load,
    confirm: Load,
    release: Load,
}

/// Asks, confirms and releases in rounds, all clients the same thing at a time.
struct Rounds<'a> {
    deployment: &'a Deployment,
    tenants: &'a [Tenant],
    /// As many as `pgbench` has.
    clients: usize,
    /// Requests of one client in one round: together they fit the pool.
    each: usize,
    /// Until requests have taken this long.
    at_least: Duration,
    /// Makes the idempotency keys of each round new.
    round: usize,
}

pub async fn run(settings: Settings) -> Outcome<Vec<Row>> {
    let postgres = PostgresServer::start(settings.quick).await?;
    let pgbench = Pgbench::new(&postgres, settings).await?;
    let deployment = Deployment::start(postgres.create("admission", None).await?).await?;
    let pool = deployment.pool().await?;
    deployment.nodes(&pool, settings.size(4, 100)).await?;
    let tenants = deployment.tenants(51).await?;
    let (hot, fifty) = tenants.split_at(1);
    let rounds = |tenants| Rounds {
        deployment: &deployment,
        tenants,
        clients: settings.size(8, 64),
        each: settings.size(4, 100),
        at_least: settings.size(Duration::ZERO, Duration::from_secs(10)),
        round: 0,
    };
    let mut cases = [("one hot tenant", rounds(hot), Vec::new()), ("fifty tenants", rounds(fifty), Vec::new())];
    let mut theirs = Vec::new();
    for _ in 0..settings.turns {
        theirs.push(pgbench.per_second().await?);
        for (_, rounds, turns) in &mut cases {
            postgres.settle().await?;
            turns.push(rounds.turn().await?);
        }
    }
    Ok(cases.into_iter().flat_map(|(case, _, turns)| rows(case, turns, &theirs)).collect())
}

impl Rounds<'_> {
    async fn turn(&mut self) -> Outcome<Turn> {
        let mut turn = Turn::default();
        loop {
            self.round += 1;
            let address = self.deployment.address()?;
            let mut asked = load::run(address, self.requests(), whole, 201, true).await?;
            let bodies = std::mem::take(&mut asked.bodies);
            turn.admit.add(asked);
            let ids = bodies.iter().map(|of_client| of_client.iter().map(|body| id(body)).collect());
            let ids: Vec<Vec<String>> = ids.collect::<Outcome<_>>()?;
            turn.confirm.add(load::run(address, self.changes(&ids, "confirm"), whole, 200, false).await?);
            turn.release.add(load::run(address, self.changes(&ids, "release"), whole, 200, false).await?);
            if turn.admit.took >= self.at_least {
                return Ok(turn);
            }
        }
    }

    fn tenant(&self, client: usize) -> &Tenant {
        &self.tenants[client % self.tenants.len()]
    }

    fn requests(&self) -> Vec<Script> {
        let script = |client: usize| {
            let one = |number| {
                let key = format!("{}-{client}-{number}", self.round);
                let headers = [("content-type", "application/json"), ("idempotency-key", key.as_str())];
                request("POST", "/v1/allocations", &self.tenant(client).member, &headers, BODY.as_bytes())
            };
            (0..self.each).map(one).collect()
        };
        (0..self.clients).map(script).collect()
    }

    fn changes(&self, ids: &[Vec<String>], verb: &str) -> Vec<Script> {
        let script = |(client, ids): (usize, &Vec<String>)| {
            let member = &self.tenant(client).member;
            ids.iter().map(|id| request("POST", &format!("/v1/allocations/{id}/{verb}"), member, &[], b"")).collect()
        };
        ids.iter().enumerate().map(script).collect()
    }
}

fn id(body: &[u8]) -> Outcome<String> {
    Answer { status: 201, body }.text("allocation_id")
}

/// A kind of request: its name, where a turn has it, and what rate is aimed at.
type Kind = (&'static str, fn(&mut Turn) -> &mut Load, Option<&'static str>);

fn rows(case: &str, mut turns: Vec<Turn>, theirs: &[f64]) -> Vec<Row> {
    let mut rows = Vec::new();
    let kinds: [Kind; 3] = [
        ("admissions", |turn| &mut turn.admit, Some("≥ 2")),
        ("confirmations", |turn| &mut turn.confirm, None),
        ("releases", |turn| &mut turn.release, Some("≥ 2")),
    ];
    for (kind, load, goal) in kinds {
        let rates: Vec<f64> = turns.iter_mut().map(|turn| load(turn).per_second()).collect();
        let row = Row::new(BENCH, format!("{kind}, {case}"), "/s", &rates).beside("pgbench", &rates, theirs);
        rows.push(Row { goal, ..row });
        for percent in [50, 99] {
            let latencies: Vec<f64> = turns.iter_mut().map(|turn| load(turn).percentile(percent)).collect();
            let row = Row::new(BENCH, format!("{kind}, {case}, p{percent}"), "ms", &latencies);
            rows.push(Row { goal: (percent == 99 && goal.is_some()).then_some("≤ 50 ms"), ..row });
        }
    }
    rows
}
