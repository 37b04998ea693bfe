//! Rows set aside: an operator rules on each, once, and what is accepted is billed once.

use crate::{
    reading::{START, reading, send},
    scheduler::futures,
    world::{Host, World, ask, at, member, operator},
};
use app::{AppError, invoice, set_aside};
use types::{AllocationId, Bytes, Instant, PartId, SetAsideId, TenantId, wire::Reading};

struct Case {
    world: World,
    host: Host,
    tenant: TenantId,
    allocation: AllocationId,
    part: PartId,
}

impl Case {
    /// A part of 10 GiB since [`START`], an hour ago.
    async fn new() -> Self {
        let mut world = World::new(START).await;
        let host = world.host("host", &[Bytes::gib(80)]).await;
        let (tenant, ..) = world.paying_tenant("a", "UTC", "USD", "2026-11-01T00:00:00Z").await;
        let active = world.run(tenant, ask(Bytes::gib(10), 1)).await;
        let allocation = active.row.allocation_id;
        world.pass(3600);
        world.report(&host, &[allocation]).await;
        Self { world, host, tenant, allocation, part: active.parts[0].row.part_id }
    }

    /// From minute to minute after the start, with 2 GiB above the grant.
    fn window(&self, from: i64, to: i64) -> Reading {
        let minute = |n| at(START).plus_secs(60 * n);
        reading(self.part, minute(from), minute(to), Bytes::gib(10), Bytes::gib(12))
    }

    async fn send(&mut self, readings: Vec<Reading>) -> (u32, u32) {
        let batch = self.host.batch(self.world.now(), readings);
        let ack = send(&self.world, &self.host, &batch).await.unwrap();
        (ack.accepted, ack.set_aside)
    }

    async fn open(&self) -> Vec<SetAsideId> {
        let rows = set_aside::list(&self.world.app, &operator(), true, None, 100).await.unwrap();
        rows.into_iter().map(|row| row.set_aside_id).collect()
    }

    async fn rule(&self, id: SetAsideId, accept: bool) -> Result<(), AppError> {
        set_aside::rule(&self.world.app, &operator(), id, accept, None).await.map(drop)
    }

    async fn end_of_november(&self) -> Instant {
        self.world.release(self.allocation).await;
        self.world.pass_to("2026-12-01T00:00:00Z");
        self.world.now()
    }

    async fn issue(&self, label: &str, waiver: Option<&str>) -> Result<invoice::InvoiceRow, AppError> {
        invoice::issue(&self.world.app, &operator(), self.tenant, label, waiver.map(|reason| reason.parse().unwrap()))
            .await
            .map(|(row, ..)| row)
    }

    async fn charged_above(&self) -> i64 {
        let sum: Option<rust_decimal::Decimal> =
            sqlx::query_scalar("select sum(quantity) from charge where kind = 'above'")
                .fetch_one(&mut self.world.owner().await)
                .await
                .unwrap();
        // in windows of one minute
        let window = Bytes::gib(2).over_millis(60_000).0;
        i64::try_from(sum.map_or(0, |sum| sum.mantissa()) / window).unwrap()
    }
}

#[tokio::test]
async fn an_accepted_row_is_a_reading_and_billed_once() {
    let mut case = Case::new().await;
    // an hour's window too long to be taken without a look
    let long = case.window(-2, 60);
    assert_eq!(case.send(vec![long]).await, (0, 1));
    let [id] = case.open().await[..] else { panic!("not one row") };
    case.rule(id, true).await.unwrap();
    let twice = case.rule(id, false).await;
    assert!(matches!(twice, Err(AppError::Conflict { code: "already_ruled", .. })), "{twice:?}");
    assert_eq!(case.open().await, []);
    case.end_of_november().await;
    case.issue("2026-11", None).await.unwrap();
    assert_eq!(case.charged_above().await, 62);
}

#[tokio::test]
async fn a_rejected_row_is_never_billed() {
    let mut case = Case::new().await;
    let long = case.window(-2, 60);
    case.send(vec![long]).await;
    case.rule(case.open().await[0], false).await.unwrap();
    case.end_of_november().await;
    case.issue("2026-11", None).await.unwrap();
    assert_eq!(case.charged_above().await, 0);
}

