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
