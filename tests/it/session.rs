//! Logins that are listed and ended, on every server.

use crate::{
    deployment::{Deployment, PASSWORD, eventually, log_in, text},
    world::{World, name, operator},
};
use app::{
    AppError,
    session::{self, Origin},
    user::NewUser,
};
use serde_json::{Value, json};
use support::{Client, Server};
use types::Role;

/// A person of a tenant, or of the platform: their id.
async fn person(deployment: &Deployment, tenant: Option<&str>, email: &str, role: &str) -> String {
    let body = json!({"tenant_id": tenant, "email": email, "name": email, "role": role, "password": PASSWORD});
    text(&deployment.operator.post("/v1/users", &body).await.expect(201)["user_id"])
}

/// The ids of the sessions that a list shows and that were not revoked.
async fn holding(client: &Client, query: &str) -> Vec<String> {
    let page = client.get(&format!("/v1/sessions{query}")).await.expect(200);
    let items = page["items"].as_array().unwrap();
    items.iter().filter(|s| s["revoked_at"].is_null()).map(|s| text(&s["session_id"])).collect()
}

async fn revoke(client: &Client, session: &str) -> support::Answer {
    client.post(&format!("/v1/sessions/{session}/revoke"), &json!({})).await
}

async fn works(client: &Client) -> bool {
    match client.get("/v1/me").await.status {
        200 => true,
        401 => false,
        other => panic!("{other}"),
    }
}

/// Waits until another server has heard of it, which takes at most five seconds.
async fn stops(client: &Client) {
    eventually("the token is refused", 6, async || (!works(client).await).then_some(())).await;
}

#[tokio::test]
async fn a_revoked_session_is_refused_at_once_here_and_soon_everywhere() {
    let deployment = Deployment::start().await;
    let other = Server::start_on(&deployment.database_url, &[]).await;
    person(&deployment, None, "kim@example.com", "operator").await;
    let anyone = deployment.anyone();
    let login = json!({"email": "kim@example.com", "password": PASSWORD});
    let logged_in = anyone.post("/v1/login", &login).await.expect(200);
    let (token, session) = (text(&logged_in["token"]), text(&logged_in["session_id"]));
    let (here, there) = (anyone.with(&token), other.client().with(&token));
    assert!(works(&here).await && works(&there).await);

    let listed = here.get("/v1/sessions").await.expect(200);
    let listed: &Value = &listed["items"][0];
    assert_eq!(listed["session_id"], session.as_str());
    assert_eq!(listed["address"], "127.0.0.1");
    assert_eq!(listed["expires_at"], logged_in["expires_at"]);

    let revoked = revoke(&here, &session).await.expect(200);
    assert!(!works(&here).await, "the server that did it refuses at once");
    stops(&there).await;
    let again = revoke(&deployment.operator, &session).await.expect(200);
    assert_eq!(again["revoked_at"], revoked["revoked_at"], "the first instant stays");

    let audit = deployment.operator.get("/v1/audit").await.expect(200);
    let entries: Vec<_> = audit["items"].as_array().unwrap().iter().filter(|e| e["object"] == session).collect();
    let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["session.revoke", "session.begin"]);
    assert!(!audit.to_string().contains(&token), "no token stands in the log");
}

#[tokio::test]
async fn all_but_the_present_one_are_ended() {
    let deployment = Deployment::start().await;
    person(&deployment, None, "kim@example.com", "operator").await;
    let anyone = deployment.anyone();
    let kept = log_in(&anyone, "kim@example.com").await;
    let others = [log_in(&anyone, "kim@example.com").await, log_in(&anyone, "kim@example.com").await];
    for client in &others {
        assert!(works(client).await);
    }
    assert_eq!(kept.post("/v1/sessions/revoke-others", &json!({})).await.expect(200)["revoked"], 2);
    for client in &others {
        assert!(!works(client).await);
    }
    assert!(works(&kept).await);
    assert_eq!(holding(&kept, "").await.len(), 1);
    assert!(works(&deployment.operator).await, "another person's session is not touched");
    assert_eq!(kept.post("/v1/sessions/revoke-others", &json!({})).await.expect(200)["revoked"], 0);
}

