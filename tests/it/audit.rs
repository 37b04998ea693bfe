//! The audit logs: every change leaves an entry, and the entries of each log are a chain that shows what was done to it.

use crate::{
    authorisation::{Operation, PUBLIC, Stage, operations, rule},
    world::{World, operator},
};
use app::audit_chain;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use std::collections::BTreeSet;
use store::audit::ORIGIN;
use support::{Client, Database};
use types::{Role, TenantId};

async fn sql(connection: &mut PgConnection, text: &str) {
    connection.execute(AssertSqlSafe(text.to_owned())).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Two tenants with some entries each, besides those of the platform.
async fn logs() -> (World, [TenantId; 2]) {
    let world = World::new("2026-11-10T10:00:00Z").await;
    let mut tenants = Vec::new();
    for called in ["a", "b"] {
        let (tenant, ..) = world.tenant(called, "UTC", "USD").await;
        for n in 0..3 {
            let name = crate::world::name(&format!("key {n}"));
            app::api_key::create(&world.app, &operator(), Some(tenant), name, Role::Viewer, None).await.unwrap();
        }
        tenants.push(tenant);
    }
    (world, [tenants[0], tenants[1]])
}

async fn faults(world: &World) -> Vec<String> {
    audit_chain::verify(&world.app).await.unwrap().faults
}

#[tokio::test]
async fn each_log_is_a_chain_without_gaps() {
    let (world, tenants) = logs().await;
    let found = audit_chain::verify(&world.app).await.unwrap();
    assert_eq!(found.faults, [""; 0]);
    assert_eq!(found.chains, 3);
    let mut owner = world.owner().await;
    let entries: i64 = sqlx::query_scalar("select count(*) from audit").fetch_one(&mut owner).await.unwrap();
    assert_eq!(found.entries, entries);
    for tenant in tenants {
        let mut log = app::audit::list(&world.app, &operator(), Some(tenant), None, 200).await.unwrap();
        // in this world no time passes, so ids are in no order
        log.sort_by_key(|entry| entry.place.as_ref().map(|place| place.sequence));
        let numbers: Vec<i64> = log.iter().map(|entry| entry.place.as_ref().unwrap().sequence).collect();
        assert_eq!(numbers, (1..=5).collect::<Vec<i64>>(), "the tenant, its project and three keys");
    }
}

/// Many at once in one log: each gets a number of its own, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn entries_of_one_moment_follow_one_another() {
    let (world, [a, _]) = logs().await;
    let mut running = tokio::task::JoinSet::new();
    for n in 0..24 {
        let app = world.app.clone();
        running.spawn(async move {
            let name = crate::world::name(&format!("at once {n}"));
            app::api_key::create(&app, &operator(), Some(a), name, Role::Viewer, None).await.unwrap();
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    assert_eq!(faults(&world).await, [""; 0]);
    let mut owner = world.owner().await;
    let last: i64 = sqlx::query_scalar("select last_sequence from audit_chain where tenant_id = $1")
        .bind(a.uuid())
        .fetch_one(&mut owner)
        .await
        .unwrap();
    assert_eq!(last, 5 + 24);
}

#[tokio::test]
async fn the_first_entry_that_does_not_fit_is_named() {
    let (world, [a, b]) = logs().await;
    let mut owner = world.owner().await;
    for (tamper, said) in [
        ("update audit set detail = '{}' where sequence = 3", "does not fit at entry 3"),
        ("update audit set actor = 'user:somebody' where sequence = 1", "does not fit at entry 1"),
        ("update audit set at = at + interval '1 ms' where sequence = 2", "does not fit at entry 2"),
        ("update audit set request_id = 'another' where sequence = 5", "does not fit at entry 5"),
        ("delete from audit where sequence = 4", "lacks entry 4"),
        ("delete from audit where sequence = 5", "counts to 5, its last entry is 4"),
        ("update audit set sequence = 6 - sequence", "does not fit at entry 1"),
        ("delete from audit where sequence is not null", "counts to 5, its last entry is 0"),
        ("update audit_chain set head_hash = origin", "its head is another's"),
        ("delete from audit_chain where true", "has entries and no chain"),
        (
            "alter table audit drop constraint audit_is_chained;
             insert into audit select tenant_id, gen_random_uuid(), at, actor, action, object, detail, request_id from audit
              where tenant_id = ''",
            "from before its chain",
        ),
    ] {
        let of_a = format!("tenant_id = '{a}'");
        // a transaction that is taken back, seen by nobody else: so the tampered log is looked at in a copy
        let text = match tamper {
            t if t.starts_with("alter") => t.replace("tenant_id = ''", &format!("{of_a} limit 1")),
            t if t.contains(" where ") => format!("{t} and {of_a}"),
            t => format!("{t} where {of_a}"),
        };
        sql(&mut owner, "create table kept as select * from audit; create table kept_chain as select * from audit_chain").await;
        sql(&mut owner, &format!("alter table audit drop constraint audit_sequence_is_unique; {text}")).await;
        let found = faults(&world).await;
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].contains(said) && found[0].contains(&a.to_string()), "{text}: {found:?}");
        assert!(!found[0].contains(&b.to_string()), "{text}: {found:?}");
        sql(
            &mut owner,
            "delete from audit; insert into audit select * from kept; drop table kept;
             delete from audit_chain; insert into audit_chain select * from kept_chain; drop table kept_chain;
             alter table audit add constraint audit_sequence_is_unique unique (tenant_id, sequence)",
        )
        .await;
        assert_eq!(faults(&world).await, [""; 0]);
    }
}

/// Entries of the schema before the chains stay as they are, and are sealed by what the first link follows.
#[tokio::test]
async fn what_was_written_before_the_chains_is_sealed() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    // the migration of the chains, undone, and applied again to a log with entries
    sql(
        &mut owner,
        "drop table audit_chain; alter table audit drop column sequence, drop column hash;
         insert into audit select ('01980000-0000-7000-8000-00000000000' || n % 2)::uuid, gen_random_uuid(), now(), 'system',
             'old', n::text, jsonb_build_object('n', n), null from generate_series(1, 10) n",
    )
    .await;
    let migration = include_str!("../../migrations/0009_audit_chain.sql");
    let (chains, _) = migration.split_once("-- What belongs to no tenant").unwrap();
    sql(&mut owner, chains).await;
    let world = World::on(database, "2026-11-10T10:00:00Z").await;
    assert_eq!(faults(&world).await, [""; 0]);
    let old = "01980000-0000-7000-8000-000000000001";
    let origin: String = sqlx::query_scalar("select origin from audit_chain where tenant_id::text = $1")
        .bind(old)
        .fetch_one(&mut owner)
        .await
        .unwrap();
    assert_ne!(origin, ORIGIN);
    sql(&mut owner, &format!("alter table audit drop constraint audit_is_chained; update audit set object = '99' where tenant_id = '{old}' and object = '3'")).await;
    let found = faults(&world).await;
    assert!(found.len() == 1 && found[0].contains(old) && found[0].contains("before its chain"), "{found:?}");
    drop(PgConnection::close(owner).await);
}

