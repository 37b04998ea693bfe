//! Bad input: each gets a problem that names the field and the rule, and changes nothing.

use crate::deployment::{Deployment, Node, OPERATOR, PASSWORD, Tenant, ask, log_in, text};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::{Method, header};
use serde_json::{Value, json};
use sqlx::Row;
use std::{
    io::Write,
    process::{Command, Stdio},
};
use support::{Answer, Client};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use types::Clock;

const GIB: u64 = 1 << 30;
/// The limit on bodies.
const LIMIT: usize = 64 << 10;

/// A pool with a node of two cards of 80 GiB, and a tenant with an allocation.
async fn deployment() -> (Deployment, Node, Tenant) {
    let deployment = Deployment::start_with(&[("GPULEDGER_HTTP__BODY_LIMIT", "65536")]).await;
    let pool = deployment.pool(600, 600).await;
    let node = deployment.node(&pool, "node", &[80 * GIB, 80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    ask(&tenant.member, "held", &json!({"memory": "1GiB"})).await.expect(201);
    (deployment, node, tenant)
}

async fn raw(client: &Client, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
    let request = client.request(Method::POST, path).header("Idempotency-Key", "raw").body(body);
    client.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn memory_that_is_none_is_refused() {
    let (deployment, _, tenant) = deployment().await;
    let before = deployment.snapshot().await;
    for memory in [
        json!(0),
        json!("0"),
        json!("0GiB"),
        json!("NaN"),
        json!("inf"),
        json!(-1),
        json!("-1GiB"),
        json!(1.5),
        json!("1.5GiB"),
        json!("81GiB"),
        json!(80 * GIB + 1),
        json!(u64::MAX),
        json!("99999999999999999999GiB"),
        json!("20G"),
        json!("20 parsecs"),
        json!("GiB"),
        json!(""),
        json!(null),
        json!([1]),
    ] {
        let body = json!({"memory": memory});
        let problem = ask(&tenant.member, "bad", &body).await.problem(422, "invalid", Some("memory"));
        assert!(!problem["errors"][0]["rule"].as_str().unwrap().is_empty(), "{problem}");
        tenant.member.post("/v1/allocations/dry-run", &body).await.problem(422, "invalid", Some("memory"));
    }
    for literal in ["NaN", "Infinity", "0x10", "1e", "-"] {
        let body = format!("{{\"memory\": {literal}}}");
        raw(&tenant.member, "/v1/allocations", &[JSON], body).await.problem(400, "malformed", None);
    }
    ask(&tenant.member, "bad", &json!({})).await.problem(422, "invalid", Some("memory"));
    assert_eq!(deployment.snapshot().await, before);
    // the key was not used up by any of them
    ask(&tenant.member, "bad", &json!({"memory": "80GiB"})).await.expect(201);
}

#[tokio::test]
async fn a_model_node_number_or_duration_that_the_pool_has_not_is_refused() {
    let (deployment, _, tenant) = deployment().await;
    let before = deployment.snapshot().await;
    let nowhere = "01980000-0000-7000-8000-000000000001";
    for (field, value) in [
        ("model", json!("NVIDIA H9000")),
        ("model", json!("")),
        ("model", json!("bell\u{7}")),
        ("model", json!("x".repeat(201))),
        ("gpus", json!(0)),
        ("gpus", json!(65)),
        ("gpus", json!(-1)),
        ("node_id", json!(nowhere)),
        ("node_id", json!("node")),
        ("max_duration_s", json!(0)),
        ("max_duration_s", json!(31_622_401)),
        ("project_id", json!("default")),
    ] {
        let mut body = json!({"memory": "1GiB"});
        body[field] = value;
        ask(&tenant.member, "bad", &body).await.problem(422, "invalid", Some(field));
    }
    let far = ask(&tenant.member, "bad", &json!({"memory": "1GiB", "pool_id": nowhere})).await;
    far.problem(404, "not_found", None);
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn a_foreign_or_unknown_project_does_not_exist() {
    let (deployment, _, tenant) = deployment().await;
    let other = deployment.tenant("other").await;
    let before = deployment.snapshot().await;
    for project in [other.project.as_str(), "01980000-0000-7000-8000-000000000001"] {
        let body = json!({"memory": "1GiB", "project_id": project});
        for client in [&tenant.member, &tenant.admin] {
            ask(client, "bad", &body).await.problem(404, "not_found", None);
        }
        let body = json!({"memory": "1GiB", "project_id": project, "tenant_id": tenant.id});
        ask(&deployment.operator, "bad", &body).await.problem(404, "not_found", None);
        let quota = tenant.admin.put(&format!("/v1/projects/{project}/quota"), &json!({"bytes": 1})).await;
        quota.problem(404, "not_found", None);
    }
    let body = json!({"memory": "1GiB", "tenant_id": other.id});
    ask(&tenant.member, "bad", &body).await.problem(404, "not_found", None);
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn names_with_control_characters_or_too_long_are_refused() {
    let (deployment, _, tenant) = deployment().await;
    let token =
        deployment.join_token(&text(&deployment.operator.get("/v1/pools").await.json["items"][0]["pool_id"])).await;
    let before = deployment.snapshot().await;
    let operator = &deployment.operator;
    let rates = json!({"default": {"reserved": "1"}});
    let long = "\u{ae40}".repeat(67);
    for name in ["", "bell\u{7}", "two\nlines", "nul\u{0}", "\u{202e}reversed", " padded", &"x".repeat(201), &long] {
        for (client, path, body) in [
            (operator, "/v1/tenants", json!({"name": name, "zone": "UTC", "currency": "USD"})),
            (operator, "/v1/pools", json!({"name": name})),
            (operator, "/v1/plans", json!({"name": name, "currency": "USD", "unit": "GB-hour", "rates": rates})),
            (&tenant.admin, "/v1/projects", json!({"name": name})),
            (&tenant.admin, "/v1/keys", json!({"name": name, "role": "viewer"})),
            (
                &tenant.admin,
                "/v1/users",
                json!({"name": name, "email": "a@b.example", "role": "viewer", "password": "long enough it is"}),
            ),
        ] {
            client.post(path, &body).await.problem(422, "invalid", Some("name"));
        }
        let join = json!({"token": token, "hostname": name, "machine_id": "m"});
        deployment.anyone().post("/v1/nodes/join", &join).await.problem(422, "invalid", Some("hostname"));
        let join = json!({"token": token, "hostname": "h", "machine_id": name});
        deployment.anyone().post("/v1/nodes/join", &join).await.problem(422, "invalid", Some("machine_id"));
    }
    for key in ["", &"x".repeat(201)] {
        let answer = ask(&tenant.member, key, &json!({"memory": "1GiB"})).await;
        answer.problem(422, "invalid", Some("Idempotency-Key"));
    }
    assert_eq!(deployment.snapshot().await, before);
}

/// What `gzip` makes of it.
pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let plain = plain.to_owned();
    let writer = std::thread::spawn(move || input.write_all(&plain).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}

/// The answer to the head of a request whose body never comes: the head says that it is too long.
async fn answer_to_head(deployment: &Deployment, path: &str, length: usize) -> String {
    let address = deployment.server.url().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_also_when_it_is_small_on_the_way() {
    let (deployment, node, tenant) = deployment().await;
    let before = deployment.snapshot().await;
    let body = |length: usize| format!("{{\"memory\": \"1GiB\"{}}}", " ".repeat(length));
    let bomb = body(16 << 20);
    let (gzipped, zipped) = (gzip(bomb.as_bytes()), zstd::encode_all(bomb.as_bytes(), 3).unwrap());
    assert!(gzipped.len() < LIMIT && zipped.len() < LIMIT);
    for (client, path) in [
        (&tenant.member, "/v1/allocations"),
        (&node.client, "/v1/reading-batches"),
        (&deployment.anyone(), "/v1/login"),
    ] {
        let answer = answer_to_head(&deployment, path, LIMIT + 1).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
        for (encoding, bytes) in [("gzip", &gzipped), ("zstd", &zipped)] {
            let answer = raw(client, path, &[JSON, ("content-encoding", encoding)], bytes.clone()).await;
            answer.problem(413, "body_too_large", None);
        }
    }
    // what is no gzip or zstd at all
    for encoding in ["gzip", "zstd"] {
        let answer = raw(&tenant.member, "/v1/allocations", &[JSON, ("content-encoding", encoding)], "{}").await;
        answer.problem(400, "bad_request", None);
    }
    let answer = raw(&tenant.member, "/v1/allocations", &[JSON, ("content-encoding", "br")], "{}").await;
    answer.problem(415, "unsupported_media_type", None);
    assert_eq!(deployment.snapshot().await, before);
    // up to the limit, and compressed, it is taken
    let fits = gzip(body(LIMIT / 2).as_bytes());
    raw(&tenant.member, "/v1/allocations", &[JSON, ("content-encoding", "gzip")], fits).await.expect(201);
}

/// A token over claims, signed by the server's own key.
pub fn sign(claims: &Value, kid: &str, key: &EncodingKey) -> String {
    jsonwebtoken::encode(&Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) }, claims, key).unwrap()
}

fn part(value: &Value) -> String {
    // base64url of JSON, as tokens have it
    let encoded = jsonwebtoken::encode(&Header::default(), value, &EncodingKey::from_secret(b"x").unwrap()).unwrap();
    encoded.split('.').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn tokens_that_are_malformed_expired_unsigned_or_anothers_are_refused() {
    let (deployment, ..) = deployment().await;
    let login = json!({"email": OPERATOR, "password": PASSWORD});
    let session = deployment.anyone().post("/v1/login", &login).await.expect(200);
    let user = text(&deployment.operator.get("/v1/me").await.expect(200)["user"]["user_id"]);
    let row = sqlx::query("select kid, private_key, public_key from signing_key")
        .fetch_one(&mut deployment.owner().await)
        .await
        .unwrap();
    let (kid, private, public): (String, Vec<u8>, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
    let key = EncodingKey::from_ec_der(&private);
    let now = Clock::System.now().as_millis() / 1000;
    let claims = json!({"iss": "gpuledger", "aud": "gpuledger", "sub": user, "sid": session["session_id"], "iat": now - 60, "exp": now + 600});
    let with = |field: &str, value: Value| {
        let mut changed = claims.clone();
        changed[field] = value;
        sign(&changed, &kid, &key)
    };
    let good = sign(&claims, &kid, &key);
    deployment.anyone().with(&good).get("/v1/tenants").await.expect(200);
    let (body, signature) = good.rsplit_once('.').unwrap();
    let payload = good.split('.').nth(1).unwrap();
    let none = part(&json!({"alg": "none", "typ": "JWT", "kid": kid}));
    let shared = |secret: &[u8]| {
        let header = Header { kid: Some(kid.clone()), ..Header::new(Algorithm::HS256) };
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(secret).unwrap()).unwrap()
    };
    let before = deployment.snapshot().await;
    for (what, token) in [
        ("no token", "x".to_owned()),
        ("two parts", body.to_owned()),
        ("no signature", format!("{body}.")),
        ("alg none", format!("{none}.{payload}.")),
        ("alg none with a signature", format!("{none}.{payload}.{signature}")),
        ("signed with the public key as a secret", shared(&public)),
        ("signed with a guess", shared(b"secret")),
        ("another issuer", with("iss", json!("https://issuer.example"))),
        ("another audience", with("aud", json!("another"))),
        ("expired", with("exp", json!(now - 31))),
        ("not yet", with("iat", json!(now + 600))),
        ("another key", sign(&claims, "0123456789abcdef", &key)),
        ("nobody", with("sub", json!("01980000-0000-7000-8000-000000000001"))),
        ("too long", format!("{good}{}", "A".repeat(5000))),
        ("an unknown API key", format!("glk_{}", "a".repeat(60))),
        ("an unknown node", "gln_aaaaaaaaaa_bbbbbbbbbb".to_owned()),
        ("a join token", format!("glj_{}", "a".repeat(60))),
    ] {
        let client = deployment.anyone().with(&token);
        for answer in [client.get("/v1/tenants").await, client.post("/v1/pools", &json!({"name": "p"})).await] {
            assert!(answer.headers.contains_key(header::WWW_AUTHENTICATE), "{what}: {answer}");
            assert_eq!(answer.status, 401, "{what}: {answer}");
            answer.problem(401, "unauthenticated", None);
        }
    }
    let wrong = json!({"email": OPERATOR, "password": "not the password"});
    deployment.anyone().post("/v1/login", &wrong).await.problem(401, "unauthenticated", None);
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn a_batch_out_of_sequence_malformed_or_of_another_node_is_refused() {
    let (deployment, node, tenant) = deployment().await;
    let pool = text(&deployment.operator.get("/v1/pools").await.json["items"][0]["pool_id"]);
    let other = deployment.node(&pool, "other", &[GIB]).await;
    let stream = "01980000-0000-7000-8000-00000000000a";
    let batch = |sequence: Value, readings: Value| json!({"stream_id": stream, "sequence": sequence, "sent_at": Clock::System.now(), "readings": readings});
    let send = async |client: &Client, body: &Value| client.post("/v1/reading-batches", body).await;
    let gap = send(&node.client, &batch(json!(2), json!([]))).await.problem(409, "sequence_gap", None);
    assert_eq!(gap["expected"], 1);
    send(&node.client, &batch(json!(1), json!([]))).await.expect(200);
    let before = deployment.snapshot().await;
    let gap = send(&node.client, &batch(json!(3), json!([]))).await.problem(409, "sequence_gap", None);
    assert_eq!(gap["expected"], 2);
    // a repeat is no fault, and changes nothing
    assert_eq!(send(&node.client, &batch(json!(1), json!([]))).await.expect(200)["accepted"], 0);
    send(&other.client, &batch(json!(2), json!([]))).await.problem(404, "not_found", None);
    send(&other.client, &batch(json!(1), json!([]))).await.problem(404, "not_found", None);
    for client in [&tenant.admin, &deployment.operator] {
        send(client, &batch(json!(2), json!([]))).await.problem(403, "forbidden", None);
    }
    let reading = json!({
        "part_id": stream, "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:01:00Z", "granted": 1,
        "covered_ms": 60_000, "quality": "unknown"
    });
    let changed = |field: &str, value: Value| {
        let mut reading = reading.clone();
        reading[field] = value;
        json!([reading])
    };
    for (field, body) in [
        ("sequence", batch(json!(0), json!([]))),
        ("sequence", batch(json!(-1), json!([]))),
        ("sequence", batch(json!("2"), json!([]))),
        ("sequence", batch(json!(u64::MAX), json!([]))),
        ("readings", batch(json!(2), json!({}))),
        ("readings[0].part_id", batch(json!(2), json!([{}]))),
        ("readings[0].granted", batch(json!(2), changed("granted", json!(-1)))),
        ("readings[0].used", batch(json!(2), changed("used", json!("much")))),
        ("readings[0].quality", batch(json!(2), changed("quality", json!("guessed")))),
        ("readings[0].start", batch(json!(2), changed("start", json!("yesterday")))),
        ("readings[0].colour", batch(json!(2), changed("colour", json!("red")))),
    ] {
        send(&node.client, &body).await.problem(422, "invalid", Some(field));
    }
    for body in ["", "{", "{\"stream_id\": }", "\u{0}"] {
        raw(&node.client, "/v1/reading-batches", &[JSON], body).await.problem(400, "malformed", None);
    }
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn a_plan_with_a_negative_price_is_refused() {
    let (deployment, ..) = deployment().await;
    let operator = &deployment.operator;
    let plan = |rates: Value| json!({"name": "plan", "currency": "USD", "unit": "GB-hour", "rates": rates});
    let made = operator.post("/v1/plans", &plan(json!({"default": {"reserved": "0"}}))).await.expect(201);
    let versions = format!("/v1/plans/{}/versions", text(&made["plan_id"]));
    let before = deployment.snapshot().await;
    for (field, rates) in [
        ("rates.default.reserved", json!({"default": {"reserved": "-0.01"}})),
        ("rates.default.reserved", json!({"default": {"reserved": "NaN"}})),
        ("rates.default.above", json!({"default": {"reserved": "1", "above": "-1"}})),
        (
            "rates.models.NVIDIA L4.reserved",
            json!({"default": {"reserved": "1"}, "models": {"NVIDIA L4": {"reserved": "-1"}}}),
        ),
    ] {
        let mut body = plan(rates.clone());
        body["name"] = json!("another");
        operator.post("/v1/plans", &body).await.problem(422, "invalid", Some(field));
        let version = json!({"unit": "GB-hour", "rates": rates});
        operator.post(&versions, &version).await.problem(422, "invalid", Some(field));
    }
    for (field, value) in [("currency", "money"), ("unit", "TB-year"), ("valid_from", "soon")] {
        let mut body = plan(json!({"default": {"reserved": "1"}}));
        body["name"] = json!("another");
        body[field] = json!(value);
        operator.post("/v1/plans", &body).await.problem(422, "invalid", Some(field));
    }
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn a_period_that_is_not_over_is_not_issued() {
    let (deployment, _, tenant) = deployment().await;
    let now = Clock::System.now().to_jiff().to_zoned(jiff::tz::TimeZone::get("Asia/Seoul").unwrap());
    let next = now.date().checked_add(jiff::Span::new().months(1)).unwrap();
    let before = deployment.snapshot().await;
    let periods = [now.strftime("%Y-%m").to_string(), next.strftime("%Y-%m").to_string()];
    for period in periods.iter().map(String::as_str).chain(["2026-13", "last month", "2026-1", ""]) {
        let body = json!({"tenant_id": tenant.id, "period": period});
        let problem = deployment.operator.post("/v1/invoices", &body).await.problem(422, "invalid", Some("period"));
        assert!(!problem["errors"][0]["rule"].as_str().unwrap().is_empty(), "{problem}");
        let waived = json!({"tenant_id": tenant.id, "period": period, "waiver": "because"});
        deployment.operator.post("/v1/invoices", &waived).await.problem(422, "invalid", Some("period"));
    }
    assert_eq!(deployment.snapshot().await, before);
}

#[tokio::test]
async fn what_is_no_request_of_this_api_is_refused() {
    let (deployment, _, tenant) = deployment().await;
    let before = deployment.snapshot().await;
    let (operator, member) = (&deployment.operator, &tenant.member);
    for path in ["/v1/nothing", "/v1", "/v1/allocations/x/y/z", "/v2/tenants", "/etc/passwd"] {
        operator.get(path).await.problem(404, "no_such_path", None);
    }
    operator.delete("/v1/tenants").await.problem(405, "method_not_allowed", None);
    operator.put("/v1/allocations", &json!({})).await.problem(405, "method_not_allowed", None);
    let answer = operator.get("/v1/login").await;
    assert!(answer.headers[header::ALLOW].to_str().unwrap().contains("POST"), "{answer}");
    answer.problem(405, "method_not_allowed", None);

    let body = json!({"memory": "1GiB", "colour": "red"});
    ask(member, "bad", &body).await.problem(422, "invalid", Some("colour"));
    raw(member, "/v1/allocations", &[JSON], r#"{"memory": 1, "memory": 2}"#).await.problem(
        422,
        "invalid",
        Some("memory"),
    );
    let nested = json!({"tenant_id": tenant.id, "limits": {"bites": 1}});
    operator.put("/v1/quotas/tenant", &nested).await.problem(422, "invalid", Some("limits.bites"));
    operator.get("/v1/tenants?colour=red").await.problem(422, "invalid", Some("colour"));
    operator.get("/v1/tenants?limit=0").await.problem(422, "invalid", Some("limit"));
    operator.get("/v1/tenants?cursor=x").await.problem(422, "invalid", Some("cursor"));
    member.get("/v1/allocations/not-an-id").await.problem(422, "invalid", Some("allocation_id"));

    let one = "{\"memory\": \"1GiB\"}";
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let answer = raw(member, "/v1/allocations", &[("content-type", content_type)], one).await;
        answer.problem(415, "unsupported_media_type", None);
    }
    raw(member, "/v1/allocations", &[], one).await.problem(415, "unsupported_media_type", None);

    let without = member.post("/v1/allocations", &json!({"memory": "1GiB"})).await;
    without.problem(422, "invalid", Some("Idempotency-Key"));
    assert_eq!(deployment.snapshot().await, before);
    // a key stands for one request
    ask(member, "held", &json!({"memory": "2GiB"})).await.problem(422, "key_reused", None);
    assert_eq!(deployment.snapshot().await, before);
    assert_eq!(log_in(&deployment.anyone(), OPERATOR).await.get("/v1/me").await.status, 200);
}
