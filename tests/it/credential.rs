//! Credentials that are no more, and another tenant's ids in every place of a request, along the served document.

use crate::{
    authorisation::{ADMIN, Operation, PUBLIC, Stage, operations, rule},
    deployment::{Deployment, log_in, text},
    http::sign,
};
use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};
use sqlx::Row;
use std::collections::BTreeSet;
use support::{Answer, Client};
use types::Clock;

/// The operator's token with its times moved into the past: as good a signature, and nothing else changed.
async fn expired(deployment: &Deployment) -> Client {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    let login = json!({"email": crate::deployment::OPERATOR, "password": crate::deployment::PASSWORD});
    let token = text(&deployment.anyone().post("/v1/login", &login).await.expect(200)["token"]);
    let claims = BASE64.decode(token.split('.').nth(1).unwrap()).unwrap();
    let mut claims: Value = serde_json::from_slice(&claims).unwrap();
    let row = sqlx::query("select kid, private_key from signing_key order by created_at desc limit 1")
        .fetch_one(&mut deployment.owner().await)
        .await
        .unwrap();
    let key = EncodingKey::from_ec_der(row.get(1));
    let signed = |claims: &Value| deployment.anyone().with(&sign(claims, row.get(0), &key));
    signed(&claims).get("/v1/tenants").await.expect(200);
    let now = Clock::System.now().as_millis() / 1000;
    claims["iat"] = json!(now - 3600);
    claims["exp"] = json!(now - 60);
    signed(&claims)
}

/// Credentials that were good once, each of another kind.
async fn dead(stage: &Stage) -> Vec<(&'static str, Client)> {
    let deployment = &stage.deployment;
    let mut dead = vec![("an expired token", expired(deployment).await)];
    for (what, tenant, role) in
        [("a revoked key", Some(&stage.ours.id), ADMIN), ("a revoked key of the platform", None, "operator")]
    {
        let (id, client) = deployment.key(tenant.map(String::as_str), role).await;
        client.get("/v1/me").await.expect(200);
        deployment.operator.post(&format!("/v1/keys/{id}/revoke"), &json!({})).await.expect(200);
        dead.push((what, client));
    }
    let email = "gone@example.com";
    let user = json!({"tenant_id": stage.ours.id, "email": email, "name": "gone", "role": ADMIN,
        "password": crate::deployment::PASSWORD});
    let user = text(&deployment.operator.post("/v1/users", &user).await.expect(201)["user_id"]);
    let person = log_in(&deployment.anyone(), email).await;
    person.get("/v1/me").await.expect(200);
    deployment.operator.post(&format!("/v1/users/{user}/disable"), &json!({})).await.expect(200);
    dead.push(("a disabled person's token", person));
    let user = json!({"tenant_id": stage.ours.id, "email": "out@example.com", "name": "out", "role": ADMIN,
        "password": crate::deployment::PASSWORD});
    deployment.operator.post("/v1/users", &user).await.expect(201);
    let login = json!({"email": "out@example.com", "password": crate::deployment::PASSWORD});
    let session = deployment.anyone().post("/v1/login", &login).await.expect(200);
    let out = deployment.anyone().with(session["token"].as_str().unwrap());
    out.get("/v1/me").await.expect(200);
    let revoke = format!("/v1/sessions/{}/revoke", text(&session["session_id"]));
    deployment.operator.post(&revoke, &json!({})).await.expect(200);
    dead.push(("the token of a revoked session", out));
    let gone = deployment.node(&stage.pool, "gone", &[1 << 30]).await;
    deployment.operator.post(&format!("/v1/nodes/{}/remove", gone.id), &json!({})).await.expect(200);
    dead.push(("a removed node's credential", gone.client));
    let former = deployment.node(&stage.pool, "twice", &[1 << 30]).await;
    deployment.node(&stage.pool, "twice", &[1 << 30]).await.client.get("/v1/me").await.expect(200);
    dead.push(("a credential from before its node joined again", former.client));
    dead
}

