//! Who may do what: every operation of the served document is tried without a credential, with each wrong role and with
//! another tenant's credential. All requests are good ones, so that nothing but the credential can be refused.

use crate::{
    deployment::{Deployment, Node, Snapshot, Tenant, ask, eventually, log_in, start, text},
    past::{self, Past},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use support::{Answer, Client};
use types::Clock;

/// Operations that nobody needs a credential for. This list may only shrink.
pub const PUBLIC: [&str; 9] = [
    "login",
    "list_login_providers",
    "start_login",
    "finish_login",
    "accept_invitation",
    "join_node",
    "get_health",
    "get_readiness",
    "get_metrics",
];

/// Callers, as the tables below name them.
const OPERATOR: &str = "operator";
const CLERK: &str = "billing_clerk";
pub const ADMIN: &str = "tenant_admin";
const MEMBER: &str = "member";
const VIEWER: &str = "viewer";
const NODE: &str = "node";

const EVERY_ROLE: &[&str] = &[OPERATOR, CLERK, ADMIN, MEMBER, VIEWER];
const PLATFORM: &[&str] = &[OPERATOR, CLERK];
const USERS: &[&str] = &[OPERATOR, ADMIN, MEMBER];

/// What another tenant's credential gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// 403 or 404: the request names what is ours.
    Refused,
    /// Its own, and nothing of ours; or what is the same for all.
    Own,
}
use Foreign::{Own, Refused};

/// Who may call an operation, by the roles of the design.
pub fn rule(operation: &str) -> Option<(&'static [&'static str], Foreign)> {
    Some(match operation {
        "get_me" => (&[OPERATOR, CLERK, ADMIN, MEMBER, VIEWER, NODE], Own),
        "list_sessions" | "revoke_other_sessions" => (EVERY_ROLE, Own),
        "list_pools" | "get_pool" | "list_tenants" | "list_plans" => (EVERY_ROLE, Own),
        "get_tenant" | "list_projects" | "list_quotas" | "list_allocations" | "get_usage" | "get_usage_csv"
        | "get_plan" | "list_subscriptions" | "preview_invoice" | "list_invoices" | "get_invoice" | "list_charges"
        | "get_facts" | "get_invoice_csv" | "verify_invoice" => (EVERY_ROLE, Refused),
        "get_allocation" | "get_allocation_history" => (&[OPERATOR, CLERK, ADMIN, MEMBER, VIEWER, NODE], Refused),
        "create_tenant"
        | "create_pool"
        | "update_pool"
        | "create_join_token"
        | "cordon_node"
        | "uncordon_node"
        | "remove_node"
        | "ask_credential_rotation"
        | "revoke_node_credential"
        | "set_tenant_quota"
        | "accept_set_aside"
        | "reject_set_aside" => (&[OPERATOR], Refused),
        "list_nodes"
        | "get_node"
        | "list_gpus"
        | "get_balance"
        | "list_set_aside"
        | "create_plan"
        | "create_plan_version"
        | "create_subscription"
        | "issue_invoice" => (PLATFORM, Refused),
        "create_project" | "create_invitation" | "revoke_invitation" | "create_user" | "disable_user"
        | "set_password" | "create_key" | "revoke_key" | "set_project_quota" | "revoke_session" => {
            (&[OPERATOR, ADMIN], Refused)
        }
        "list_users" | "list_keys" | "list_invitations" | "list_audit" => (&[OPERATOR, CLERK, ADMIN], Refused),
        "create_allocation" | "dry_run_allocation" => (USERS, Refused),
        "confirm_allocation" | "renew_allocation" | "release_allocation" | "cancel_allocation" => {
            (&[OPERATOR, ADMIN, MEMBER, NODE], Refused)
        }
        "report_node" | "take_reading_batch" | "rotate_node_credential" => (&[NODE], Refused),
        _ => return None,
    })
}

/// A deployment in which there is one of everything.
pub struct Stage {
    pub deployment: Deployment,
    past: Past,
    pub ours: Tenant,
    pub theirs: Tenant,
    pub node: Node,
    pub other_node: Node,
    pub pool: String,
    /// Values of path variables.
    pub ids: BTreeMap<&'static str, String>,
}

