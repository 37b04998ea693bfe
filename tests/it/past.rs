//! A month that is over: what ran in it and its invoice, made in virtual time on a database that a real server then takes.

use crate::{
    reading::{reading, send},
    world::{Host, World, ask, operator},
};
use app::invoice;
use jiff::{ToSpan, civil::Date, tz::TimeZone};
use support::Database;
use types::{Bytes, ChargeId, Clock, Instant, InvoiceId, PartId, TenantId, wire::Reading};

/// What the month left.
#[derive(Debug)]
pub struct Past {
    pub database: Database,
    pub tenant: TenantId,
    pub invoice: InvoiceId,
    pub number: String,
    pub charge: ChargeId,
    /// Such as `2026-11`.
    pub month: String,
}

/// The host that ran it; its machine's id is the same.
pub const HOST: &str = "host";
/// Its one card.
pub const CARD: Bytes = Bytes(1_000_000_000_000);

/// The month before the present one: a tenant ran 10 GB for an hour, and one with a late release for two.
pub async fn month() -> Past {
    let first = today().first_of_month();
    let before = first.checked_sub(1.month()).unwrap();
    let mut world = World::new(&instant(before.checked_add(9.days()).unwrap()).to_string()).await;
    let mut host = world.host(HOST, &[CARD]).await;
    let (tenant, _, _) = world.paying_tenant("past", "UTC", "USD", &instant(before).to_string()).await;
    let began = world.now();
    let first_run = world.run(tenant, ask(Bytes(10_000_000_000), 1)).await;
    let one = first_run.row.allocation_id;
    let other = world.run(tenant, ask(Bytes(20_000_000_000), 1)).await.row.allocation_id;
    world.pass(3600);
    measure(&world, &mut host, first_run.parts[0].row.part_id, began).await;
    world.release(one).await;
    world.pass(3600);
    world.release(other).await;
    world.pass_to(&instant(first).to_string());
    let month = before.strftime("%Y-%m").to_string();
    let (row, _, _) = invoice::issue(&world.app, &operator(), tenant, &month, None).await.unwrap();
    let charge = invoice::charges(&world.app, &operator(), row.invoice_id, 1).await.unwrap()[0].charge_id;
    Past { database: leave(world).await, tenant, invoice: row.invoice_id, number: row.number, charge, month }
}

/// The host measured the first minutes of a part. Its batches are of every kind: with rows set aside between accepted ones,
/// empty, with a clock that is a little off, and with one so far off that an operator ruled on it.
async fn measure(world: &World, host: &mut Host, part: PartId, began: Instant) {
    let (granted, used) = (Bytes(10_000_000_000), Bytes(7_000_000_000));
    let window = |minute: i64| {
        let from = began.plus_secs(60 * minute);
        reading(part, from, from.plus_secs(60), granted, used)
    };
    let now = world.now();
    let false_one = Reading { used: Some(CARD.over_millis(120_000)), ..window(2) };
    let batches = [
        (now, vec![window(0), window(1), false_one, window(3), window(4)]),
        (now, Vec::new()),
        (now.plus_secs(5), vec![window(5), window(6)]),
        (now.plus_secs(90), vec![window(9), window(10)]),
        (now, vec![window(12)]),
    ];
    for (sent_at, readings) in batches {
        let batch = host.batch(sent_at, readings);
        send(world, host, &batch).await.unwrap();
    }
    for row in app::set_aside::list(&world.app, &operator(), false, None, 100).await.unwrap() {
        let accept = row.reason == "skew" && row.starts_at == window(10).start;
        app::set_aside::rule(&world.app, &operator(), row.set_aside_id, accept, None).await.unwrap();
    }
}

/// The last three hours: a tenant ran 10 GB in the first of them.
pub async fn hours() -> (Database, TenantId) {
    let hour = 3_600_000;
    let now = Clock::System.now();
    let start = Instant::from_millis((now.as_millis() / hour - 3) * hour).unwrap();
    let mut world = World::new(&start.to_string()).await;
    world.host(HOST, &[CARD]).await;
    let (tenant, _) = world.tenant("past", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes(10_000_000_000), 1)).await.row.allocation_id;
    world.pass(1800);
    world.release(id).await;
    (leave(world).await, tenant)
}

/// The server in process ends in good order.
async fn leave(world: World) -> Database {
    let World { app, database, .. } = world;
    app.schedulers.stop();
    app.schedulers.stopped().await;
    app.store.close().await;
    database
}

fn today() -> Date {
    Clock::System.now().to_jiff().to_zoned(TimeZone::UTC).date()
}

fn instant(date: Date) -> Instant {
    Instant::from_jiff(date.to_zoned(TimeZone::UTC).unwrap().timestamp()).unwrap()
}
