//! Invitations: each makes one account, for whom it was meant and in time.

use crate::{
    deployment::{Deployment, PASSWORD, log_in, text},
    world::{World, name, operator},
};
use app::{
    AppError,
    invitation::{self, NewInvitation, Proof},
};
use serde_json::{Value, json};
use support::{Answer, Client, Issuer};
use tokio::task::JoinSet;
use types::Role;

/// An invitation as it is shown this once.
pub async fn invite(client: &Client, tenant: Option<&str>, email: &str, role: &str) -> Value {
    client.post("/v1/invitations", &json!({"tenant_id": tenant, "email": email, "role": role})).await.expect(201)
}

/// Accepts with a password.
async fn accept(client: &Client, secret: &str) -> Answer {
    client.post("/v1/invitations/accept", &json!({"secret": secret, "name": "Kim", "password": PASSWORD})).await
}

/// Accepts with a token of another issuer.
pub async fn accept_as(client: &Client, secret: &str, token: &str) -> Answer {
    client.post("/v1/invitations/accept", &json!({"secret": secret, "name": "Kim", "oidc_token": token})).await
}

#[tokio::test]
async fn an_invitation_makes_one_account_with_its_role() {
    let deployment = Deployment::start().await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    let made = invite(&tenant.admin, None, "Kim@Example.com", "member").await;
    let (id, secret) = (text(&made["invitation_id"]), text(&made["secret"]));
    assert_eq!((&made["email"], &made["tenant_id"]), (&json!("kim@example.com"), &json!(tenant.id)));
    // it is no credential for anything else
    anyone.with(&secret).get("/v1/me").await.problem(401, "unauthenticated", None);
    let listed = tenant.admin.get("/v1/invitations").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert!(!listed.to_string().contains(&secret), "the secret is shown once");

    let user = accept(&anyone, &secret).await.expect(201);
    assert_eq!(
        (&user["tenant_id"], &user["role"], &user["name"]),
        (&json!(tenant.id), &json!("member"), &json!("Kim"))
    );
    let kim = log_in(&anyone, "kim@example.com").await;
    assert_eq!(kim.get("/v1/me").await.expect(200)["user"]["user_id"], user["user_id"]);
    accept(&anyone, &secret).await.problem(401, "unauthenticated", None);
    let listed = tenant.admin.get("/v1/invitations").await.expect(200);
    assert!(listed["items"][0]["accepted_at"].is_string(), "{listed}");
    tenant.admin.post(&format!("/v1/invitations/{id}/revoke"), &json!({})).await.problem(
        409,
        "invitation_accepted",
        None,
    );
    let audit = tenant.admin.get("/v1/audit").await.expect(200);
    let entry = |action: &str| {
        let entries = audit["items"].as_array().unwrap();
        entries.iter().find(|entry| entry["action"] == action).unwrap_or_else(|| panic!("no {action}: {audit}")).clone()
    };
    let accepted = entry("invitation.accept");
    assert_eq!(accepted["actor"], format!("user:{}", text(&user["user_id"])));
    assert!(accepted["request_id"].is_string(), "{accepted}");
    assert_eq!(accepted["detail"]["invited_by"], made["created_by"], "{accepted}");
    assert_eq!(entry("user.create")["object"], user["user_id"]);
    assert_eq!(entry("invitation.create")["object"], json!(id));
    assert!(!audit.to_string().contains(&secret));
}

#[tokio::test]
async fn what_is_revoked_and_what_its_maker_may_no_longer_let_in_is_refused() {
    let deployment = Deployment::start().await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    let made = invite(&tenant.admin, None, "one@example.com", "viewer").await;
    let path = format!("/v1/invitations/{}/revoke", text(&made["invitation_id"]));
    let revoked = tenant.admin.post(&path, &json!({})).await.expect(200);
    assert_eq!(tenant.admin.post(&path, &json!({})).await.expect(200), revoked, "again changes nothing");
    accept(&anyone, &text(&made["secret"])).await.problem(401, "unauthenticated", None);

    // nobody leaves a door open for the time after they have gone
    let (key, client) = deployment.key(Some(&tenant.id), "tenant_admin").await;
    let by_key = invite(&client, None, "two@example.com", "tenant_admin").await;
    let boss = invite(&tenant.admin, None, "boss@example.com", "tenant_admin").await;
    let boss_id = text(&accept(&anyone, &text(&boss["secret"])).await.expect(201)["user_id"]);
    let boss = log_in(&anyone, "boss@example.com").await;
    let by_boss = invite(&boss, None, "three@example.com", "tenant_admin").await;
    let stays = invite(&tenant.admin, None, "four@example.com", "viewer").await;
    tenant.admin.post(&format!("/v1/keys/{key}/revoke"), &json!({})).await.expect(200);
    tenant.admin.post(&format!("/v1/users/{boss_id}/disable"), &json!({})).await.expect(200);
    for made in [by_key, by_boss] {
        accept(&anyone, &text(&made["secret"])).await.problem(401, "unauthenticated", None);
    }
    accept(&anyone, &text(&stays["secret"])).await.expect(201);
}

