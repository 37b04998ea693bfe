//! Issued invoices: numbered without gaps, frozen, and made again from the facts.

use crate::{
    scheduler::futures,
    world::{World, ask, at, member, operator},
};
use app::{AppError, invoice, subscription::NewSubscription};
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeSet;
use types::{Bytes, InvoiceId, TenantId};

/// Each tenant ran 10 GB for an hour in November; it is December.
async fn november(tenants: usize) -> (World, Vec<TenantId>) {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    world.host("host", &[Bytes(1_000_000_000_000)]).await;
    let plan = world.plan("all", "USD", "GB-hour", "0.01", None, at("2026-11-01T00:00:00Z")).await;
    let mut ids = Vec::new();
    let mut running = Vec::new();
    for n in 0..tenants {
        let (tenant, _) = world.tenant(&format!("tenant {n}"), "UTC", "USD").await;
        let starts_at = Some(at("2026-11-01T00:00:00Z"));
        let new = NewSubscription { tenant_id: tenant, plan_id: plan, starts_at };
        app::subscription::create(&world.app, &operator(), new).await.unwrap();
        running.push(world.run(tenant, ask(Bytes(10_000_000_000), 1)).await.row.allocation_id);
        ids.push(tenant);
    }
    world.pass(3600);
    for id in running {
        world.release(id).await;
    }
    world.pass_to("2026-12-01T00:00:00Z");
    (world, ids)
}

async fn issue(world: &World, tenant: TenantId, label: &str) -> Result<(invoice::InvoiceRow, bool), AppError> {
    invoice::issue(&world.app, &operator(), tenant, label, None).await.map(|(row, _, made)| (row, made))
}

async fn differences(world: &World, id: InvoiceId) -> Vec<String> {
    invoice::verify(&world.app, &operator(), id).await.unwrap().differences
}

/// hitobito 4005: two runs at once over fifty tenants, month after month: every number once, none missing.
#[tokio::test]
async fn report_38_parallel_runs_number_without_gaps_or_repeats() {
    let (mut world, tenants) = november(50).await;
    let other = world.another_server();
    let mut numbers = BTreeSet::new();
    for (label, end) in [("2026-11", "2026-12-01T00:00:00Z"), ("2026-12", "2027-01-01T00:00:00Z")] {
        world.pass_to(end);
        let run = |app: app::App| {
            let tenants = tenants.clone();
            async move {
                let mut made = 0;
                for four in tenants.chunks(4) {
                    let runs = four
                        .iter()
                        .map(|tenant| async { invoice::issue(&app, &operator(), *tenant, label, None).await.unwrap() });
                    made += futures(runs).await.iter().filter(|(_, _, made)| *made).count();
                }
                made
            }
        };
        let (one, two) = tokio::join!(run(world.app.clone()), run(other.clone()));
        assert_eq!(one + two, 50);
    }
    let rows = sqlx::query("select serial, number, previous_hash, digest, hash from invoice order by serial")
        .fetch_all(&mut world.owner().await)
        .await
        .unwrap();
    let mut head = "0".repeat(64);
    for (serial, row) in (1_i64..).zip(&rows) {
        assert_eq!(row.get::<i64, _>(0), serial);
        assert!(numbers.insert(row.get::<String, _>(1)));
        assert_eq!(row.get::<String, _>(2), head);
        let text = format!("{head}\n{serial}\n{}\n", row.get::<String, _>(3));
        head = hex::encode(Sha256::digest(text));
        assert_eq!(row.get::<String, _>(4), head);
    }
    assert_eq!(numbers.len(), 100);
    assert_eq!(numbers.last().map(String::as_str), Some("GL-000100"));
}

/// Lago 879: run again, a month has the invoice that it has.
#[tokio::test]
async fn report_3_a_month_has_one_invoice() {
    let (world, tenants) = november(1).await;
    let (first, made) = issue(&world, tenants[0], "2026-11").await.unwrap();
    assert!(made);
    world.pass(3600);
    let (again, made) = issue(&world, tenants[0], "2026-11").await.unwrap();
    assert!(!made);
    assert_eq!(again, first);
    assert_eq!((first.number.as_str(), first.total_minor), ("GL-000001", 10));
}

#[tokio::test]
async fn a_refused_issue_takes_no_number() {
    let (mut world, tenants) = november(2).await;
    let (unpriced, _) = world.tenant("unpriced", "UTC", "USD").await;
    let id = world.run(unpriced, ask(Bytes::gib(1), 1)).await.row.allocation_id;
    world.pass(60);
    world.release(id).await;
    for (tenant, label) in [(tenants[0], "2026-12"), (tenants[0], "2026-13"), (tenants[0], "next month")] {
        let early = issue(&world, tenant, label).await;
        assert!(matches!(early, Err(AppError::Invalid(_))), "{label}: {early:?}");
    }
    world.pass_to("2027-01-01T00:00:00Z");
    let no_plan = issue(&world, unpriced, "2026-12").await;
    assert!(matches!(no_plan, Err(AppError::Conflict { code: "no_plan", .. })), "{no_plan:?}");
    let skips = issue(&world, tenants[0], "2026-12").await;
    assert!(matches!(skips, Err(AppError::Conflict { code: "earlier_period_open", .. })), "{skips:?}");
    let unknown = issue(&world, TenantId(uuid::Uuid::from_u128(1)), "2026-11").await;
    assert!(matches!(unknown, Err(AppError::NotFound("tenant"))), "{unknown:?}");
    let own = invoice::issue(&world.app, &member(tenants[0]), tenants[0], "2026-11", None).await.map(drop);
    assert!(matches!(own, Err(AppError::Forbidden)), "{own:?}");
    assert_eq!(issue(&world, tenants[0], "2026-11").await.unwrap().0.serial, 1);
    assert_eq!(issue(&world, tenants[1], "2026-11").await.unwrap().0.serial, 2);
}