/// Operations that change something and leave no entry. May only shrink.
const NOT_AUDITED: [&str; 2] = [
    "report_node",        // a machine's routine: its presence and its workloads have journals of their own
    "take_reading_batch", // the same: readings are facts, chained by their stream
];
/// Changes of allocations stand in their history, which names actor and cause. A renewal only moves the last sign of life.
const IN_HISTORY: [&str; 5] =
    ["create_allocation", "confirm_allocation", "renew_allocation", "release_allocation", "cancel_allocation"];

/// Every text in a JSON value under a key that names a secret.
fn secrets(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let is_secret =
                    ["secret", "credential", "password", "current_password", "token"].contains(&key.as_str());
                match value.as_str() {
                    Some(text) if is_secret => drop(found.insert(text.to_owned())),
                    _ => secrets(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| secrets(item, found)),
        _ => {}
    }
}

/// The newest change of an allocation by an actor as JSON, and how many there are.
async fn newest(owner: &mut PgConnection, actor: &str) -> (i64, Option<Value>) {
    let text = "select count(*), (select to_jsonb(h) from history h where actor = $1 order by history_id desc limit 1)
                  from history where actor = $1";
    sqlx::query_as(text).bind(actor).fetch_one(owner).await.unwrap()
}

async fn call(stage: &Stage, client: &Client, operation: &Operation, known: &mut BTreeSet<String>) {
    let mut owner = stage.deployment.owner().await;
    let me = client.get("/v1/me").await.expect(200);
    let actor = me["actor"].as_str().unwrap();
    let before = stage.deployment.snapshot().await;
    let changes = newest(&mut owner, actor).await.0;
    let (path, body) = stage.request(operation);
    secrets(body.as_ref().unwrap_or(&Value::Null), known);
    let answer = Stage::send_as(client, operation, &path, body).await;
    assert!(answer.status < 300, "{}: {answer}", operation.id);
    secrets(&answer.json, known);
    let after = stage.deployment.snapshot().await;
    let changed: Vec<_> = before.iter().filter(|(table, rows)| after.get(*table) != Some(rows)).collect();
    if changed.is_empty() {
        return;
    }
    let name = &operation.id;
    assert_ne!(operation.method, "GET", "{name} changes {changed:?}");
    if NOT_AUDITED.contains(&name.as_str()) {
        return;
    }
    if IN_HISTORY.contains(&name.as_str()) {
        let (count, change) = newest(&mut owner, actor).await;
        assert!(count > changes || name == "renew_allocation", "{name} changed {changed:?} and is in no history");
        let change = change.unwrap();
        assert!(change["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{name}: {change}");
        return;
    }
    let request_id = answer.headers["x-request-id"].to_str().unwrap();
    let left: Vec<Value> =
        sqlx::query_scalar("select to_jsonb(a) from audit a where request_id = $1 and actor = $2 order by audit_id")
            .bind(request_id)
            .bind(actor)
            .fetch_all(&mut owner)
            .await
            .unwrap();
    assert!(!left.is_empty(), "{name} changed {changed:?} and left no entry");
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    let is_named =
        |object: &str| path.contains(object) || said.contains(object) || stage.ids.values().any(|id| id == object);
    assert!(left.iter().any(|entry| is_named(entry["object"].as_str().unwrap())), "{name}: {left:?}");
    let text = json!(left).to_string();
    assert!(!known.iter().any(|secret| text.contains(secret)), "{name} has a secret in its entry: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_that_changes_something_leaves_an_entry() {
    let stage = Stage::set().await;
    let mut known = BTreeSet::from([crate::deployment::PASSWORD.to_owned()]);
    let walked: Vec<Operation> = operations(&stage.deployment.anyone()).await;
    let last = [
        "release_allocation",
        "cancel_allocation",
        "disable_user",
        "revoke_key",
        "revoke_node_credential",
        "remove_node",
    ];
    let (ending, others): (Vec<_>, Vec<_>) = walked
        .iter()
        // the twins of two that are walked: nobody's row cannot be accepted, and what runs not cancelled
        .filter(|o| {
            !PUBLIC.contains(&o.id.as_str()) && !["accept_set_aside", "cancel_allocation"].contains(&o.id.as_str())
        })
        .partition(|o| last.contains(&o.id.as_str()));
    for operation in others.into_iter().chain(ending) {
        let (allowed, _) = rule(&operation.id).unwrap();
        let client = if allowed.contains(&"operator") { &stage.deployment.operator } else { &stage.node.client };
        call(&stage, client, operation, &mut known).await;
    }
    // nor is there one anywhere else in the logs, of those that set the stage
    let mut owner = stage.deployment.owner().await;
    let all: Vec<Value> = sqlx::query_scalar("select to_jsonb(a) from audit a").fetch_all(&mut owner).await.unwrap();
    let text = json!(all).to_string();
    let told: Vec<_> = known.iter().filter(|secret| text.contains(*secret)).collect();
    assert!(told.is_empty(), "{told:?}");
}
