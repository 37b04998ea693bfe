//! The second wall: whatever a query forgets, the service's role sees and writes only its transaction's tenants, and
//! changes nothing that is append-only.

use crate::{
    reading::{reading, send},
    world::{World, ask, operator},
};
use app::invoice;
use sqlx::{AssertSqlSafe, PgConnection};
use support::Database;
use types::{Bytes, TenantId};

/// Facts and journals: inserted once.
const APPEND_ONLY: [&str; 21] = [
    "audit",
    "charge",
    "gpu_capacity",
    "gpu_model",
    "history",
    "interval",
    "invoice",
    "invoice_number",
    "node_presence",
    "occupancy",
    "plan",
    "plan_rate",
    "plan_version",
    "reading",
    "set_aside",
    "set_aside_ruling",
    "unbilled_span",
    "note",
    "credit",
    "credit_use",
    "membership",
];

pub async fn texts(connection: &mut PgConnection, query: &'static str) -> Vec<String> {
    sqlx::query_scalar(query).fetch_all(connection).await.unwrap()
}

pub async fn as_service(database: &Database) -> PgConnection {
    // rights on the database itself do not come with a copy of it
    store::migrate(database.url()).await.unwrap();
    let mut connection = database.connect().await;
    sqlx::query("set role gpuledger_service").execute(&mut connection).await.unwrap();
    connection
}

pub fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned())
}

const NO_PRIVILEGE: &str = "42501";

pub async fn refused(connection: &mut PgConnection, statement: &str) {
    let answer = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(connection).await;
    let Err(error) = answer else { panic!("allowed: {statement}") };
    assert_eq!(code(&error).as_deref(), Some(NO_PRIVILEGE), "{statement}: {error}");
}

#[tokio::test]
async fn the_services_role_can_bypass_nothing() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    let powers = texts(
        &mut owner,
        "select rolname::text from pg_roles where rolname = 'gpuledger_service'
            and (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication or rolcanlogin)",
    )
    .await;
    assert_eq!(powers, [""; 0]);
    let owned = texts(
        &mut owner,
        "select c.relname::text from pg_class c join pg_roles r on r.oid = c.relowner where r.rolname = 'gpuledger_service'",
    )
    .await;
    assert_eq!(owned, [""; 0]);
    let member_of = texts(
        &mut owner,
        "select r.rolname::text from pg_auth_members m join pg_roles r on r.oid = m.roleid
           join pg_roles s on s.oid = m.member where s.rolname = 'gpuledger_service'",
    )
    .await;
    assert_eq!(member_of, [""; 0]);
}

/// The list above is the whole of it: what the role may update or delete is present state, and nothing else.
#[tokio::test]
async fn what_is_append_only_can_be_neither_changed_nor_removed() {
    let database = Database::fresh().await;
    let mut service = as_service(&database).await;
    for table in APPEND_ONLY {
        let column = texts(
            &mut service,
            sqlx_static(format!(
                "select attname::text from pg_attribute where attrelid = '{table}'::regclass and attnum = 1"
            )),
        )
        .await;
        refused(&mut service, &format!("update {table} set {0} = {0}", column[0])).await;
        refused(&mut service, &format!("delete from {table}")).await;
        refused(&mut service, &format!("truncate {table}")).await;
    }
    let changeable = texts(
        &mut service,
        "select distinct table_name::text from information_schema.role_table_grants
          where grantee = 'gpuledger_service' and privilege_type in ('UPDATE', 'DELETE', 'TRUNCATE') order by 1",
    )
    .await;
    let both: Vec<_> = changeable.iter().filter(|table| APPEND_ONLY.contains(&table.as_str())).collect();
    assert_eq!(both, [""; 0]);
    let all = texts(
        &mut service,
        "select tablename::text from pg_tables where schemaname = 'public' and tablename <> 'schema_migration' order by 1",
    )
    .await;
    let neither: Vec<_> = all
        .iter()
        .filter(|table| !changeable.contains(table) && !APPEND_ONLY.contains(&table.as_str()))
        .filter(|table| !table.starts_with("reading_"))
        .collect();
    assert_eq!(neither, [""; 0], "say of each new table whether it is append-only");
    for (statement, table) in [("drop table", "charge"), ("alter table", "charge disable row level security")] {
        refused(&mut service, &format!("{statement} {table}")).await;
    }
    refused(&mut service, "create table mine ()").await;
}