#[tokio::test]
async fn of_two_rulings_at_once_one_counts() {
    let mut case = Case::new().await;
    let long = case.window(-2, 60);
    case.send(vec![long]).await;
    let id = case.open().await[0];
    let rulings = futures((0..6).map(|n| case.rule(id, n % 2 == 0))).await;
    assert_eq!(rulings.iter().filter(|r| r.is_ok()).count(), 1, "{rulings:?}");
}

/// What was read already is not read a second time by a ruling, and what a ruling took is not read a second time by a
/// batch: neither the node nor the invoice is blocked by it.
#[tokio::test]
async fn time_is_covered_once_whether_by_batch_or_by_ruling() {
    let mut case = Case::new().await;
    let rows = vec![case.window(0, 10), case.window(5, 15), case.window(61, 71)];
    assert_eq!(case.send(rows).await, (1, 2));
    let rows = set_aside::list(&case.world.app, &operator(), true, None, 100).await.unwrap();
    let of = |reason: &str| rows.iter().find(|row| row.reason == reason).unwrap().set_aside_id;
    let (overlap, future) = (of("overlap"), of("future"));
    let covered = case.rule(overlap, true).await;
    assert!(matches!(covered, Err(AppError::Conflict { code: "cannot_accept", .. })), "{covered:?}");
    assert!(case.open().await.contains(&overlap), "a ruling that failed is none");
    case.rule(overlap, false).await.unwrap();
    case.rule(future, true).await.unwrap();

    case.world.pass(1200);
    case.world.report(&case.host, &[case.allocation]).await;
    // the same time comes again, in the same window and in others
    let rows = vec![case.window(61, 71), case.window(65, 75), case.window(71, 72)];
    assert_eq!(case.send(rows).await, (1, 2));
    for id in case.open().await {
        case.rule(id, false).await.unwrap();
    }
    case.end_of_november().await;
    let row = case.issue("2026-11", None).await.unwrap();
    assert_eq!(case.charged_above().await, 10 + 10 + 1);
    let verified = invoice::verify(&case.world.app, &operator(), row.invoice_id).await.unwrap();
    assert_eq!(verified.differences, [""; 0]);
}

#[tokio::test]
async fn a_row_of_a_part_that_its_node_never_had_cannot_be_accepted() {
    let mut case = Case::new().await;
    let unknown = Reading { part_id: PartId(uuid::Uuid::from_u128(4)), ..case.window(0, 1) };
    case.send(vec![unknown]).await;
    let answer = case.rule(case.open().await[0], true).await;
    assert!(matches!(answer, Err(AppError::Conflict { code: "cannot_accept", .. })), "{answer:?}");
}

#[tokio::test]
async fn rows_set_aside_stand_against_the_issue_unless_waived_with_a_reason() {
    let mut case = Case::new().await;
    let long = case.window(-2, 60);
    case.send(vec![long]).await;
    case.end_of_november().await;
    let refused = case.issue("2026-11", None).await;
    assert!(matches!(refused, Err(AppError::Conflict { code: "rows_set_aside", .. })), "{refused:?}");
    let row = case.issue("2026-11", Some("the agent was exchanged")).await.unwrap();
    assert_eq!(row.waiver.as_deref(), Some("the agent was exchanged"));
    assert_eq!(case.charged_above().await, 0);

    // ruled on later, it is charged on the next invoice, as a correction of its month
    case.rule(case.open().await[0], true).await.unwrap();
    case.world.pass_to("2027-01-01T00:00:00Z");
    let next = case.issue("2026-12", None).await.unwrap();
    let (_, document) = invoice::get(&case.world.app, &member(case.tenant), next.invoice_id).await.unwrap();
    let corrected: Vec<_> = document.lines.iter().map(|line| line.correction_of.as_deref()).collect();
    assert_eq!(corrected, [Some("2026-11")]);
    assert_eq!(case.charged_above().await, 62);
}

#[tokio::test]
async fn only_an_operator_rules() {
    let mut case = Case::new().await;
    let long = case.window(-2, 60);
    case.send(vec![long]).await;
    let id = case.open().await[0];
    let refused = set_aside::rule(&case.world.app, &member(case.tenant), id, true, None).await;
    assert!(matches!(refused, Err(AppError::Forbidden)), "{refused:?}");
    let node = set_aside::rule(&case.world.app, &case.host.caller(), id, true, None).await;
    assert!(matches!(node, Err(AppError::Forbidden)), "{node:?}");
}