#[tokio::test]
async fn an_invitation_ends_with_its_time() {
    let world = World::new("2026-11-10T10:00:00Z").await;
    let new = |email: &str| NewInvitation {
        tenant_id: None,
        email: email.to_owned(),
        role: Role::BillingClerk,
        lifetime_s: 3600,
    };
    let one = invitation::create(&world.app, &operator(), new("one@example.com")).await.unwrap();
    let two = invitation::create(&world.app, &operator(), new("two@example.com")).await.unwrap();
    let proof = || Proof::Password(PASSWORD.to_owned().into());
    let accepted = |secret: &str| {
        let (app, secret) = (world.app.clone(), secret.to_owned());
        async move { invitation::accept(&app, None, &secret, name("Kim"), proof()).await }
    };
    world.pass(3599);
    accepted(&one.secret).await.unwrap();
    world.pass(1);
    let late = accepted(&two.secret).await;
    assert!(matches!(late, Err(AppError::Unauthenticated(_))), "{late:?}");
}

#[tokio::test]
async fn nobody_invites_beyond_what_is_theirs() {
    let deployment = Deployment::start().await;
    let (ours, theirs) = (deployment.tenant("ours").await, deployment.tenant("theirs").await);
    let made = invite(&ours.admin, None, "kim@example.com", "viewer").await;
    let before = deployment.snapshot().await;
    let new = |tenant: Option<&str>, role: &str| json!({"tenant_id": tenant, "email": "x@example.com", "role": role});
    ours.admin.post("/v1/invitations", &new(Some(&theirs.id), "viewer")).await.problem(404, "not_found", None);
    ours.admin.post("/v1/invitations", &new(None, "operator")).await.problem(422, "invalid", Some("role"));
    deployment.operator.post("/v1/invitations", &new(None, "member")).await.problem(422, "invalid", Some("role"));
    ours.member.post("/v1/invitations", &new(None, "viewer")).await.problem(403, "forbidden", None);
    let nowhere = uuid::Uuid::from_u128(7).to_string();
    deployment.operator.post("/v1/invitations", &new(Some(&nowhere), "viewer")).await.problem(404, "not_found", None);
    for (field, value) in [
        ("email", json!("nobody")),
        ("email", json!("a b@c")),
        ("lifetime_s", json!(299)),
        ("lifetime_s", json!(2_592_001)),
        ("role", json!("king")),
    ] {
        let mut bad = new(None, "viewer");
        bad[field] = value;
        ours.admin.post("/v1/invitations", &bad).await.problem(422, "invalid", Some(field));
    }
    let path = format!("/v1/invitations/{}/revoke", text(&made["invitation_id"]));
    theirs.admin.post(&path, &json!({})).await.problem(404, "not_found", None);
    assert_eq!(theirs.admin.get("/v1/invitations").await.expect(200)["items"], json!([]));
    let of_ours = format!("/v1/invitations?tenant_id={}", ours.id);
    theirs.admin.get(&of_ours).await.problem(404, "not_found", None);
    ours.member.get("/v1/invitations").await.problem(403, "forbidden", None);

    // what is accepted badly leaves the invitation as it was
    let secret = text(&made["secret"]);
    let other = format!("{}{}", &secret[..13], "A".repeat(43));
    let anyone = deployment.anyone();
    for (body, status, field) in [
        (json!({"secret": secret, "name": "Kim"}), 422, Some("password")),
        (json!({"secret": secret, "name": "Kim", "password": PASSWORD, "oidc_token": "a.b.c"}), 422, Some("password")),
        (json!({"secret": secret, "name": "Kim", "password": "short"}), 422, Some("password")),
        (json!({"secret": secret, "name": "", "password": PASSWORD}), 422, Some("name")),
        (json!({"secret": secret, "name": "Kim", "password": PASSWORD, "role": "operator"}), 422, Some("role")),
        (json!({"secret": other, "name": "Kim", "password": PASSWORD}), 401, None),
        (json!({"secret": "gli_", "name": "Kim", "password": PASSWORD}), 401, None),
        (json!({"secret": secret, "name": "Kim", "oidc_token": "a.b.c"}), 401, None),
        (
            json!({"secret": secret, "name": "Kim", "oidc_code": {"provider": "corp", "code": "c", "state": "s"}}),
            404,
            None,
        ),
    ] {
        let answer = anyone.post("/v1/invitations/accept", &body).await;
        let code = match status {
            401 => "unauthenticated",
            404 => "not_found",
            _ => "invalid",
        };
        answer.problem(status, code, field);
    }
    // nor does a key stand for an invitation
    let key = text(&deployment.secret(None, "operator").await["secret"]);
    accept(&anyone, &key).await.problem(401, "unauthenticated", None);
    let mut after = deployment.snapshot().await;
    for table in ["api_key", "audit", "audit_chain"] {
        after.insert(table.to_owned(), before[table].clone());
    }
    assert_eq!(after, before);
    accept(&anyone, &secret).await.expect(201);
}