#[tokio::test]
async fn another_password_and_a_disabled_account_end_the_sessions() {
    let deployment = Deployment::start().await;
    let other = Server::start_on(&deployment.database_url, &[]).await;
    let kim = person(&deployment, None, "kim@example.com", "operator").await;
    let anyone = deployment.anyone();
    let (kept, ended) = (log_in(&anyone, "kim@example.com").await, log_in(&other.client(), "kim@example.com").await);
    assert!(works(&ended).await);
    let new = json!({"password": "another that is long", "current_password": PASSWORD});
    kept.put(&format!("/v1/users/{kim}/password"), &new).await.expect(204);
    assert!(works(&kept).await, "the session that changes its own password holds");
    stops(&ended).await;

    // somebody else changes it: none holds
    let new = json!({"password": PASSWORD});
    deployment.operator.put(&format!("/v1/users/{kim}/password"), &new).await.expect(204);
    assert!(!works(&kept).await);

    let (here, there) = (log_in(&anyone, "kim@example.com").await, log_in(&other.client(), "kim@example.com").await);
    assert!(works(&here).await && works(&there).await);
    deployment.operator.post(&format!("/v1/users/{kim}/disable"), &json!({})).await.expect(200);
    assert!(!works(&here).await);
    stops(&there).await;
    assert!(holding(&deployment.operator, &format!("?user_id={kim}")).await.is_empty());
}

#[tokio::test]
async fn whose_sessions_one_sees_and_ends() {
    let deployment = Deployment::start().await;
    let (ours, theirs) = (deployment.tenant("ours").await, deployment.tenant("theirs").await);
    let anyone = deployment.anyone();
    let mut people = Vec::new();
    for (tenant, email, role) in [
        (&ours, "admin@ours.example", "tenant_admin"),
        (&ours, "member@ours.example", "member"),
        (&theirs, "admin@theirs.example", "tenant_admin"),
    ] {
        let id = person(&deployment, Some(&tenant.id), email, role).await;
        let client = log_in(&anyone, email).await;
        let session = holding(&client, "").await.remove(0);
        people.push((id, client, session));
    }
    let [(_, admin, own), (member_id, member, members), (their_id, their_admin, their_session)] = &people[..] else {
        panic!("three people")
    };
    assert_eq!(holding(admin, "?all=true").await, [own.clone(), members.clone()]);
    assert_eq!(holding(admin, &format!("?user_id={member_id}")).await, *std::slice::from_ref(members));
    assert_eq!(holding(their_admin, "?all=true").await, *std::slice::from_ref(their_session));
    assert_eq!(holding(&deployment.operator, "?all=true").await.len(), 4);
    assert!(holding(&ours.admin, "").await.is_empty(), "a key has no session");
    assert_eq!(holding(&ours.admin, "?all=true").await.len(), 2);
    for (client, query, status, code) in [
        (member, "?all=true".to_owned(), 403, "forbidden"),
        (member, format!("?user_id={their_id}"), 403, "forbidden"),
        (admin, format!("?user_id={their_id}"), 404, "not_found"),
        (admin, format!("?user_id={member_id}&all=true"), 422, "invalid"),
    ] {
        client.get(&format!("/v1/sessions{query}")).await.problem(status, code, None);
    }
    for (client, session) in [(member, own), (member, their_session), (admin, their_session), (their_admin, members)] {
        revoke(client, session).await.problem(404, "not_found", None);
    }
    assert!(works(admin).await && works(their_admin).await);
    revoke(admin, members).await.expect(200);
    assert!(!works(member).await);
}

#[tokio::test]
async fn a_token_without_its_session_is_worth_nothing() {
    let deployment = Deployment::start().await;
    let client = log_in(&deployment.anyone(), crate::deployment::OPERATOR).await;
    sqlx::query("delete from session").execute(&mut deployment.owner().await).await.unwrap();
    assert!(!works(&client).await);
}