/// Text that lives as long as the test run: there are few of them.
fn sqlx_static(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[tokio::test]
async fn every_table_with_a_tenant_has_the_wall() {
    let world = World::new("2026-11-10T10:00:00Z").await;
    app::tasks::run_due(&world.app).await;
    let mut owner = world.owner().await;
    let open = texts(
        &mut owner,
        "select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
          where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
            and (not c.relrowsecurity or not exists (select 1 from pg_policies p
                where p.schemaname = 'public' and p.tablename = c.relname and 'gpuledger_service' = any (p.roles)))
          order by 1",
    )
    .await;
    assert_eq!(open, [""; 0]);
    let months = texts(
        &mut owner,
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'reading'::regclass order by 1",
    )
    .await;
    assert_eq!(months, ["reading_2026_11", "reading_2026_12"]);
}

/// Two tenants with facts of every kind, each for itself.
pub async fn two_tenants() -> (World, [TenantId; 2]) {
    let mut world = World::new("2026-11-10T10:00:00Z").await;
    let mut host = world.host("host", &[Bytes::gib(80)]).await;
    let mut tenants = Vec::new();
    let mut windows = Vec::new();
    let mut running = Vec::new();
    for called in ["a", "b"] {
        let (tenant, ..) = world.paying_tenant(called, "UTC", "USD", "2026-11-01T00:00:00Z").await;
        let held = world.request(tenant, ask(Bytes::gib(10), 1)).await.unwrap();
        world.pass(5);
        let active = app::allocation::confirm(&world.app, &operator(), held.row.allocation_id).await.unwrap();
        let start = active.row.active_since.unwrap();
        let part = active.parts[0].row.part_id;
        windows.push(reading(part, start, start.plus_secs(60), Bytes::gib(10), Bytes::gib(11)));
        windows.push(reading(part, start, start.plus_secs(60), Bytes::gib(10), Bytes::gib(11)));
        running.push(active.row.allocation_id);
        let new = app::user::NewUser {
            tenant_id: Some(tenant),
            email: format!("{called}@example.org"),
            name: crate::world::name(called),
            role: types::Role::Viewer,
            password: "a long password of tests".to_owned().into(),
        };
        let user = app::user::create(&world.app, &operator(), new).await.unwrap();
        app::session::begin(&world.app, user, app::session::Origin::default()).await.unwrap();
        let invited = app::invitation::NewInvitation {
            tenant_id: Some(tenant),
            email: format!("{called}@example.org"),
            role: types::Role::Viewer,
            lifetime_s: 3600,
        };
        app::invitation::create(&world.app, &operator(), invited).await.unwrap();
        app::api_key::create(
            &world.app,
            &operator(),
            Some(tenant),
            crate::world::name(called),
            types::Role::Member,
            None,
        )
        .await
        .unwrap();
        tenants.push(tenant);
    }
    // and what belongs to nobody
    let new = app::user::NewUser {
        tenant_id: None,
        email: "clerk@example.org".to_owned(),
        name: crate::world::name("clerk"),
        role: types::Role::BillingClerk,
        password: "a long password of tests".to_owned().into(),
    };
    let invited = app::invitation::NewInvitation {
        tenant_id: None,
        email: "invited-clerk@example.org".to_owned(),
        role: types::Role::BillingClerk,
        lifetime_s: 3600,
    };
    app::invitation::create(&world.app, &operator(), invited).await.unwrap();
    let clerk = app::user::create(&world.app, &operator(), new).await.unwrap();
    app::session::begin(&world.app, clerk, app::session::Origin::default()).await.unwrap();
    app::api_key::create(&world.app, &operator(), None, crate::world::name("clerk"), types::Role::BillingClerk, None)
        .await
        .unwrap();
    let nobodys = types::PartId(uuid::Uuid::from_u128(7));
    windows.push(reading(nobodys, world.now(), world.now().plus_secs(60), Bytes::gib(10), Bytes::gib(11)));
    world.pass(60);
    world.report(&host, &running).await;
    let batch = host.batch(world.now(), windows);
    assert_eq!(send(&world, &host, &batch).await.unwrap().set_aside, 3);
    for id in running {
        world.release(id).await;
    }
    world.pass_to("2026-12-01T00:00:00Z");
    for tenant in &tenants {
        invoice::issue(&world.app, &operator(), *tenant, "2026-11", Some("test".parse().unwrap())).await.unwrap();
    }
    // what no use case writes yet, or none without an issuer
    for rows in [
        "insert into membership select 'https://id.example', email, tenant_id, user_id, created_at from user_account",
        "insert into note select tenant_id, gen_random_uuid(), invoice_id, 'N-' || number, 'credit', currency, 1, 'a test', '{}',
            digest, hash, hash, issued_at, issued_by from invoice",
        "insert into credit select tenant_id, invoice_id, currency, 100, 'a test', issued_at, issued_by, null from invoice",
        "insert into credit_use select tenant_id, invoice_id, invoice_id, 1, issued_at from invoice",
    ] {
        sqlx::raw_sql(rows).execute(&mut world.owner().await).await.unwrap();
    }
    (world, [tenants[0], tenants[1]])
}

pub async fn walled_tables(owner: &mut PgConnection) -> Vec<String> {
    texts(
        owner,
        "select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
          where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace order by 1",
    )
    .await
}

pub async fn count(connection: &mut PgConnection, table: &str, condition: &str) -> i64 {
    let text = AssertSqlSafe(format!("select count(*) from {table} where {condition}"));
    sqlx::query_scalar(text).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_transaction_sees_its_own_tenants_and_without_any_nothing() {
    let (world, [a, b]) = two_tenants().await;
    let mut owner = world.owner().await;
    let mut service = as_service(&world.database).await;
    for table in walled_tables(&mut owner).await {
        let of = |tenant: TenantId| format!("tenant_id = '{tenant}'");
        let (of_a, of_b) = (count(&mut owner, &table, &of(a)).await, count(&mut owner, &table, &of(b)).await);
        if table != "reading_2026_12" {
            assert!(of_a > 0 && of_b > 0, "the test has no rows of both in {table}");
        }
        for (tenants, seen) in [
            (String::new(), 0),
            (a.to_string(), of_a),
            (b.to_string(), of_b),
            (format!("{a},{b}"), of_a + of_b),
            (TenantId(uuid::Uuid::from_u128(1)).to_string(), 0),
        ] {
            let set = format!("set app.tenants = '{tenants}'");
            sqlx::query(AssertSqlSafe(set)).execute(&mut service).await.unwrap();
            assert_eq!(count(&mut service, &table, "true").await, seen, "{table} as {tenants:?}");
        }
        sqlx::query("reset app.tenants").execute(&mut service).await.unwrap();
        assert_eq!(count(&mut service, &table, "true").await, 0, "{table} without a tenant");
    }
}

#[tokio::test]
async fn a_transaction_writes_no_other_tenants_rows() {
    let (world, [a, b]) = two_tenants().await;
    let mut owner = world.owner().await;
    let mut service = as_service(&world.database).await;
    for table in walled_tables(&mut owner).await {
        // a row of b's as it stands, which the transaction of a must not be able to put there
        let copy = format!("create table public.copy_of_row as select * from {table} where tenant_id = '{b}' limit 1");
        sqlx::query(AssertSqlSafe(copy)).execute(&mut owner).await.unwrap();
        sqlx::query("grant select on copy_of_row to gpuledger_service").execute(&mut owner).await.unwrap();
        let rows = count(&mut owner, "copy_of_row", "true").await;
        assert_eq!(rows, i64::from(table != "reading_2026_12"), "{table}");
        sqlx::query(AssertSqlSafe(format!("set app.tenants = '{a}'"))).execute(&mut service).await.unwrap();
        if rows > 0 {
            refused(&mut service, &format!("insert into {table} select * from copy_of_row")).await;
        }
        let updatable: bool = sqlx::query_scalar("select has_table_privilege('gpuledger_service', $1, 'update')")
            .bind(&table)
            .fetch_one(&mut owner)
            .await
            .unwrap();
        if updatable {
            // what it does not see it does not change, and what it sees it cannot hand over
            let own = count(&mut service, &table, "true").await;
            let touched = format!("update {table} set tenant_id = tenant_id");
            let done = sqlx::query(AssertSqlSafe(touched)).execute(&mut service).await.unwrap();
            assert_eq!(done.rows_affected(), u64::try_from(own).unwrap(), "{table}");
            refused(&mut service, &format!("update {table} set tenant_id = '{b}'")).await;
        }
        sqlx::query("drop table copy_of_row").execute(&mut owner).await.unwrap();
    }
}

/// Only a month can be made by the service's role, and nothing else through that function.
#[tokio::test]
async fn the_service_makes_months_and_no_other_table() {
    let database = Database::fresh().await;
    let mut service = as_service(&database).await;
    for _ in 0..2 {
        sqlx::query("select make_reading_month('2027-02-15')").execute(&mut service).await.unwrap();
    }
    let months =
        texts(&mut service, "select inhrelid::regclass::text from pg_inherits where inhparent = 'reading'::regclass")
            .await;
    assert_eq!(months, ["reading_2027_02"]);
    refused(&mut service, "delete from reading_2027_02").await;
    refused(&mut service, "update reading_2027_02 set granted = 0").await;
    refused(&mut service, "drop table reading_2027_02").await;
}