#[tokio::test]
async fn a_preview_says_what_the_issue_will_say() {
    let (world, tenants) = november(1).await;
    let preview = invoice::preview(&world.app, &member(tenants[0]), None, "2026-11").await.unwrap();
    assert!(preview.complete);
    let (_, document, _) = invoice::issue(&world.app, &operator(), tenants[0], "2026-11", None).await.unwrap();
    assert_eq!(preview.document, document);
    let next = invoice::preview(&world.app, &member(tenants[0]), None, "2026-12").await.unwrap();
    assert!(!next.complete);
    assert_eq!(next.document.lines, []);
}

#[tokio::test]
async fn an_untouched_invoice_is_made_again_identically() {
    let (world, tenants) = november(1).await;
    let (row, _) = issue(&world, tenants[0], "2026-11").await.unwrap();
    assert_eq!(differences(&world, row.invoice_id).await, [""; 0]);
    let foreign = invoice::verify(&world.app, &member(TenantId(uuid::Uuid::from_u128(1))), row.invoice_id).await;
    assert!(matches!(foreign, Err(AppError::NotFound("invoice"))), "{foreign:?}");
}

/// Whatever is changed behind the ledger's back, verification finds it.
#[tokio::test]
async fn whatever_was_changed_behind_the_ledgers_back_is_found() {
    for tampering in [
        "update charge set quantity = quantity + 1",
        "update charge set price = price * 2",
        "update charge set period = '2026-10'",
        "delete from charge",
        "update interval set bytes = bytes - 1",
        "update interval set ends_at = ends_at - interval '1 ms'",
        "delete from interval",
        "update plan_rate set reserved = reserved + 0.001",
        "update invoice set total_minor = total_minor + 1",
        "update invoice set document = replace(document, '0.10', '0.01')",
        "update invoice set digest = repeat('0', 64)",
        "update invoice set previous_hash = repeat('1', 64)",
        "update invoice set hash = repeat('1', 64)",
    ] {
        let (world, tenants) = november(1).await;
        let (row, _) = issue(&world, tenants[0], "2026-11").await.unwrap();
        let done = sqlx::query(AssertSqlSafe(tampering)).execute(&mut world.owner().await).await.unwrap();
        assert!(done.rows_affected() > 0, "{tampering}");
        assert!(!differences(&world, row.invoice_id).await.is_empty(), "not found: {tampering}");
    }
}

/// From the line down to the interval.
#[tokio::test]
async fn a_line_opens_down_to_its_facts() {
    let (world, tenants) = november(2).await;
    let (row, _) = issue(&world, tenants[0], "2026-11").await.unwrap();
    let me = member(tenants[0]);
    let (_, document) = invoice::get(&world.app, &me, row.invoice_id).await.unwrap();
    let [line] = &document.lines[..] else { panic!("{document:?}") };
    let charges = invoice::charges(&world.app, &me, row.invoice_id, line.number).await.unwrap();
    let total: i128 = charges.iter().map(|c| c.charge.quantity.0).sum();
    assert_eq!(total, line.quantity.0);
    let facts = invoice::facts(&world.app, &me, row.invoice_id, charges[0].charge_id.uuid()).await.unwrap();
    assert_eq!(facts.interval.unwrap().span.millis(), 3_600_000);
    let by_number = invoice::by_number(&world.app, &me, "GL-000001").await.unwrap().0;
    assert_eq!(by_number, row);
    for other in [member(tenants[1]), member(TenantId(uuid::Uuid::from_u128(1)))] {
        assert!(matches!(
            invoice::charges(&world.app, &other, row.invoice_id, 1).await,
            Err(AppError::NotFound("invoice"))
        ));
    }
}

/// InvoicePlane 1677, Kill Bill 1896: won have no minor units, and large amounts fit.
#[tokio::test]
async fn reports_20_and_22_won_have_no_minor_units() {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    world.host("host", &[Bytes(100_000_000_000)]).await;
    let (tenant, _) = world.tenant("a", "Asia/Seoul", "KRW").await;
    let plan = world.plan("won", "KRW", "GB-hour", "13000", None, at("2026-11-01T00:00:00Z")).await;
    let starts_at = Some(at("2026-11-01T00:00:00Z"));
    app::subscription::create(&world.app, &operator(), NewSubscription { tenant_id: tenant, plan_id: plan, starts_at })
        .await
        .unwrap();
    let id = world.run(tenant, ask(Bytes(100_000_000_000), 1)).await.row.allocation_id;
    world.pass(3600);
    world.release(id).await;
    world.pass_to("2026-12-01T00:00:00Z");
    let (row, document, _) = invoice::issue(&world.app, &operator(), tenant, "2026-11", None).await.unwrap();
    assert_eq!((row.total_minor, document.total.to_string().as_str()), (1_300_000, "1300000"));
}