/// Whoever proved to know a password that is no longer the one gets no session, nor does whoever was disabled since.
#[tokio::test]
async fn no_session_begins_for_an_account_that_has_changed() {
    let world = World::new("2026-11-10T10:00:00Z").await;
    let new = |email: &str| NewUser {
        tenant_id: None,
        email: email.to_owned(),
        name: name("a"),
        role: Role::Operator,
        password: "a long password of tests".to_owned().into(),
    };
    let app = &world.app;
    let row = app::user::create(app, &operator(), new("a@example.org")).await.unwrap();
    session::begin(app, row.clone(), Origin::default()).await.unwrap();
    let other = "another long password".to_owned().into();
    app::user::set_password(app, &operator(), row.user_id, other, None, None).await.unwrap();
    let late = session::begin(app, row, Origin::default()).await;
    assert!(matches!(late, Err(AppError::Unauthenticated(_))), "{late:?}");
    let row = app::user::create(app, &operator(), new("b@example.org")).await.unwrap();
    app::user::disable(app, &operator(), row.user_id).await.unwrap();
    let late = session::begin(app, row, Origin::default()).await;
    assert!(matches!(late, Err(AppError::Unauthenticated(_))), "{late:?}");
}

#[tokio::test]
async fn expired_sessions_are_forgotten_after_a_day() {
    let world = World::new("2026-11-10T10:00:00Z").await;
    let new = NewUser {
        tenant_id: None,
        email: "a@example.org".to_owned(),
        name: name("a"),
        role: Role::Operator,
        password: "a long password of tests".to_owned().into(),
    };
    let row = app::user::create(&world.app, &operator(), new).await.unwrap();
    session::begin(&world.app, row.clone(), Origin { user_agent: Some("é".repeat(300)), address: None }).await.unwrap();
    let count = async || session::list(&world.app, &operator(), session::Whose::All, None, 10).await.unwrap().len();
    world.pass(3600 + 86_400);
    app::tasks::run_due(&world.app).await;
    assert_eq!(count().await, 1);
    world.pass(3600);
    app::tasks::run_due(&world.app).await;
    assert_eq!(count().await, 0);
}

fn guess(password: &str) -> Value {
    json!({"email": crate::deployment::OPERATOR, "password": password})
}

/// Sends a login as if from an address, which only a trusted proxy may say.
async fn log_in_from(client: &Client, address: &str, body: &Value) -> support::Answer {
    let request = client.request(reqwest::Method::POST, "/v1/login").header("X-Forwarded-For", address).json(body);
    client.send(request).await
}

#[tokio::test]
async fn guessing_ends_for_whoever_guesses_and_for_nobody_else() {
    let deployment = Deployment::start_with(&[("GPULEDGER_HTTP__TRUSTED_PROXIES", "[\"127.0.0.0/8\"]")]).await;
    let anyone = deployment.anyone();
    for _ in 0..10 {
        log_in_from(&anyone, "192.0.2.1", &guess("a wrong password")).await.problem(401, "unauthenticated", None);
    }
    for password in ["a wrong password", PASSWORD] {
        let limited = log_in_from(&anyone, "192.0.2.1", &guess(password)).await;
        let wait: u32 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=30).contains(&wait), "{wait}");
        limited.problem(429, "too_many_failures", None);
    }
    log_in_from(&anyone, "192.0.2.2", &guess(PASSWORD)).await.expect(200);
    let session = log_in_from(&anyone, "2001:db8:1:2::1", &guess(PASSWORD)).await.expect(200);
    let token = text(&session["token"]);
    let listed = anyone.with(&token).get("/v1/sessions").await.expect(200);
    let addresses: Vec<_> = listed["items"].as_array().unwrap().iter().map(|s| text(&s["address"])).collect();
    assert_eq!(addresses, ["127.0.0.1", "192.0.2.2", "2001:db8:1:2::1"]);
    // an unknown account ends after as many
    let unknown = json!({"email": "nobody@example.com", "password": "a wrong password"});
    for _ in 0..10 {
        log_in_from(&anyone, "192.0.2.3", &unknown).await.problem(401, "unauthenticated", None);
    }
    log_in_from(&anyone, "192.0.2.3", &unknown).await.problem(429, "too_many_failures", None);
}

#[tokio::test]
async fn without_a_trusted_proxy_nobody_says_where_they_are() {
    let deployment = Deployment::start().await;
    let anyone = deployment.anyone();
    for n in 0..10 {
        let answer = log_in_from(&anyone, &format!("192.0.2.{n}"), &guess("a wrong password")).await;
        answer.problem(401, "unauthenticated", None);
    }
    log_in_from(&anyone, "192.0.2.99", &guess("a wrong password")).await.problem(429, "too_many_failures", None);
}

