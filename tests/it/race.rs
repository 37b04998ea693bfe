//! Many clients at once: exactly what fits is granted, and everybody else learns why not.

use crate::deployment::{Deployment, ask, change, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::Answer;
use tokio::task::JoinSet;

const CLIENTS: usize = 64;
const GIB: u64 = 1 << 30;

/// Answers of all clients, who call at once.
async fn at_once<F: Future<Output = Answer> + Send + 'static>(call: impl Fn(usize) -> F) -> Vec<Answer> {
    let mut calls: JoinSet<Answer> = (0..CLIENTS).map(call).collect();
    let mut answers = Vec::new();
    while let Some(answer) = calls.join_next().await {
        answers.push(answer.unwrap());
    }
    answers
}

fn with_status(answers: &[Answer], status: u16) -> Vec<&Value> {
    answers.iter().filter(|answer| answer.status == status).map(|answer| &answer.json).collect()
}

async fn quota(deployment: &Deployment, tenant: &str) -> Value {
    deployment.operator.get(&format!("/v1/quotas?tenant_id={tenant}")).await.expect(200)["items"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_edge_of_a_quota_exactly_as_many_as_fit_are_granted() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    let node = deployment.node(&pool, "node", &[80 * GIB, 80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    // 21 of 3 GiB fit into 64 GiB, and one GiB stays
    let limits = json!({"tenant_id": tenant.id, "limits": {"bytes": "64GiB"}});
    deployment.operator.put("/v1/quotas/tenant", &limits).await.expect(204);
    let member = tenant.member.clone();
    let answers = at_once(|n| {
        let member = member.clone();
        async move { ask(&member, &format!("client {n}"), &json!({"memory": "3GiB"})).await }
    })
    .await;
    assert_eq!(with_status(&answers, 201).len(), 21);
    let refused = with_status(&answers, 409);
    assert_eq!(refused.len(), CLIENTS - 21);
    for problem in refused {
        assert_eq!(problem["code"], "quota_exceeded", "{problem}");
        let violation = &problem["violations"][0];
        assert_eq!(violation["limit"], 64 * GIB, "{problem}");
        assert_eq!(violation["used"], 63 * GIB, "{problem}");
        assert_eq!(violation["asked"], 3 * GIB, "{problem}");
    }
    let used = quota(&deployment, &tenant.id).await;
    assert_eq!((&used["used_bytes"], &used["used_allocations"]), (&json!(63 * GIB), &json!(21)), "{used}");
    // what one gives back, exactly one gets
    let id = text(&with_status(&answers, 201)[0]["allocation_id"]);
    change(&tenant.member, &id, "release").await.expect(200);
    let answers = at_once(|n| {
        let member = member.clone();
        async move { ask(&member, &format!("second {n}"), &json!({"memory": "3GiB"})).await }
    })
    .await;
    assert_eq!(with_status(&answers, 201).len(), 1);
    assert_eq!(node.report(&[]).await.expect(200)["parts"].as_array().unwrap().len(), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_free_gpu_goes_to_one_and_the_others_wait_with_reasons() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    let node = deployment.node(&pool, "node", &[80 * GIB, 80 * GIB]).await;
    let tenants = [deployment.tenant("one").await, deployment.tenant("other").await];
    ask(&tenants[0].member, "first", &json!({"memory": "80GiB"})).await.expect(201);
    let answers = at_once(|n| {
        let member = tenants[n % 2].member.clone();
        async move { ask(&member, &format!("client {n}"), &json!({"memory": "80GiB"})).await }
    })
    .await;
    let (placed, queued) = (with_status(&answers, 201), with_status(&answers, 202));
    assert_eq!((placed.len(), queued.len()), (1, CLIENTS - 1));
    let mut positions = BTreeSet::new();
    for allocation in queued {
        let queue = &allocation["queue"];
        assert!(positions.insert(queue["position"].as_u64().unwrap()), "two stand at one place: {queue}");
        let reasons = queue["reasons"].as_array().unwrap();
        let excluded: u64 = reasons.iter().map(|reason| reason["gpus"].as_u64().unwrap()).sum();
        assert_eq!(excluded, 2, "{queue}");
        if queue["position"] == 1 {
            assert_eq!(queue["nearest"]["kind"], "free_bytes", "{queue}");
        }
    }
    assert_eq!(positions, (1..CLIENTS as u64).collect());
    let parts = node.report(&[]).await.expect(200)["parts"].as_array().unwrap().clone();
    let cards: BTreeSet<&str> = parts.iter().map(|part| part["gpu_uuid"].as_str().unwrap()).collect();
    assert_eq!((parts.len(), cards.len()), (2, 2), "{parts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_is_one_allocation_and_many_confirmations_are_one_start() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let answers = at_once(|_| {
        let member = tenant.member.clone();
        async move { ask(&member, "the same", &json!({"memory": "3GiB"})).await }
    })
    .await;
    assert_eq!((with_status(&answers, 201).len(), with_status(&answers, 200).len()), (1, CLIENTS - 1));
    let ids: BTreeSet<String> = answers.iter().map(|answer| text(&answer.json["allocation_id"])).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(quota(&deployment, &tenant.id).await["used_bytes"], 3 * GIB);

    let id = ids.into_iter().next().unwrap();
    let answers = at_once(|_| {
        let (member, id) = (tenant.member.clone(), id.clone());
        async move { change(&member, &id, "confirm").await }
    })
    .await;
    assert_eq!(with_status(&answers, 200).len(), CLIENTS);
    let starts: BTreeSet<String> = answers.iter().map(|answer| text(&answer.json["active_since"])).collect();
    assert_eq!(starts.len(), 1, "{starts:?}");
    // and as many ends are one end
    let answers = at_once(|_| {
        let (member, id) = (tenant.member.clone(), id.clone());
        async move { change(&member, &id, "release").await }
    })
    .await;
    assert_eq!(with_status(&answers, 200).len(), CLIENTS);
    let history = tenant.viewer.get(&format!("/v1/allocations/{id}/history")).await.expect(200);
    let causes: Vec<&str> =
        history["changes"].as_array().unwrap().iter().map(|change| change["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["requested", "placed", "confirmed", "owner"]);
    let intervals = history["intervals"].as_array().unwrap();
    assert_eq!(intervals.len(), 1);
    assert_eq!(intervals[0]["span"]["start"], starts.into_iter().next().unwrap().as_str(), "{intervals:?}");
    assert_eq!(quota(&deployment, &tenant.id).await["used_bytes"], 0);
}