impl Stage {
    pub async fn set() -> Self {
        let past = past::month().await;
        let Past { database, tenant, .. } = past;
        let deployment = Deployment::on(database, &[]).await;
        let past = Past { database: support::Database::fresh().await, ..past };
        let operator = &deployment.operator;
        let pool = text(&operator.get("/v1/pools").await.expect(200)["items"][0]["pool_id"]);
        eventually("the pool is led", 20, async || {
            let answer = operator
                .request(Method::PATCH, &format!("/v1/pools/{pool}"))
                .json(&json!({"hold_grace_s": 600, "silence_grace_s": 3600}));
            (operator.send(answer).await.status == 200).then_some(())
        })
        .await;
        let node = deployment.node(&pool, "node", &[80 << 30]).await;
        let other_node = deployment.node(&pool, "other", &[80 << 30]).await;
        let ours = deployment.tenant_of(tenant.to_string()).await;
        let theirs = deployment.tenant("theirs").await;
        let plan = text(&operator.get("/v1/plans").await.expect(200)["items"][0]["plan_id"]);
        let user = json!({"tenant_id": ours.id, "email": "victim@example.com", "name": "v", "role": "viewer",
            "password": crate::deployment::PASSWORD});
        let user = text(&operator.post("/v1/users", &user).await.expect(201)["user_id"]);
        let login = json!({"email": "victim@example.com", "password": crate::deployment::PASSWORD});
        let session = text(&deployment.anyone().post("/v1/login", &login).await.expect(200)["session_id"]);
        let invitation = json!({"tenant_id": ours.id, "email": "invited@example.com", "role": "viewer"});
        let invitation = text(&operator.post("/v1/invitations", &invitation).await.expect(201)["invitation_id"]);
        let (key, _) = deployment.key(Some(&ours.id), "viewer").await;
        let on_node = json!({"memory": "1GiB", "node_id": node.id});
        let held = text(&ask(&ours.member, "held", &on_node).await.expect(201)["allocation_id"]);
        let nobodys = json!({"stream_id": "01980000-0000-7000-8000-00000000000b", "sequence": 1,
            "sent_at": Clock::System.now(), "readings": [{
                "part_id": "01980000-0000-7000-8000-00000000000c", "start": "2026-01-01T00:00:00Z",
                "end": "2026-01-01T00:01:00Z", "granted": 1, "covered_ms": 0, "quality": "unknown"}]});
        assert_eq!(node.client.post("/v1/reading-batches", &nobodys).await.expect(200)["set_aside"], 1);
        let aside = operator.get("/v1/set-aside?open=true").await.expect(200)["items"][0]["set_aside_id"].clone();
        let ids = BTreeMap::from([
            ("tenant_id", ours.id.clone()),
            ("project_id", ours.project.clone()),
            ("user_id", user),
            ("session_id", session),
            ("key_id", key),
            ("invitation_id", invitation),
            ("pool_id", pool.clone()),
            ("node_id", node.id.clone()),
            ("allocation_id", held),
            ("set_aside_id", text(&aside)),
            ("plan_id", plan),
            ("invoice_id", past.invoice.to_string()),
            ("charge_id", past.charge.to_string()),
            ("line", "1".to_owned()),
        ]);
        Self { deployment, past, ours, theirs, node, other_node, pool, ids }
    }

    /// Callers of each role, our tenant's where the role is a tenant's.
    async fn callers(&self) -> Vec<(&'static str, Client)> {
        vec![
            (OPERATOR, self.deployment.operator.clone()),
            (CLERK, self.deployment.key(None, CLERK).await.1),
            (ADMIN, self.ours.admin.clone()),
            (MEMBER, self.ours.member.clone()),
            (VIEWER, self.ours.viewer.clone()),
            (NODE, self.node.client.clone()),
        ]
    }

