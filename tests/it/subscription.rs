//! Subscriptions: what passed unpriced can still be priced, and what was priced keeps its price.

use crate::world::{World, ask, at, operator};
use app::{
    AppError, invoice,
    subscription::{self, NewSubscription, SubscriptionRow},
};
use types::{Bytes, PlanId, TenantId};

async fn subscribe(world: &World, tenant: TenantId, plan: PlanId, from: &str) -> Result<SubscriptionRow, AppError> {
    let new = NewSubscription { tenant_id: tenant, plan_id: plan, starts_at: Some(at(from)) };
    subscription::create(&world.app, &operator(), new).await
}

/// Whether a subscription was refused for its start, and why.
fn refused(outcome: &Result<SubscriptionRow, AppError>, why: &str) -> bool {
    matches!(outcome, Err(AppError::Invalid(faults)) if faults.iter().any(|f| f.field == "starts_at" && f.rule.contains(why)))
}

/// A tenant that runs 10 GB from the 1st, subscribed on the 10th.
async fn late() -> (World, TenantId, PlanId) {
    let mut world = World::new("2026-11-01T00:00:00Z").await;
    world.host("host", &[Bytes(1_000_000_000_000)]).await;
    let plan = world.plan("all", "USD", "GB-hour", "0.01", None, at("2026-11-01T00:00:00Z")).await;
    let (tenant, _) = world.tenant("late", "UTC", "USD").await;
    let id = world.run(tenant, ask(Bytes(10_000_000_000), 1)).await.row.allocation_id;
    world.pass(3600);
    world.release(id).await;
    world.pass_to("2026-11-10T00:00:00Z");
    subscribe(&world, tenant, plan, "2026-11-10T00:00:00Z").await.unwrap();
    (world, tenant, plan)
}

#[tokio::test]
async fn use_before_the_first_subscription_is_priced_by_one_that_fills_the_hole() {
    let (world, tenant, plan) = late().await;
    world.pass_to("2026-12-01T00:00:00Z");
    let issue = async || invoice::issue(&world.app, &operator(), tenant, "2026-11", None).await;
    let no_plan = issue().await;
    assert!(matches!(no_plan, Err(AppError::Conflict { code: "no_plan", .. })), "{no_plan:?}");

    let filled = subscribe(&world, tenant, plan, "2026-11-01T00:00:00Z").await.unwrap();
    assert_eq!(filled.ends_at, Some(at("2026-11-10T00:00:00Z")));
    let (row, _, _) = issue().await.unwrap();
    assert_eq!(row.total_minor, 10);
    let verified = invoice::verify(&world.app, &operator(), row.invoice_id).await.unwrap();
    assert_eq!(verified.differences, [""; 0]);
}

#[tokio::test]
async fn time_that_is_covered_or_invoiced_takes_no_other_plan() {
    let (world, tenant, plan) = late().await;
    world.pass_to("2026-11-20T00:00:00Z");
    subscribe(&world, tenant, plan, "2026-11-05T00:00:00Z").await.unwrap();
    for covered in ["2026-11-05T00:00:00Z", "2026-11-09T23:59:00Z", "2026-11-10T00:00:00Z", "2026-11-19T23:59:00Z"] {
        let outcome = subscribe(&world, tenant, plan, covered).await;
        assert!(refused(&outcome, "a subscription ran then"), "{covered}: {outcome:?}");
    }
    let second = subscribe(&world, tenant, plan, "2026-11-25T00:00:00Z").await.unwrap();
    assert_eq!(second.ends_at, None);
    for taken in ["2026-11-21T00:00:00Z", "2026-11-25T00:00:00Z"] {
        let outcome = subscribe(&world, tenant, plan, taken).await;
        assert!(
            matches!(outcome, Err(AppError::Conflict { code: "subscription_overlaps", .. })),
            "{taken}: {outcome:?}"
        );
    }

    subscribe(&world, tenant, plan, "2026-11-01T00:00:00Z").await.unwrap();
    let (other, _) = world.tenant("other", "UTC", "USD").await;
    world.pass_to("2026-12-05T00:00:00Z");
    invoice::issue(&world.app, &operator(), other, "2026-11", None).await.unwrap();
    subscribe(&world, other, plan, "2026-12-05T00:00:00Z").await.unwrap();
    let outcome = subscribe(&world, other, plan, "2026-11-30T23:59:00Z").await;
    assert!(refused(&outcome, "invoiced already"), "{outcome:?}");
    let filled = subscribe(&world, other, plan, "2026-12-01T00:00:00Z").await.unwrap();
    assert_eq!(filled.ends_at, Some(at("2026-12-05T00:00:00Z")));
}
