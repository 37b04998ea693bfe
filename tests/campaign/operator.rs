//! The platform's operator: sets quotas, cordons, lets a node join, and issues invoices, over and over.

use crate::{
    member::Voice,
    node::Node,
    plan::GIB,
    record::{Limit, Sent},
    run::World,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc::UnboundedSender;

/// Does what the seed says; the node that joins goes to `joined`.
pub async fn run(world: Arc<World>, joined: UnboundedSender<Node>) {
    let mut rng = StdRng::seed_from_u64(world.plan.operator_seed);
    let voice = Voice::new(&world, &world.operator_key, 0);
    let steps = world.plan.operator_steps;
    let joins_at = rng.random_range(steps / 4..steps * 3 / 4);
    let mut cordoned = false;
    for step in 0..steps {
        if step == joins_at {
            let number = world.plan.nodes.len() - 1;
            if let Some(node) = Node::join(&world, number, &world.plan.nodes[number]).await {
                let _ = joined.send(node);
            }
        }
        match rng.random_range(0..100) {
            0..40 => set_limits(&voice, &mut rng).await,
            40..60 => {
                cordoned = !cordoned;
                set_cordon(&voice, cordoned).await;
            }
            _ => {
                let tenant = rng.random_range(0..world.tenants.len());
                let month = &world.months[rng.random_range(0..2)];
                issue(&voice, tenant, month).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..60))).await;
    }
    if cordoned {
        set_cordon(&voice, false).await;
    }
}

async fn set_limits(voice: &Voice, rng: &mut StdRng) {
    let world = &voice.world;
    let tenant = rng.random_range(0..world.tenants.len());
    let bytes = rng.random_bool(0.9).then(|| i128::from(rng.random_range(20..200_i64)) * GIB);
    let allocations = rng.random_bool(0.3).then(|| rng.random_range(2..12));
    let limits = json!({"bytes": bytes.map(|bytes| u64::try_from(bytes).unwrap()), "allocations": allocations});
    let body = json!({"tenant_id": world.tenants[tenant].id, "limits": limits});
    let sent = Sent { first: world.now(), answered: None };
    let place = {
        let mut record = world.record.inner();
        record.limits.push(Limit { tenant, bytes, allocations, sent });
        record.limits.len() - 1
    };
    if let Some(heard) = voice.expect(&[204], Method::PUT, "/v1/quotas/tenant", Some(&body)).await {
        world.record.inner().limits[place].sent = heard.sent;
    }
}

async fn set_cordon(voice: &Voice, cordoned: bool) {
    let id = voice.world.record.inner().nodes.get("node-1").cloned().unwrap_or_default();
    let verb = if cordoned { "cordon" } else { "uncordon" };
    voice.expect(&[200], Method::POST, &format!("/v1/nodes/{id}/{verb}"), None).await;
}

/// Asks for a month's invoice once: whether it is there.
pub async fn issue(voice: &Voice, tenant: usize, month: &str) -> bool {
    let world = &voice.world;
    let body = json!({"tenant_id": world.tenants[tenant].id, "period": month});
    let Some(heard) = voice.insist(Method::POST, "/v1/invoices", Some(&body)).await else { return false };
    match heard.status {
        200 | 201 => {
            let mut record = world.record.inner();
            record.invoices.entry((tenant, month.to_owned())).or_default().push(heard.json);
            true
        }
        409 if heard.code() == "not_final" => false,
        // not over yet
        422 => false,
        status => {
            let why = format!("{status} {}: {}", heard.code(), heard.json["detail"]);
            world.record.violation(format!("{month} of tenant {tenant} is not issued: {why}"));
            false
        }
    }
}