    /// Path, query and body of a good request to an operation of the document.
    pub fn request(&self, operation: &Operation) -> (String, Option<Value>) {
        let mut path = operation.path.clone();
        for (name, value) in &self.ids {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "{path}: give the variable a value");
        let tenant = &self.ours.id;
        let month = &self.past.month;
        let query = match operation.id.as_str() {
            "get_usage" | "get_usage_csv" => {
                format!("?tenant_id={tenant}&by=model&from={month}-01T00:00:00Z&to={month}-20T00:00:00Z")
            }
            "get_balance" => format!("?from={month}-10T00:00:00Z&to={month}-11T00:00:00Z"),
            "preview_invoice" => format!("?tenant_id={tenant}&period={month}"),
            _ if operation.takes_tenant => format!("?tenant_id={tenant}"),
            _ => String::new(),
        };
        (path + &query, operation.has_body.then(|| self.body(&operation.id)))
    }

    fn body(&self, operation: &str) -> Value {
        let tenant = &self.ours.id;
        let rates = json!({"default": {"reserved": "1"}});
        match operation {
            "create_tenant" => json!({"name": "new", "zone": "UTC", "currency": "USD"}),
            "create_project" => json!({"tenant_id": tenant, "name": "new"}),
            "create_user" => json!({"tenant_id": tenant, "email": "new@example.com", "name": "new", "role": "viewer",
                "password": "long enough it is"}),
            "create_invitation" => json!({"tenant_id": tenant, "email": "x@example.com", "role": "viewer"}),
            "set_password" => json!({"password": "another that is long"}),
            "create_key" => json!({"tenant_id": tenant, "name": "new", "role": "viewer"}),
            "create_pool" => json!({"name": "new"}),
            "update_pool" => json!({"hold_grace_s": 601}),
            "create_join_token" => json!({}),
            "report_node" => self.node.body(&[]),
            "set_tenant_quota" => json!({"tenant_id": tenant, "limits": {"bytes": "1TiB"}}),
            "set_project_quota" => json!({"bytes": "1TiB"}),
            "create_allocation" | "dry_run_allocation" => {
                json!({"tenant_id": tenant, "pool_id": self.pool, "memory": "1GiB"})
            }
            "take_reading_batch" => json!({"stream_id": "01980000-0000-7000-8000-00000000000d", "sequence": 1,
                "sent_at": Clock::System.now(), "readings": []}),
            "accept_set_aside" | "reject_set_aside" => json!({"note": "seen"}),
            "create_plan" => json!({"name": "new", "currency": "USD", "unit": "GB-hour", "rates": rates}),
            "create_plan_version" => json!({"unit": "GB-hour", "rates": rates}),
            "create_subscription" => json!({"tenant_id": tenant, "plan_id": self.ids["plan_id"]}),
            "issue_invoice" => json!({"tenant_id": tenant, "period": self.past.month}),
            other => panic!("give {other} a good body"),
        }
    }

    pub async fn send(&self, client: &Client, operation: &Operation) -> Answer {
        let (path, body) = self.request(operation);
        Self::send_as(client, operation, &path, body).await
    }

    /// The same with another path, query or body.
    pub async fn send_as(client: &Client, operation: &Operation, path: &str, body: Option<Value>) -> Answer {
        let mut request = client.request(operation.method.clone(), path);
        if operation.id == "create_allocation" {
            request = request.header("Idempotency-Key", "walk");
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        client.send(request).await
    }
}

/// An operation of the document.
#[derive(Debug)]
pub struct Operation {
    pub id: String,
    pub method: Method,
    pub path: String,
    has_body: bool,
    takes_tenant: bool,
    /// Names of ids that the query may have.
    pub query_ids: Vec<String>,
    /// Names of ids that the body may have.
    pub body_ids: Vec<String>,
}

/// Every operation of the document that the server serves.
pub async fn operations(client: &Client) -> Vec<Operation> {
    let document = client.get("/v1/openapi.json").await.expect(200);
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            found.push(Operation {
                id: text(&operation["operationId"]),
                method: verb.to_uppercase().parse().unwrap(),
                path: path.clone(),
                has_body: !operation["requestBody"].is_null(),
                takes_tenant: parameters.iter().any(|p| p["in"] == "query" && p["name"] == "tenant_id"),
                query_ids: ids_among(parameters.iter().filter(|p| p["in"] == "query").map(|p| text(&p["name"]))),
                body_ids: ids_among(properties(&document, operation).into_iter()),
            });
        }
    }
    assert!(found.len() > 50, "{}", found.len());
    found
}