#[tokio::test]
async fn an_address_that_is_taken_leaves_the_invitation() {
    let deployment = Deployment::start().await;
    let tenant = deployment.tenant("tenant").await;
    let anyone = deployment.anyone();
    let [one, two] = [
        invite(&tenant.admin, None, "kim@example.com", "viewer").await,
        invite(&tenant.admin, None, "kim@example.com", "member").await,
    ];
    accept(&anyone, &text(&one["secret"])).await.expect(201);
    accept(&anyone, &text(&two["secret"])).await.problem(409, "email_taken", None);
    let listed = tenant.admin.get("/v1/invitations").await.expect(200);
    let open: Vec<&Value> = listed["items"].as_array().unwrap().iter().filter(|i| i["accepted_at"].is_null()).collect();
    assert_eq!((open.len(), &open[0]["invitation_id"]), (1, &two["invitation_id"]));
}

/// Answers to calls that are made at once.
async fn at_once(calls: impl Iterator<Item = impl Future<Output = Answer> + Send + 'static>) -> Vec<Answer> {
    calls.collect::<JoinSet<Answer>>().join_all().await
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_accept_at_once_one_does() {
    let issuer = Issuer::start().await;
    let configuration = issuer.configuration("CORP");
    let configuration: Vec<(&str, &str)> = configuration.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let deployment = Deployment::start_with(&configuration).await;
    let tenant = deployment.tenant("tenant").await;
    let users = async || tenant.admin.get("/v1/users").await.expect(200)["items"].as_array().unwrap().len();

    let secret = text(&invite(&tenant.admin, None, "kim@example.com", "viewer").await["secret"]);
    let answers = at_once((0..8).map(|_| {
        let (anyone, secret) = (deployment.anyone(), secret.clone());
        async move { accept(&anyone, &secret).await }
    }))
    .await;
    assert_eq!(statuses(&answers), [201, 401, 401, 401, 401, 401, 401, 401]);
    assert_eq!(users().await, 1);

    // one with as many people: each has another subject
    let secret = text(&invite(&tenant.admin, None, "lee@example.com", "viewer").await["secret"]);
    let answers = at_once((0..8).map(|n| {
        let (anyone, secret, token) = (deployment.anyone(), secret.clone(), issuer.token(&format!("subject {n}")));
        async move { accept_as(&anyone, &secret, &token).await }
    }))
    .await;
    assert_eq!(statuses(&answers), [201, 401, 401, 401, 401, 401, 401, 401]);
    assert_eq!(users().await, 2);

    // one person with as many invitations
    let mut secrets = Vec::new();
    for n in 0..8 {
        secrets.push(text(&invite(&tenant.admin, None, &format!("park{n}@example.com"), "viewer").await["secret"]));
    }
    let answers = at_once(secrets.into_iter().map(|secret| {
        let (anyone, token) = (deployment.anyone(), issuer.token("park"));
        async move { accept_as(&anyone, &secret, &token).await }
    }))
    .await;
    assert_eq!(statuses(&answers), [201, 409, 409, 409, 409, 409, 409, 409]);
    let taken = answers.into_iter().filter(|answer| answer.status == 409);
    taken.for_each(|answer| assert_eq!(answer.problem(409, "identity_taken", None)["code"], "identity_taken"));
    assert_eq!(users().await, 3);
    let open = tenant.admin.get("/v1/invitations").await.expect(200);
    let open = open["items"].as_array().unwrap().iter().filter(|i| i["accepted_at"].is_null()).count();
    assert_eq!(open, 7, "an invitation that made no account can still make one");
}