/// A problem without what differs from one request to the next.
fn timeless(answer: &Answer) -> Value {
    let mut json = answer.json.clone();
    json["instance"].take();
    json
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_takes_a_credential_that_is_no_more() {
    let stage = Stage::set().await;
    let dead = dead(&stage).await;
    let walked = operations(&stage.deployment.anyone()).await;
    let before = stage.deployment.snapshot().await;
    for (n, (what, client)) in (2..).zip(&dead) {
        // so much that fails is too much from one address
        let client = &client.from_address([127, 0, 0, n].into());
        let mut told = BTreeSet::new();
        for operation in walked.iter().filter(|o| !PUBLIC.contains(&o.id.as_str())) {
            let answer = stage.send(client, operation).await;
            assert_eq!(answer.status, 401, "{what} calls {}: {answer}", operation.id);
            told.insert(timeless(&answer).to_string());
            answer.problem(401, "unauthenticated", None);
        }
        // wherever it is presented, nothing more is said of it
        assert_eq!(told.len(), 1, "{what}: {told:?}");
    }
    let changed = stage.deployment.snapshot().await;
    let differing: Vec<_> = before.iter().filter(|(table, rows)| changed.get(*table) != Some(rows)).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

/// Ids whose objects belong to a tenant; the others name what is the platform's.
const OF_TENANTS: [&str; 10] = [
    "tenant_id",
    "project_id",
    "user_id",
    "key_id",
    "allocation_id",
    "invoice_id",
    "charge_id",
    "subscription_id",
    "session_id",
    "invitation_id",
];

/// An id that was never given to anything.
const NOTHING: &str = "01980000-0000-7000-8000-0000000000ff";

/// The answers to a request about what is ours and about what does not exist at all differ in nothing.
fn assert_same_answer(ours: &Answer, nothing: &Answer, id: &str, what: &str) {
    let said = timeless(ours).to_string().replace(id, NOTHING);
    assert_eq!((ours.status, said), (nothing.status, timeless(nothing).to_string()), "{what}");
    assert!(matches!(ours.status, 404 | 200), "{what}: {ours}");
    assert!(!String::from_utf8_lossy(&ours.body).contains(id), "{what}: {ours}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_ids_are_as_unknown_as_ids_of_nothing() {
    let stage = Stage::set().await;
    let walked = operations(&stage.deployment.anyone()).await;
    let of_admins = |o: &&Operation| rule(&o.id).is_some_and(|(allowed, _)| allowed.contains(&ADMIN));
    let client = &stage.theirs.admin;
    let before = stage.deployment.snapshot().await;
    let mut tried = 0;
    for operation in walked.iter().filter(of_admins) {
        let (path, body) = stage.request(operation);
        // what is their own in all else
        let own = |path: &str| path.replace(&stage.ours.id, &stage.theirs.id);
        let own_body = body.map(|mut body| {
            if operation.body_ids.iter().any(|name| name == "tenant_id") {
                body["tenant_id"] = json!(stage.theirs.id);
            }
            body
        });
        for (name, id) in stage.ids.iter().filter(|(name, _)| OF_TENANTS.contains(name)) {
            let what = |place: &str| format!("{name} in the {place} of {}", operation.id);
            if operation.path.contains(&format!("{{{name}}}")) {
                let ours = Stage::send_as(client, operation, &path, own_body.clone()).await;
                let nothing = Stage::send_as(client, operation, &path.replace(id, NOTHING), own_body.clone()).await;
                assert_same_answer(&ours, &nothing, id, &what("path"));
                tried += 1;
            }
            if operation.query_ids.iter().any(|query| query == name) {
                let with = |id: &str| {
                    let own = own(&path);
                    if *name == "tenant_id" {
                        return own.replace(&stage.theirs.id, id);
                    }
                    format!("{own}{}{name}={id}", if own.contains('?') { '&' } else { '?' })
                };
                let ours = Stage::send_as(client, operation, &with(id), own_body.clone()).await;
                let nothing = Stage::send_as(client, operation, &with(NOTHING), own_body.clone()).await;
                assert_same_answer(&ours, &nothing, id, &what("query"));
                tried += 1;
            }
            if operation.body_ids.iter().any(|body| body == name) {
                let with = |id: &str| {
                    let mut body = own_body.clone().unwrap();
                    body[*name] = json!(id);
                    Some(body)
                };
                let ours = Stage::send_as(client, operation, &own(&path), with(id)).await;
                let nothing = Stage::send_as(client, operation, &own(&path), with(NOTHING)).await;
                assert_same_answer(&ours, &nothing, id, &what("body"));
                assert_eq!(ours.status, 404, "{}: {ours}", what("body"));
                tried += 1;
            }
        }
    }
    assert!(tried > 30, "{tried}");
    let changed = stage.deployment.snapshot().await;
    let differing: Vec<_> = before.iter().filter(|(table, rows)| changed.get(*table) != Some(rows)).collect();
    assert!(differing.is_empty(), "{differing:?}");
}