fn ids_among(names: impl Iterator<Item = String>) -> Vec<String> {
    names.filter(|name| name.ends_with("_id")).collect()
}

/// The fields of an operation's body.
fn properties(document: &Value, operation: &Value) -> Vec<String> {
    let reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
    let schema = reference.and_then(|reference| document.pointer(reference.trim_start_matches('#')));
    schema.and_then(|s| s["properties"].as_object()).into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

#[track_caller]
fn assert_denied(answer: &Answer, who: &str, operation: &Operation) {
    assert!(matches!(answer.status, 403 | 404), "{who} calls {}: {answer}", operation.id);
    // a path that does not exist would say nothing about who may use it
    assert!(matches!(answer.json["code"].as_str(), Some("forbidden" | "not_found")), "{who}: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_refuses_whom_it_is_not_for() {
    let stage = Stage::set().await;
    let deployment = &stage.deployment;
    let callers = stage.callers().await;
    let walked: Vec<Operation> =
        operations(&deployment.anyone()).await.into_iter().filter(|o| !PUBLIC.contains(&o.id.as_str())).collect();
    let foreigners = [(ADMIN, &stage.theirs.admin), (MEMBER, &stage.theirs.member), (VIEWER, &stage.theirs.viewer)];
    let strange_node = &stage.other_node.client;

    let before = deployment.snapshot().await;
    let mut open = BTreeSet::new();
    for operation in &walked {
        let (allowed, foreign) =
            rule(&operation.id).unwrap_or_else(|| panic!("{} is new: say above who may call it", operation.id));
        for client in [deployment.anyone(), deployment.anyone().with("glk_nobody"), deployment.anyone().with("a.b.c")] {
            let answer = stage.send(&client, operation).await;
            if answer.status != 401 {
                open.insert(format!("{}: {answer}", operation.id));
            }
        }
        for (role, client) in callers.iter().filter(|(role, _)| !allowed.contains(role)) {
            assert_denied(&stage.send(client, operation).await, role, operation);
        }
        for (role, client) in foreigners {
            if foreign == Refused && allowed.contains(&role) {
                // what is another's does not exist
                stage.send(client, operation).await.problem(404, "not_found", None);
            } else if !allowed.contains(&role) {
                let who = format!("another tenant's {role}");
                assert_denied(&stage.send(client, operation).await, &who, operation);
            } else {
                let answer = stage.send(client, operation).await;
                assert_eq!(answer.status, 200, "{answer}");
                let said = String::from_utf8_lossy(&answer.body).into_owned();
                assert!(!said.contains(&stage.ours.id), "{}: {answer}", operation.id);
            }
        }
        if allowed.contains(&NODE) && operation.path.contains("{allocation_id}") {
            assert_denied(&stage.send(strange_node, operation).await, "another node", operation);
        }
    }
    assert!(open.is_empty(), "without a credential: {open:#?}");
    assert_same(&deployment.snapshot().await, &before);

    serves_whom_it_is_for(&stage, &callers, &walked).await;
}

/// What ends what others need: tried after all else, in this order.
const ENDING: [&str; 7] = [
    "confirm_allocation",
    "renew_allocation",
    "release_allocation",
    "cancel_allocation",
    "disable_user",
    "revoke_node_credential",
    "remove_node",
];

/// The requests were good ones: whom they are for, they serve.
async fn serves_whom_it_is_for(stage: &Stage, callers: &[(&'static str, Client)], walked: &[Operation]) {
    let ending = ENDING.map(|id| walked.iter().find(|o| o.id == id).unwrap());
    let others = walked.iter().filter(|o| !ENDING.contains(&o.id.as_str()));
    for operation in others.chain(ending) {
        let (allowed, _) = rule(&operation.id).unwrap();
        for (n, (role, client)) in callers.iter().filter(|(role, _)| allowed.contains(role)).enumerate() {
            let answer = stage.send(client, operation).await;
            // what the first did may stand against the others doing it again
            let is_served = answer.status < 300 || answer.status == 409 || (n > 0 && answer.status == 422);
            assert!(is_served, "{role} calls {}: {answer}", operation.id);
        }
    }
    // a node that was removed is nobody
    assert_eq!(stage.node.report(&[]).await.status, 401);
}

fn assert_same(after: &Snapshot, before: &Snapshot) {
    let changed: Vec<_> = before.iter().filter(|(table, rows)| after.get(*table) != Some(rows)).collect();
    assert!(changed.is_empty(), "a refused call changed something: {changed:?}");
}

#[tokio::test]
async fn what_is_public_is_what_the_list_says() {
    let deployment = Deployment::start().await;
    let document = deployment.anyone().get("/v1/openapi.json").await.expect(200);
    let mut open = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            if operation["security"].as_array().is_none_or(Vec::is_empty) {
                open.insert(text(&operation["operationId"]));
            }
        }
    }
    assert_eq!(open, PUBLIC.map(str::to_owned).into());
    for path in ["/healthz", "/readyz", "/metrics", "/", "/docs/", "/v1/openapi.json"] {
        assert_eq!(deployment.anyone().get(path).await.status, 200, "{path}");
    }
    // logins, joins and invitations prove themselves by what is in the body
    let login = json!({"email": "nobody@example.com", "password": "whatever it is"});
    deployment.anyone().post("/v1/login", &login).await.problem(401, "unauthenticated", None);
    let join = json!({"token": format!("glj_{}", "a".repeat(60)), "hostname": "h", "machine_id": "m"});
    deployment.anyone().post("/v1/nodes/join", &join).await.problem(401, "unauthenticated", None);
    let accept = json!({"secret": format!("gli_{}", "a".repeat(60)), "name": "n", "password": "whatever it is"});
    deployment.anyone().post("/v1/invitations/accept", &accept).await.problem(401, "unauthenticated", None);
    assert_eq!(deployment.anyone().get("/v1/oidc").await.expect(200)["providers"], json!([]));
    for verb in ["start", "finish"] {
        let body = json!({"code": "c", "state": "s"});
        let path = format!("/v1/oidc/nobody/{verb}");
        deployment.anyone().post(&path, &body).await.problem(404, "not_found", None);
    }
}

#[tokio::test]
async fn a_revoked_key_and_a_disabled_person_are_nobody_at_once() {
    let deployment = Deployment::start().await;
    let tenant = deployment.tenant("tenant").await;
    let (id, client) = deployment.key(Some(&tenant.id), "member").await;
    client.get("/v1/allocations").await.expect(200);
    tenant.admin.post(&format!("/v1/keys/{id}/revoke"), &json!({})).await.expect(200);
    client.get("/v1/allocations").await.problem(401, "unauthenticated", None);

    let user = json!({"email": "kim@example.com", "name": "Kim", "role": "member",
        "password": crate::deployment::PASSWORD});
    let user = text(&tenant.admin.post("/v1/users", &user).await.expect(201)["user_id"]);
    let kim = log_in(&deployment.anyone(), "kim@example.com").await;
    kim.get("/v1/allocations").await.expect(200);
    tenant.admin.post(&format!("/v1/users/{user}/disable"), &json!({})).await.expect(200);
    kim.get("/v1/allocations").await.problem(401, "unauthenticated", None);
    let login = json!({"email": "kim@example.com", "password": crate::deployment::PASSWORD});
    deployment.anyone().post("/v1/login", &login).await.problem(401, "unauthenticated", None);

    // a node that joins again has one credential, the new one
    let pool = deployment.pool(60, 60).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    let again = deployment.node(&pool, "node", &[80 << 30]).await;
    assert_eq!(again.id, node.id);
    assert_eq!(node.report(&[]).await.status, 401);
    let id = start(&tenant.member, "key", &json!({"memory": "1GiB"})).await;
    assert_eq!(again.report(&[&id]).await.status, 200);
}