#[tokio::test]
async fn bad_credentials_end_and_good_ones_go_on() {
    let deployment = Deployment::start().await;
    let (_, key) = deployment.key(None, "operator").await;
    key.get("/v1/me").await.expect(200);
    let bad = deployment.anyone().with(&format!("glk_abcdefgh_{}", "A".repeat(43)));
    let mut refused = 0;
    // tokens come back while this runs
    let limited = loop {
        let answer = bad.get("/v1/me").await;
        if answer.status == 429 {
            break answer;
        }
        answer.problem(401, "unauthenticated", None);
        refused += 1;
        assert!(refused < 2_000, "there is no end to it");
    };
    assert!(refused >= 300);
    assert!(limited.headers.contains_key("retry-after"));
    limited.problem(429, "too_many_failures", None);
    key.get("/v1/me").await.expect(200);
    deployment.operator.get("/v1/me").await.expect(200);
}

/// Nobody learns by the time of an answer which prefixes and which accounts exist: both cost the same.
#[tokio::test]
async fn what_is_unknown_costs_as_much_as_what_is_wrong() {
    let deployment = Deployment::start().await;
    let key = text(&deployment.secret(None, "operator").await["secret"]);
    let known = deployment.anyone().with(&key);
    let counted = async |name: &str| {
        let metrics = deployment.anyone().get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
        value.unwrap().parse::<u64>().unwrap()
    };
    let wrong = format!("{}_{}", &key[..12], "A".repeat(43));
    let unknown = format!("glk_abcdefgh_{}", "A".repeat(43));
    for bad in [&wrong, &unknown] {
        // the key itself is in use, so that it is among those looked up lately
        known.get("/v1/me").await.expect(200);
        let before = counted("gpuledger_credential_looks_total").await;
        for _ in 0..20 {
            deployment.anyone().with(bad).get("/v1/me").await.problem(401, "unauthenticated", None);
        }
        assert_eq!(counted("gpuledger_credential_looks_total").await - before, 20, "{bad}");
    }

    // a password is hashed for each login, whoever it is for
    person(&deployment, None, "gone@example.com", "operator").await;
    let users = deployment.operator.get("/v1/users").await.expect(200);
    let gone = users["items"].as_array().unwrap().iter().find(|user| user["email"] == "gone@example.com").unwrap();
    let path = format!("/v1/users/{}/disable", text(&gone["user_id"]));
    deployment.operator.post(&path, &json!({})).await.expect(200);
    for email in [crate::deployment::OPERATOR, "nobody@example.com", "gone@example.com"] {
        let before = counted("gpuledger_password_checks_total").await;
        let body = json!({"email": email, "password": "a wrong password"});
        deployment.anyone().post("/v1/login", &body).await.problem(401, "unauthenticated", None);
        assert_eq!(counted("gpuledger_password_checks_total").await - before, 1, "{email}");
    }
}

#[tokio::test]
async fn a_key_ends_when_it_should_and_tells_when_it_was_used() {
    let deployment = Deployment::start().await;
    let operator = &deployment.operator;
    let new = |expires_at: types::Instant| json!({"name": "a", "role": "operator", "expires_at": expires_at});
    let now = types::Clock::System.now();
    operator.post("/v1/keys", &new(now)).await.problem(422, "invalid", Some("expires_at"));
    let key = operator.post("/v1/keys", &new(now.plus_secs(3600))).await.expect(201);
    assert!(key["last_used_at"].is_null());
    let client = deployment.anyone().with(&text(&key["secret"]));
    client.get("/v1/me").await.expect(200);
    let shown = async || {
        let keys = operator.get("/v1/keys").await.expect(200);
        keys["items"].as_array().unwrap().iter().find(|k| k["key_id"] == key["key_id"]).unwrap().clone()
    };
    let first = text(&shown().await["last_used_at"]);
    sqlx::query("update api_key set expires_at = created_at + interval '1 millisecond' where name = 'a'")
        .execute(&mut deployment.owner().await)
        .await
        .unwrap();
    stops(&client).await;
    assert_eq!(text(&shown().await["last_used_at"]), first, "it is noted now and then, not each time");
}
