//! Every confirmed byte-millisecond is charged once: in its month, by its price, whenever it becomes known.

use crate::{
    reading::{reading, send},
    scheduler::futures,
    world::{World, ask, at, member, operator, rates, span},
};
use app::{AppError, invoice, plan::NewVersion};
use billing::Document;
use sqlx::Row;
use std::collections::BTreeMap;
use types::{ByteMillis, Bytes, TenantId};

async fn issue(world: &World, tenant: TenantId, label: &str) -> Document {
    let (row, document, _) = invoice::issue(&world.app, &operator(), tenant, label, None).await.unwrap();
    let verified = invoice::verify(&world.app, &operator(), row.invoice_id).await.unwrap();
    assert_eq!(verified.differences, [""; 0]);
    document
}

fn quantity(document: &Document) -> ByteMillis {
    document.lines.iter().map(|line| line.quantity).sum()
}

/// Kill Bill 1934, OpenMeter 3313: a month ends at the tenant's midnight, and what runs through it is cut there to the
/// millisecond. New York's November begins in summer time and ends in winter time.
#[tokio::test]
async fn a_month_is_cut_at_the_tenants_midnight() {
    for (zone, start, end) in [
        ("Asia/Seoul", "2026-10-31T15:00:00Z", "2026-11-30T15:00:00Z"),
        ("America/New_York", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"),
        ("Asia/Kolkata", "2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z"),
    ] {
        let mut world = World::new("2026-10-31T10:00:00Z").await;
        let host = world.host("host", &[Bytes::gib(80)]).await;
        let (tenant, ..) = world.paying_tenant("a", zone, "USD", "2026-10-01T00:00:00Z").await;
        let id = world.run(tenant, ask(Bytes::gib(10), 1)).await.row.allocation_id;
        world.pass_to("2026-12-02T00:00:00Z");
        world.report(&host, &[id]).await;
        let october = issue(&world, tenant, "2026-10").await;
        let november = issue(&world, tenant, "2026-11").await;
        world.release(id).await;
        let before = at(start).since(at("2026-10-31T10:00:00Z"));
        assert_eq!(quantity(&october), Bytes::gib(10).over_millis(before), "{zone}");
        assert_eq!(november.period.span, span(start, end), "{zone}");
        assert_eq!(quantity(&november), Bytes::gib(10).over_millis(at(end).since(at(start))), "{zone}");
        let edges = world.intervals(id).await;
        assert!(edges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{edges:?}");
        assert!([at(start), at(end)].iter().all(|edge| edges.iter().any(|i| i.1 == *edge)), "{edges:?}");
    }
}

/// The recurring task cuts by itself, so that nothing waits for the issue.
#[tokio::test]
async fn meters_are_cut_at_the_end_of_a_month_by_themselves() {
    let mut world = World::new("2026-10-31T10:00:00Z").await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, ..) = world.paying_tenant("a", "Asia/Seoul", "KRW", "2026-10-01T00:00:00Z").await;
    let id = world.run(tenant, ask(Bytes::gib(10), 1)).await.row.allocation_id;
    world.pass_to("2026-10-31T14:59:59Z");
    world.report(&host, &[id]).await;
    world.pass(61);
    app::tasks::run_due(&world.app).await;
    assert_eq!(world.intervals(id).await, [], "it is not known to have lived until the edge");
    world.report(&host, &[id]).await;
    world.pass(60);
    app::tasks::run_due(&world.app).await;
    assert_eq!(world.intervals(id).await, [(at("2026-10-31T10:00:00Z"), at("2026-10-31T15:00:00Z"), false)]);
}

#[tokio::test]
async fn what_is_not_final_yet_is_waited_for() {
    let mut world = World::new("2026-11-30T23:59:00Z").await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let id = world.run(tenant, ask(Bytes::gib(10), 1)).await.row.allocation_id;
    world.pass(61);
    let early = invoice::issue(&world.app, &operator(), tenant, "2026-11", None).await;
    assert!(matches!(early, Err(AppError::Conflict { code: "not_final", .. })), "{early:?}");
    world.report(&host, &[id]).await;
    assert_eq!(quantity(&issue(&world, tenant, "2026-11").await), Bytes::gib(10).over_millis(60_000));
}

/// Facts that come after the issue of their month are corrections on the next invoice, each naming its month.
#[tokio::test]
async fn late_facts_of_an_issued_month_are_corrections_on_the_next_invoice() {
    let mut world = World::new("2026-11-30T20:00:00Z").await;
    let mut host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let active = world.run(tenant, ask(Bytes::gib(10), 1)).await;
    let (id, part) = (active.row.allocation_id, active.parts[0].row.part_id);
    world.pass(3600);
    world.report(&host, &[id]).await;
    // the node falls silent over the end of the month; its spool keeps readings
    world.pass_to("2026-12-01T01:00:00Z");
    world.tick().await;
    let november = issue(&world, tenant, "2026-11").await;
    assert_eq!(quantity(&november), Bytes::gib(10).over_millis(3_600_000));

    world.report(&host, &[id]).await;
    let late = reading(part, at("2026-11-30T20:10:00Z"), at("2026-11-30T20:11:00Z"), Bytes::gib(10), Bytes::gib(11));
    let batch = host.batch(world.now(), vec![late]);
    send(&world, &host, &batch).await.unwrap();
    world.pass(3600);
    world.release(id).await;
    world.pass_to("2027-01-01T00:00:00Z");
    let december = issue(&world, tenant, "2026-12").await;
    let lines: Vec<_> =
        december.lines.iter().map(|line| (line.correction_of.as_deref(), line.kind.name(), line.quantity)).collect();
    let gib10 = |hours: i64| Bytes::gib(10).over_millis(hours * 3_600_000);
    assert_eq!(
        lines,
        [
            (None, "reserved", gib10(2)),
            (Some("2026-11"), "reserved", gib10(3)),
            (Some("2026-11"), "above", Bytes::gib(1).over_millis(60_000)),
        ]
    );
}

/// A change of price in mid-month splits the use at its minute.
#[tokio::test]
async fn a_new_price_splits_the_month_at_its_minute() {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    let host = world.host("host", &[Bytes(80_000_000_000)]).await;
    let (tenant, _, plan) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let version = NewVersion {
        unit: "GB-hour".parse().unwrap(),
        rates: rates("3", None),
        valid_from: Some(at("2026-11-10T10:30:00Z")),
    };
    app::plan::add_version(&world.app, &operator(), plan, version).await.unwrap();
    let active = world.run(tenant, ask(Bytes(2_000_000_000), 1)).await.row;
    world.pass(3600);
    world.report(&host, &[active.allocation_id]).await;
    world.release(active.allocation_id).await;
    world.pass_to("2026-12-01T00:00:00Z");
    let document = issue(&world, tenant, "2026-11").await;
    let mut lines: Vec<_> =
        document.lines.iter().map(|line| (line.price.to_string(), line.amount.to_string())).collect();
    lines.sort();
    assert_eq!(lines, [("1".to_owned(), "1.00".to_owned()), ("3".to_owned(), "3.00".to_owned())]);
    assert_eq!(document.total.to_string(), "4.00");
}

/// Slurm 24.05: a job on four cards of 40 GB is 160 GB. OpenCost 3828: four quarters of a card are one card.
#[tokio::test]
async fn reports_28_and_34_all_cards_of_a_job_and_all_shares_of_a_card() {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    world.host("host", &[Bytes(40_000_000_000); 4]).await;
    let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let (other, ..) = world.paying_tenant("b", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let job = world.run(tenant, ask(Bytes(40_000_000_000), 4)).await.row.allocation_id;
    world.pass(3600);
    world.release(job).await;
    let mut shares = Vec::new();
    for _ in 0..4 {
        shares.push(world.run(other, ask(Bytes(10_000_000_000), 1)).await.row.allocation_id);
    }
    for share in &shares {
        allocation_renewed(&world, other, *share).await;
    }
    world.pass(3600);
    for share in shares {
        world.release(share).await;
    }
    world.pass_to("2026-12-01T00:00:00Z");
    assert_eq!(issue(&world, tenant, "2026-11").await.total.to_string(), "160.00");
    assert_eq!(issue(&world, other, "2026-11").await.total.to_string(), "40.00");
}

async fn allocation_renewed(world: &World, tenant: TenantId, id: types::AllocationId) {
    app::allocation::renew(&world.app, &member(tenant), id).await.unwrap();
}

/// Facts that come while an invoice is being issued are on it or on the next one: on one of them, and once.
#[tokio::test]
async fn facts_that_race_with_the_issue_are_charged_once() {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    let host = world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let active = world.run(tenant, ask(Bytes::gib(10), 1)).await;
    let (id, part) = (active.row.allocation_id, active.parts[0].row.part_id);
    world.pass(3600);
    world.report(&host, &[id]).await;
    world.release(id).await;
    world.pass_to("2026-12-01T00:00:00Z");
    let batches: Vec<_> = {
        let mut host = host.clone();
        (0..40)
            .map(|n| {
                let start = at("2026-11-10T10:00:00Z").plus_secs(n * 60);
                let window = reading(part, start, start.plus_secs(60), Bytes::gib(10), Bytes::gib(11));
                host.batch(world.now(), vec![window])
            })
            .collect()
    };
    let ingest = async {
        for batch in &batches {
            assert_eq!(send(&world, &host, batch).await.unwrap().accepted, 1);
        }
    };
    let issues = futures((0..3).map(|_| invoice::issue(&world.app, operator_ref(), tenant, "2026-11", None)));
    let ((), issued) = tokio::join!(ingest, issues);
    assert_eq!(issued.into_iter().filter(|i| i.as_ref().unwrap().2).count(), 1);
    world.pass_to("2027-01-01T00:00:00Z");
    issue(&world, tenant, "2026-12").await;
    let rows =
        sqlx::query("select kind, count(*), count(distinct source_id), sum(quantity)::text from charge group by kind")
            .fetch_all(&mut world.owner().await)
            .await
            .unwrap();
    let charged: BTreeMap<String, (i64, i64, String)> =
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect();
    let hour = Bytes::gib(10).over_millis(3_600_000).to_string();
    let minutes = Bytes::gib(1).over_millis(40 * 60_000).to_string();
    assert_eq!(
        charged,
        BTreeMap::from([("above".to_owned(), (40, 40, minutes)), ("reserved".to_owned(), (1, 1, hour))])
    );
}

fn operator_ref() -> &'static app::Caller {
    static OPERATOR: app::Caller = operator();
    &OPERATOR
}

/// The schema holds it a second time: one fact, kind and segment is charged once, and one window is read once.
#[tokio::test]
async fn the_schema_refuses_a_second_charge_for_one_fact() {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    world.host("host", &[Bytes::gib(80)]).await;
    let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
    let id = world.run(tenant, ask(Bytes::gib(10), 1)).await.row.allocation_id;
    world.pass(60);
    world.release(id).await;
    world.pass_to("2026-12-01T00:00:00Z");
    issue(&world, tenant, "2026-11").await;
    let mut owner = world.owner().await;
    for (statement, rule) in [
        (
            "insert into charge (tenant_id, charge_id, invoice_id, line_number, source_kind, source_id, kind, segment, starts_at,
                ends_at, allocation_id, project_id, model, period, plan_version_id, quantity, price, unit)
             select tenant_id, gen_random_uuid(), gen_random_uuid(), line_number, source_kind, source_id, kind, segment,
                starts_at, ends_at, allocation_id, project_id, model, period, plan_version_id, quantity, price, unit from charge",
            "charge_is_billed_once",
        ),
        (
            "insert into interval (tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at,
                ends_at, attested, inserted_at)
             select tenant_id, gen_random_uuid(), allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at,
                ends_at, attested, inserted_at from interval",
            "interval_starts_once",
        ),
    ] {
        let error = sqlx::query(statement).execute(&mut owner).await.unwrap_err();
        assert_eq!(error.as_database_error().and_then(|e| e.constraint()), Some(rule));
    }
}
