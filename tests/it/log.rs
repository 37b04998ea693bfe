//! What the server says on standard error: one object a line, each request once, and never a secret.

use crate::deployment::{Deployment, OPERATOR, PASSWORD, Tenant, ask, change, run, text};
use reqwest::{Method, header};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use support::Client;
use types::Clock;

const GIB: u64 = 1 << 30;
/// Everything that our own code says, and what others say when somebody looks for a fault.
const FILTER: &str = "debug,gpuledger=trace,api=trace,app=trace,store=trace,postgres=trace,tower_http=debug";

async fn talkative() -> Deployment {
    Deployment::start_with(&[("GPULEDGER_LOG__FILTER", FILTER), ("GPULEDGER_LOG__FORMAT", "json")]).await
}

/// The lines of the log, each of which must be one object with the fields that every line has.
fn lines(log: &str) -> Vec<Value> {
    let said = log.lines().filter(|line| !line.starts_with("listening on "));
    said.map(|line| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for field in ["timestamp", "level", "target"] {
            assert!(value[field].is_string(), "no {field}: {line}");
        }
        value
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_one_line_with_who_what_and_which() {
    let deployment = talkative().await;
    let pool = deployment.pool(60, 60).await;
    let node = deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let id_of = |answer: &support::Answer| answer.headers["x-request-id"].to_str().unwrap().to_owned();
    let made = ask(&tenant.member, "one", &json!({"memory": "1GiB"})).await;
    let allocation = text(&made.json["allocation_id"]);
    let confirmed = change(&tenant.member, &allocation, "confirm").await;
    let report = node.report(&[&allocation]).await;
    let unknown = deployment.anyone().get("/v1/my-secret-path?and=query").await;
    let mine = "00000000-0000-7000-8000-00000000abcd";
    let named = deployment.operator.request(Method::GET, "/v1/me").header("x-request-id", mine);
    let named = deployment.operator.send(named).await;
    assert_ne!(id_of(&named), mine);

    let log = deployment.server.log();
    assert!(!log.contains(mine), "a client chose the id of a request");
    assert!(!log.contains("my-secret-path") && !log.contains("and=query"), "a path or query was logged as it came");
    let lines = lines(&log);
    for (answer, operation, status, caller) in [
        (&made, "create_allocation", 201, "key:"),
        (&confirmed, "confirm_allocation", 200, "key:"),
        (&report, "report_node", 200, "node:"),
        (&unknown, "other", 404, ""),
        (&named, "get_me", 200, "user:"),
    ] {
        let id = id_of(answer);
        let of_request = |line: &&Value| line["span"]["request_id"] == id && line["message"] == "answered";
        let answered: Vec<&Value> = lines.iter().filter(of_request).collect();
        let [line] = answered[..] else { panic!("{operation} was logged {} times", answered.len()) };
        assert_eq!((&line["span"]["operation"], &line["status"]), (&json!(operation), &json!(status)), "{line}");
        assert!(line["duration_us"].is_u64() && line["span"]["method"].is_string(), "{line}");
        assert!(line["span"]["caller"].as_str().unwrap_or_default().starts_with(caller), "{line}");
        if operation.ends_with("_allocation") {
            assert_eq!(line["span"]["allocation_id"], allocation, "{line}");
            assert_eq!(line["span"]["tenant_id"], tenant.id, "{line}");
        }
    }
    // and what the scheduler did of it
    let changes: Vec<&Value> = lines.iter().filter(|line| line["message"] == "allocation changed").collect();
    let states: Vec<&str> = changes.iter().filter_map(|line| line["state"].as_str()).collect();
    assert_eq!(states, ["queued", "held", "active"]);
    for line in changes {
        assert_eq!((&line["allocation_id"], &line["pool"]), (&json!(allocation), &json!(pool)), "{line}");
        assert!(line["term"].is_u64(), "{line}");
    }
    assert!(lines.iter().any(|line| line["message"] == "leads the pool" && line["term"].is_u64()));
}

/// Everything that is answered where a secret stands where an error may repeat it.
async fn misused(anyone: &Client, tenant: &Tenant, secret: &str) -> String {
    let mut told = String::new();
    for value in [format!("Bearer {secret}x"), format!("Basic {secret}"), secret.to_owned()] {
        let request = anyone.request(Method::GET, "/v1/me").header(header::AUTHORIZATION, value);
        told += &anyone.send(request.header(header::COOKIE, secret)).await.to_string();
    }
    for body in [
        json!({"email": OPERATOR, "password": format!("{secret}wrong")}),
        json!({"email": OPERATOR, "password": [secret]}),
    ] {
        told += &String::from_utf8_lossy(&anyone.post("/v1/login", &body).await.body);
    }
    let join = json!({"token": secret, "hostname": "other", "machine_id": "other"});
    told += &String::from_utf8_lossy(&anyone.post("/v1/nodes/join", &join).await.body);
    let user = json!({"email": "lee@example.com", "name": "Lee", "role": "operator", "password": secret});
    told += &String::from_utf8_lossy(&tenant.admin.post("/v1/users", &user).await.body);
    anyone.get(&format!("/v1/keys/{}?key={}", secret.replace(' ', "+"), secret.replace(' ', "+"))).await;
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_any_log_metric_audit_or_error() {
    let deployment = talkative().await;
    let mut secrets: BTreeSet<String> = BTreeSet::from([PASSWORD.to_owned()]);
    let mut told = String::new();
    let (_, rest) = deployment.database_url.split_once("://").unwrap();
    if let Some((_, password)) = rest.split_once('@').and_then(|(user, _)| user.split_once(':')) {
        secrets.insert(password.to_owned());
    }

    // each kind of secret, made and used
    let session =
        deployment.anyone().post("/v1/login", &json!({"email": OPERATOR, "password": PASSWORD})).await.expect(200);
    let token = text(&session["token"]);
    deployment.anyone().with(&token).get("/v1/me").await.expect(200);
    let pool = deployment.pool(60, 60).await;
    let join_token = deployment.join_token(&pool).await;
    let join = json!({"token": join_token, "hostname": "host", "machine_id": "host"});
    let joined = deployment.anyone().post("/v1/nodes/join", &join).await.expect(201);
    let credential = text(&joined["credential"]);
    let now = Clock::System.now();
    let report = json!({"boot_id": "boot", "sent_at": now, "gpus": [], "alive": [], "exited": []});
    deployment.anyone().with(&credential).post("/v1/node-reports", &report).await;
    let tenant = deployment.tenant("tenant").await;
    let key = text(&deployment.secret(Some(&tenant.id), "member").await["secret"]);
    deployment.anyone().with(&key).get("/v1/allocations").await.expect(200);
    let theirs = "one more password of tests";
    let user = json!({"email": "kim@example.com", "name": "Kim", "role": "member", "password": theirs});
    tenant.admin.post("/v1/users", &user).await.expect(201);
    secrets.extend([token, join_token, credential, key, theirs.to_owned()]);

    // and each misused
    let anyone = deployment.anyone();
    for secret in &secrets {
        told += &misused(&anyone, &tenant, secret).await;
    }
    told += &anyone.get("/metrics").await.to_string();
    told += &deployment.operator.get("/v1/audit").await.to_string();
    told += &deployment.operator.get(&format!("/v1/audit?tenant_id={}", tenant.id)).await.to_string();
    told += &deployment.operator.get("/v1/keys").await.to_string();
    told += &tenant.admin.get("/v1/users").await.to_string();
    let environment = [("DATABASE_URL", &*deployment.database_url), ("RUST_LOG", FILTER)];
    for args in [&["config"][..], &["doctor"], &["doctor", "--json"], &["migrate"], &["verify-invoice", "GL-000001"]] {
        let ran = run(args, &environment, "");
        told += &(ran.out + &ran.err);
    }
    let away = deployment.database_url.replace("127.0.0.1:", "127.0.0.1:1");
    for args in [&["doctor"][..], &["migrate"], &["serve"]] {
        let wrong = [("DATABASE_URL", &*away.replace("postgres://", "mysql://")), ("RUST_LOG", FILTER)];
        let ran = run(args, &wrong, "");
        told += &(ran.out + &ran.err);
    }
    let process = format!("/proc/{}/cmdline", deployment.server.pid());
    told += &String::from_utf8_lossy(&fs::read(process).unwrap());

    let log = deployment.server.log();
    assert!(log.len() > 20_000 && log.contains("create_user"), "the log is not that of a busy server");
    lines(&log);
    for secret in secrets {
        assert!(secret.len() >= 12, "{secret} is too short to be looked for");
        for (place, text) in [("the log", &log), ("an answer or output", &told)] {
            if let Some(at) = text.find(&secret) {
                let (from, to) = (at.saturating_sub(200), (at + 200).min(text.len()));
                panic!("{place} holds {secret}: …{}…", String::from_utf8_lossy(&text.as_bytes()[from..to]));
            }
        }
    }
}
