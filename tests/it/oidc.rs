//! People of other token issuers: whose tokens are credentials, for how long, and what stands in the way of all others.

use crate::{
    deployment::{Deployment, Tenant, eventually, text},
    invitation::{accept_as, invite},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use std::net::SocketAddr;
use support::{AUDIENCE, Answer, CLIENT_ID, Client, Issuer, IssuerKey, Server};
use tokio::{net::TcpListener, task::JoinSet};

/// A deployment whose people come from these issuers.
async fn deployment(issuers: &[(&str, &Issuer)]) -> Deployment {
    let configuration: Vec<(String, String)> =
        issuers.iter().flat_map(|(name, issuer)| issuer.configuration(name)).collect();
    let configuration: Vec<(&str, &str)> = configuration.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    Deployment::start_with(&configuration).await
}

/// A person of a tenant whom an issuer knows by this subject: the user id.
async fn person(tenant: &Tenant, anyone: &Client, issuer: &Issuer, subject: &str) -> String {
    let made = invite(&tenant.admin, None, &format!("{subject}@example.com"), "member").await;
    text(&accept_as(anyone, &text(&made["secret"]), &issuer.token(subject)).await.expect(201)["user_id"])
}

async fn call(anyone: &Client, token: &str) -> Answer {
    anyone.with(token).get("/v1/me").await
}

#[tokio::test]
async fn a_token_is_a_credential_for_whom_an_invitation_let_in() {
    let issuer = Issuer::start().await;
    let deployment = deployment(&[("CORP", &issuer)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    // an address in a token lets nobody in, not even the operator's
    let mut claims = issuer.claims("stranger");
    claims["email"] = json!(crate::deployment::OPERATOR);
    claims["email_verified"] = json!(true);
    let token = issuer.keys()[0].sign(&claims);
    let problem = call(&anyone, &token).await.problem(401, "invitation_needed", None);
    assert!(text(&problem["title"]).contains("invitation"), "{problem}");

    let user = person(&tenant, &anyone, &issuer, "kim").await;
    let kim = anyone.with(&issuer.token("kim"));
    let me = kim.get("/v1/me").await.expect(200);
    assert_eq!((&me["actor"], &me["role"]), (&json!(format!("user:{user}")), &json!("member")));
    assert_eq!(me["tenant"]["tenant_id"], tenant.id);
    kim.get("/v1/users").await.problem(403, "forbidden", None);
    // no password opens the account
    for password in ["", "nobody has this password"] {
        let login = json!({"email": "kim@example.com", "password": password});
        anyone.post("/v1/login", &login).await.problem(401, "unauthenticated", None);
    }
    // whoever has an account gets no second one
    let again = invite(&tenant.admin, None, "again@example.com", "tenant_admin").await;
    let answer = accept_as(&anyone, &text(&again["secret"]), &issuer.token("kim")).await;
    answer.problem(409, "identity_taken", None);

    let audit = tenant.admin.get("/v1/audit").await.expect(200);
    let accepted =
        audit["items"].as_array().unwrap().iter().find(|entry| entry["action"] == "invitation.accept").unwrap();
    assert_eq!((&accepted["detail"]["issuer"], &accepted["detail"]["subject"]), (&json!(issuer.url()), &json!("kim")));

    tenant.admin.post(&format!("/v1/users/{user}/disable"), &json!({})).await.expect(200);
    kim.get("/v1/me").await.problem(401, "unauthenticated", None);
}

#[tokio::test]
async fn tokens_that_are_not_what_they_must_be_are_refused() {
    let (issuer, other) = (Issuer::start().await, Issuer::start().await);
    let deployment = deployment(&[("CORP", &issuer), ("LAB", &other)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    person(&tenant, &anyone, &issuer, "kim").await;
    let before = deployment.snapshot().await;
    let key = &issuer.keys()[0];
    let now = issuer.claims("kim")["iat"].as_i64().unwrap();
    let with = |field: &str, value: Value| {
        let mut claims = issuer.claims("kim");
        claims[field] = value;
        key.sign(&claims)
    };
    let by = |algorithm: Algorithm, key: &EncodingKey| {
        let header = Header { kid: Some("first".to_owned()), ..Header::new(algorithm) };
        jsonwebtoken::encode(&header, &issuer.claims("kim"), key).unwrap()
    };
    let public = key.public();
    let shared = |secret: &str| by(Algorithm::HS256, &EncodingKey::from_secret(secret.as_bytes()).unwrap());
    let good = issuer.token("kim");
    let (head, rest) = good.split_once('.').unwrap();
    let payload = rest.split_once('.').unwrap().0;
    // base64url of JSON, as tokens have it
    let encoded = |value: &Value| {
        let any = jsonwebtoken::encode(&Header::default(), value, &EncodingKey::from_secret(b"x").unwrap()).unwrap();
        any.split('.').nth(1).unwrap().to_owned()
    };
    let none = encoded(&json!({"alg": "none", "kid": "first"}));
    for (what, token) in [
        ("another audience", with("aud", json!("https://other.example"))),
        ("no audience", with("aud", json!([]))),
        ("the client's audience", with("aud", json!(CLIENT_ID))),
        ("expired beyond the leeway", with("exp", json!(now - 31))),
        ("not yet good beyond the leeway", with("nbf", json!(now + 60))),
        ("of the future", with("iat", json!(now + 60))),
        ("no subject", with("sub", json!(""))),
        ("a subject that no database can hold", with("sub", json!("a\u{0}b"))),
        ("an issuer that nobody configured", with("iss", json!("https://nobody.example"))),
        ("our own issuer", with("iss", json!("gpuledger"))),
        ("almost the issuer", with("iss", json!(format!("{}/", issuer.url())))),
        ("another issuer's name, by this issuer's key", with("iss", json!(other.url()))),
        ("this issuer's name, by another issuer's key", other.keys()[0].sign(&issuer.claims("kim"))),
        ("this issuer's name, by nobody's key", IssuerKey::new("first").sign(&issuer.claims("kim"))),
        ("the public key as a secret", shared(public["x"].as_str().unwrap())),
        ("the public key's text as a secret", shared(&public.to_string())),
        ("unsigned", format!("{none}.{payload}.")),
        ("unsigned with the signature of another", format!("{none}.{rest}")),
        ("cut", format!("{head}.{payload}.")),
        ("longer than any", with("x", json!("x".repeat(20_000)))),
    ] {
        let answer = call(&anyone, &token).await;
        assert_eq!(answer.status, 401, "{what}: {answer}");
        assert_eq!(answer.json["code"], "unauthenticated", "{what}: {answer}");
    }
    // the same subject of another issuer is somebody else
    call(&anyone, &other.token("kim")).await.problem(401, "invitation_needed", None);
    assert_eq!(deployment.snapshot().await, before);
    for (what, token) in [
        ("as it is", good.clone()),
        ("expired within the leeway", with("exp", json!(now - 20))),
        ("not yet good within the leeway", with("nbf", json!(now + 25))),
        ("one of several audiences", with("aud", json!(["x", AUDIENCE]))),
        ("long", with("groups", json!("x".repeat(8000)))),
    ] {
        let answer = call(&anyone, &token).await;
        assert_eq!(answer.status, 200, "{what}: {answer}");
    }
}

#[tokio::test]
async fn keys_come_and_go_without_a_restart() {
    let issuer = Issuer::start().await;
    let deployment = deployment(&[("CORP", &issuer)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    person(&tenant, &anyone, &issuer, "kim").await;
    let old = issuer.token("kim");
    let first = issuer.keys().remove(0);
    issuer.publish(vec![first, IssuerKey::new("second")]);
    let new = issuer.token("kim");
    let accepted = eventually("a new key is known", 20, async || {
        let answer = call(&anyone, &new).await;
        (answer.status == 200).then_some(()).or_else(|| {
            assert_eq!(answer.json["code"], "unauthenticated", "{answer}");
            None
        })
    });
    accepted.await;
    call(&anyone, &old).await.expect(200);
    let second = issuer.keys().remove(1);
    issuer.publish(vec![second]);
    eventually("a key that was withdrawn is known no more", 20, async || {
        call(&anyone, &new).await.expect(200);
        (call(&anyone, &old).await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_up_keys_do_not_flood_the_issuer() {
    let issuer = Issuer::start().await;
    let deployment = deployment(&[("CORP", &issuer)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    person(&tenant, &anyone, &issuer, "kim").await;
    let good = issuer.token("kim");
    let before = issuer.reads();
    let since = std::time::Instant::now();
    let made_up: Vec<String> =
        (0..200).map(|n| IssuerKey::new(&format!("made up {n}")).sign(&issuer.claims("kim"))).collect();
    let calls: JoinSet<u16> = made_up
        .into_iter()
        .map(|token| {
            let anyone = anyone.clone();
            async move { call(&anyone, &token).await.status }
        })
        .collect();
    let good_ones = async {
        for _ in 0..20 {
            call(&anyone, &good).await.expect(200);
        }
    };
    let (statuses, ()) = tokio::join!(calls.join_all(), good_ones);
    assert_eq!(statuses, [401; 200]);
    let most = usize::try_from(since.elapsed().as_secs() / 5).unwrap() + 1;
    let reads = issuer.reads() - before;
    assert!(reads <= most, "{reads} reads of the keys, {most} would do");
}

#[tokio::test]
async fn an_issuer_that_is_away_stops_nobody_at_once_and_no_server_from_starting() {
    // an address where nobody listens yet
    let address: SocketAddr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let named = format!("http://{address}/realm");
    let deployment = Deployment::start_with(&[
        ("GPULEDGER_OIDC__CORP__ISSUER", &named),
        ("GPULEDGER_OIDC__CORP__AUDIENCES", &format!("[{AUDIENCE:?}]")),
        ("GPULEDGER_OIDC__CORP__REFRESH", "5s"),
        ("GPULEDGER_OIDC__CORP__OUTAGE", "15s"),
    ])
    .await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    let elsewhere = Issuer::start().await;
    let mut claims = elsewhere.claims("kim");
    claims["iss"] = json!(named);
    let early = elsewhere.keys()[0].sign(&claims);
    call(&anyone, &early).await.problem(503, "unavailable", None);

    let issuer = Issuer::start_at(address).await;
    let token = issuer.token("kim");
    eventually("the issuer is found", 20, async || {
        let answer = call(&anyone, &token).await;
        (answer.status == 401 && answer.json["code"] == "invitation_needed").then_some(())
    })
    .await;
    person(&tenant, &anyone, &issuer, "kim").await;
    issuer.set_down(true);
    eventually("the issuer was asked in vain", 20, async || {
        call(&anyone, &token).await.expect(200);
        (issuer.refused() > 0).then_some(())
    })
    .await;
    call(&anyone, &token).await.expect(200);
    eventually("known keys are too old", 40, async || {
        let answer = call(&anyone, &token).await;
        (answer.status == 503).then_some(()).or_else(|| {
            answer.expect(200);
            None
        })
    })
    .await;
    issuer.set_down(false);
    eventually("the issuer is back", 20, async || (call(&anyone, &token).await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn a_document_of_another_issuer_is_none() {
    let issuer = Issuer::start().await;
    issuer.claim_to_be(&format!("{}/", issuer.url()));
    let deployment = deployment(&[("CORP", &issuer)]).await;
    call(&deployment.anyone(), &issuer.token("kim")).await.problem(503, "unavailable", None);
    deployment.anyone().post("/v1/oidc/corp/start", &json!({})).await.problem(503, "unavailable", None);
    assert_eq!(issuer.reads(), 0, "its keys are not even read");
    assert!(deployment.server.log().contains("of the issuer"), "an operator learns why");
}

async fn finish(client: &Client, code: &str, state: &str) -> Answer {
    client.post("/v1/oidc/corp/finish", &json!({"code": code, "state": state})).await
}

/// Starts a login: where the browser goes, and the state.
async fn start(client: &Client) -> (String, String) {
    let started = client.post("/v1/oidc/corp/start", &json!({})).await.expect(200);
    (text(&started["authorization_url"]), text(&started["state"]))
}

#[tokio::test]
async fn a_browser_logs_in_by_a_code() {
    let issuer = Issuer::start().await;
    let deployment = deployment(&[("CORP", &issuer)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    assert_eq!(anyone.get("/v1/oidc").await.expect(200), json!({"providers": [{"name": "corp"}]}));

    // whoever is nobody here is told, and comes in by an invitation with a code
    let (url, state) = start(&anyone).await;
    let (code, back) = issuer.log_in(&url, "kim", |_| {});
    assert_eq!(back, state);
    finish(&anyone, &code, &state).await.problem(401, "invitation_needed", None);
    let made = invite(&tenant.admin, None, "kim@example.com", "viewer").await;
    let (url, state) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    let body = json!({"secret": made["secret"], "name": "Kim",
        "oidc_code": {"provider": "corp", "code": code, "state": state}});
    let user = anyone.post("/v1/invitations/accept", &body).await.expect(201);

    // started on one server, finished on another
    let configuration = issuer.configuration("CORP");
    let configuration: Vec<(&str, &str)> = configuration.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let second = Server::start_on(&deployment.database_url, &configuration).await;
    let (url, state) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    let session = finish(&second.client(), &code, &state).await.expect(200);
    assert_eq!(session["user"]["user_id"], user["user_id"]);
    let kim = anyone.with(session["token"].as_str().unwrap());
    assert_eq!(kim.get("/v1/me").await.expect(200)["user"]["user_id"], user["user_id"]);
    finish(&anyone, &code, &state).await.problem(401, "unauthenticated", None);

    // while the issuer is away, a code stays good
    let (url, state) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    issuer.set_down(true);
    finish(&anyone, &code, &state).await.problem(503, "unavailable", None);
    issuer.set_down(false);
    finish(&anyone, &code, &state).await.expect(200);
    let id = text(&user["user_id"]);
    tenant.admin.post(&format!("/v1/users/{id}/disable"), &json!({})).await.expect(200);
    let (url, state) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    finish(&anyone, &code, &state).await.problem(401, "unauthenticated", None);
}

#[tokio::test]
async fn a_login_that_is_not_this_one_is_refused() {
    let issuer = Issuer::start().await;
    let deployment = deployment(&[("CORP", &issuer)]).await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    person(&tenant, &anyone, &issuer, "kim").await;
    let before = deployment.snapshot().await;
    anyone.post("/v1/oidc/nobody/start", &json!({})).await.problem(404, "not_found", None);
    let body = json!({"code": "c", "state": "s"});
    anyone.post("/v1/oidc/nobody/finish", &body).await.problem(404, "not_found", None);

    // a code that was given to another login: PKCE
    let (url, _) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    let (_, other) = start(&anyone).await;
    finish(&anyone, &code, &other).await.problem(401, "unauthenticated", None);
    // a state that was never given asks the issuer nothing
    let (url, state) = start(&anyone).await;
    let (code, _) = issuer.log_in(&url, "kim", |_| {});
    let mut last = state.clone();
    let end = last.pop().unwrap();
    for bad in [String::new(), "x".to_owned(), format!("{last}{}", if end == 'A' { 'B' } else { 'A' }), last] {
        finish(&anyone, &code, &bad).await.problem(401, "unauthenticated", None);
    }
    finish(&anyone, "", &state).await.problem(422, "invalid", Some("code"));
    finish(&anyone, "made up", &state).await.problem(401, "unauthenticated", None);
    // an id token that is of another login, party or time
    let (nonce, now) = (json!("another"), issuer.claims("kim")["iat"].as_i64().unwrap());
    for (field, value) in [
        ("nonce", nonce),
        ("aud", json!(AUDIENCE)),
        ("azp", json!("another")),
        ("aud", json!([CLIENT_ID, "another"])),
        ("iss", json!("https://nobody.example")),
        ("exp", json!(now - 60)),
    ] {
        let (url, state) = start(&anyone).await;
        let (code, _) = issuer.log_in(&url, "kim", |claims| claims[field] = value.clone());
        let answer = finish(&anyone, &code, &state).await;
        assert_eq!(answer.status, 401, "{field} {value}: {answer}");
    }
    assert_eq!(deployment.snapshot().await, before);
    finish(&anyone, &code, &state).await.expect(200);
}
