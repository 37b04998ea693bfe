// tidy: long file: every way around the wall in one reading
//! The second wall from outside: what the catalogue says of every relation, function and right, and what whoever can send
//! any statement as the service's role gets. Nothing here is a list of tables, so a new one without its wall is found.

use crate::{
    deployment::{self, OPERATOR, PASSWORD, eventually, log_in},
    scope::{as_service, code, count, refused, texts, two_tenants, walled_tables},
};
use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, postgres::PgConnectOptions};
use std::{collections::BTreeSet, str::FromStr};
use support::{Database, Server};
use types::TenantId;

/// The wall of what a tenant owns, as Postgres writes it.
const TENANT_WALL: &str = "tenant_wall * ((current_setting('app.tenants'::text, true) = '*'::text) OR \
    ((tenant_id)::text = ANY (string_to_array(current_setting('app.tenants'::text, true), ','::text)))) ";
/// The wall of what belongs to the platform.
const PLATFORM_WALL: &str = "platform_wall * (current_setting('app.tenants'::text, true) = '*'::text) ";
/// What tenants' transactions may look at, though not write: what is the same for all, and where their parts lie.
const READ_BY_ALL: [&str; 8] = ["gpu", "gpu_model", "node", "partition", "plan", "plan_rate", "plan_version", "pool"];
/// Tables of the platform without a wall, each with what it holds. May only shrink.
const OPEN: [&str; 6] = [
    "invoice_series",   // a number and a hash, moved by the issue of one tenant's invoice
    "node_boot",        // nodes alone write and read it, and it names none but nodes
    "node_refusal",     // the same
    "schema_migration", // the schema's versions, for reading alone
    "server",           // addresses of servers
    "stream",           // marks of nodes, moved by a batch of several tenants' readings
];
/// Unique keys that span tenants. A tenant's request can run into one only where its value is chosen by a caller.
const UNIQUE_ACROSS_TENANTS: [&str; 14] = [
    "api_key_key",                 // ids are random
    "api_key_prefix_is_unique",    // random
    "invitation_key",              // ids are random
    "invitation_prefix_is_unique", // random
    "invoice_number_is_unique",    // counted under a lock
    "membership_key",              // given by an issuer to whoever proves it
    "node_credential_prefix_is_unique",
    "session_key", // ids are random
    "set_aside_key",
    "set_aside_once", // a stream is a node's
    "set_aside_ruled_once",
    "tenant_name_is_unique", // chosen by the platform
    "tenant_key",
    "user_account_key",
];

async fn run(connection: &mut PgConnection, statement: &str) -> Result<u64, sqlx::Error> {
    connection.execute(AssertSqlSafe(statement.to_owned())).await.map(|done| done.rows_affected())
}

async fn must(connection: &mut PgConnection, statement: &str) -> u64 {
    match run(connection, statement).await {
        Ok(rows) => rows,
        Err(error) => panic!("{statement}: {error}"),
    }
}

async fn rows(connection: &mut PgConnection, query: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).persistent(false).fetch_all(connection).await.unwrap()
}

/// As the service works for these tenants.
async fn for_tenants(service: &mut PgConnection, tenants: &str) {
    sqlx::query("select set_config('app.tenants', $1, false)").bind(tenants).execute(service).await.unwrap();
}

#[tokio::test]
async fn every_relation_that_the_service_can_touch_has_its_wall() {
    let (world, _) = two_tenants().await;
    let mut owner = world.owner().await;
    // a month that is made later has its wall from the first
    must(&mut owner, "set role gpuledger_service").await;
    must(&mut owner, "select make_reading_month('2031-05-17')").await;
    must(&mut owner, "reset role").await;
    let relations = sqlx::query(
        "select c.relname::text, c.relkind::text, c.relrowsecurity,
                coalesce((select not attisdropped from pg_attribute where attrelid = c.oid and attname = 'tenant_id'), false),
                coalesce(c.reloptions @> array['security_invoker=true'], false),
                coalesce((select string_agg(polname || ' ' || polcmd::text || ' ' || coalesce(pg_get_expr(polqual, polrelid), '')
                    || ' ' || coalesce(pg_get_expr(polwithcheck, polrelid), '')
                    || case when polpermissive and polroles = array['gpuledger_service'::regrole::oid] then '' else ' for others' end,
                    '; ' order by polname <> 'tenant_wall', polname) from pg_policy where polrelid = c.oid), ''),
                n.nspname::text
           from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast') and c.relkind not in ('i', 'I', 't', 'c')
            and (c.relkind = 'S' and has_sequence_privilege('gpuledger_service', c.oid, 'usage, select, update')
                or c.relkind <> 'S' and (has_any_column_privilege('gpuledger_service', c.oid, 'select, insert, update')
                    or has_table_privilege('gpuledger_service', c.oid, 'delete, truncate, references, trigger')))
          order by 1",
    )
    .fetch_all(&mut owner)
    .await
    .unwrap();
    assert!(relations.len() > 35, "{}", relations.len());
    let mut wrong = Vec::new();
    for relation in &relations {
        let (name, kind): (String, String) = (relation.get(0), relation.get(1));
        let (held, of_tenant, as_invoker): (bool, bool, bool) = (relation.get(2), relation.get(3), relation.get(4));
        let (policies, schema): (String, String) = (relation.get(5), relation.get(6));
        let expected = match name.as_str() {
            "set_aside" => format!("{TENANT_WALL}; nobodys_rows a  (tenant_id IS NULL)"),
            "set_aside_ruling" => policies.clone(),
            _ if of_tenant => TENANT_WALL.to_owned(),
            name if READ_BY_ALL.contains(&name) => format!("{PLATFORM_WALL}; read_by_all r true "),
            _ => PLATFORM_WALL.to_owned(),
        };
        let good = match kind.as_str() {
            "r" | "p" if OPEN.contains(&name.as_str()) => !of_tenant,
            "r" | "p" => held && schema == "public" && policies == expected,
            "v" => as_invoker,
            _ => false,
        };
        if !good {
            wrong.push(format!("{schema}.{name} ({kind}, held: {held}): {policies}"));
        }
    }
    assert!(wrong.is_empty(), "without the right wall: {wrong:#?}");
}

#[tokio::test]
async fn no_right_reaches_further_than_the_tables() {
    let database = Database::fresh().await;
    let mut service = as_service(&database).await;
    let nothing: [(&str, &str); 12] = [
        ("rights on single columns", "select attrelid::regclass || '.' || attname from pg_attribute
            where attacl is not null and attrelid >= 16384"),
        ("rights given ahead", "select defaclobjtype::text || ' ' || defaclacl::text from pg_default_acl
            where defaclacl::text ~ 'gpuledger_service|[{,]='"),
        ("functions", "select oid::regprocedure::text from pg_proc p
            where pronamespace >= 16384 or pronamespace = 'public'::regnamespace
              and has_function_privilege('gpuledger_service', oid, 'execute')
              and not exists (select from pg_depend where classid = 'pg_proc'::regclass and objid = p.oid and deptype = 'e')
              and oid <> 'make_reading_month(date)'::regprocedure"),
        ("functions with the owner's right", "select oid::regprocedure::text from pg_proc
            where prosecdef and (oid <> 'make_reading_month(date)'::regprocedure
                or proconfig is distinct from array['search_path=pg_catalog, pg_temp'])"),
        ("schemas", "select nspname::text from pg_namespace
            where has_schema_privilege('gpuledger_service', oid, 'create')"),
        ("the database", "select r from unnest(array['create', 'temporary']) r
            where has_database_privilege('gpuledger_service', current_database(), r)"),
        ("extensions", "select extname::text from pg_extension where extname not in ('plpgsql', 'btree_gist')"),
        ("languages", "select lanname::text from pg_language
            where lanpltrusted and has_language_privilege('gpuledger_service', oid, 'usage') and lanname not in ('sql', 'plpgsql')"),
        ("foreign servers", "select srvname::text from pg_foreign_server
            union all select fdwname::text from pg_foreign_data_wrapper"),
        ("rules", "select rulename || ' on ' || ev_class::regclass from pg_rewrite
            where ev_class >= 16384 and rulename <> '_RETURN'"),
        ("settings of the role", "select setconfig::text from pg_db_role_setting
            where setrole = 'gpuledger_service'::regrole"),
        ("rights on large objects, types and parameters", "select objid::text from pg_shdepend
            where refobjid = 'gpuledger_service'::regrole and dbid = (select oid from pg_database where datname = current_database())
              and classid not in ('pg_class'::regclass, 'pg_policy'::regclass, 'pg_proc'::regclass, 'pg_namespace'::regclass)"),
    ];
    for (what, query) in nothing {
        assert_eq!(rows(&mut service, query).await, [""; 0], "{what}");
    }
}

/// What tells one tenant of another by refusing it: keys that span tenants, and references out of a tenant.
#[tokio::test]
async fn no_key_tells_of_another_tenant() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    let across: BTreeSet<String> = rows(
        &mut owner,
        "select c.relname::text from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
          where (i.indisunique or i.indisexclusion) and t.relnamespace = 'public'::regnamespace
            and exists (select from pg_attribute a where a.attrelid = t.oid and a.attname = 'tenant_id')
            and not exists (select from pg_attribute a
                where a.attrelid = t.oid and a.attname = 'tenant_id' and a.attnum = any (i.indkey::int2[]))",
    )
    .await
    .into_iter()
    .collect();
    // people log in with their address alone, so it cannot be theirs twice: that one is told of
    let mut known: BTreeSet<String> = UNIQUE_ACROSS_TENANTS.map(str::to_owned).into();
    known.insert("user_email_is_unique".to_owned());
    let new: Vec<_> = across.difference(&known).collect();
    assert!(new.is_empty(), "unique across tenants: {new:?}");

    let references = texts(
        &mut owner,
        "select conname::text from pg_constraint c
          where contype = 'f' and exists (select from pg_attribute a where a.attrelid = c.confrelid and a.attname = 'tenant_id')
            and not exists (select from pg_attribute a
                where a.attrelid = c.confrelid and a.attname = 'tenant_id' and a.attnum = any (c.confkey))",
    )
    .await;
    // under the wall of the row that it names
    assert_eq!(references, ["set_aside_ruling_of_row"]);
}

/// Settings that name nobody, however they are made.
fn nobody(a: TenantId, b: TenantId) -> Vec<String> {
    let upper = a.to_string().to_uppercase();
    ["", ",", " ", "*,", "*,x", " *", "* ", "**", "%", "_", "null", "{*}", "'*'", "' or true --", "*'; --", "all"]
        .iter()
        .map(|text| (*text).to_owned())
        .chain([
            upper,
            format!(" {a}"),
            format!("{a} , {b} "),
            format!("{{{a}}}"),
            format!("{a};{b}"),
            format!("{a}' or '1'='1"),
            format!("{}%", &a.to_string()[..8]),
            a.to_string().replace('-', ""),
        ])
        .collect()
}

#[tokio::test]
async fn each_setting_shows_the_tenants_that_it_names_and_no_other() {
    let (world, [a, b]) = two_tenants().await;
    let (mut owner, mut service) = (world.owner().await, as_service(&world.database).await);
    for table in walled_tables(&mut owner).await {
        let nullable = rows(
            &mut owner,
            &format!("select 'yes' from pg_attribute where attrelid = '{table}'::regclass and attname = 'tenant_id' and not attnotnull"),
        )
        .await;
        let all = count(&mut owner, &table, "true").await;
        if !nullable.is_empty() {
            let of_nobody = count(&mut owner, &table, "tenant_id is null").await;
            assert!(of_nobody > 0, "the test has no row of the platform in {table}");
        }
        let (of_a, of_b) = (
            count(&mut owner, &table, &format!("tenant_id = '{a}'")).await,
            count(&mut owner, &table, &format!("tenant_id = '{b}'")).await,
        );
        for tenants in nobody(a, b) {
            for_tenants(&mut service, &tenants).await;
            assert_eq!(count(&mut service, &table, "true").await, 0, "{table} as {tenants:?}");
        }
        for (tenants, seen) in [
            (a.to_string(), of_a),
            (format!("{a},{b}"), of_a + of_b),
            (format!("{b},*"), of_b),
            (format!(",{b},,"), of_b),
            ("*".to_owned(), all),
        ] {
            for_tenants(&mut service, &tenants).await;
            assert_eq!(count(&mut service, &table, "true").await, seen, "{table} as {tenants:?}");
        }
        must(&mut service, "reset app.tenants").await;
        assert_eq!(count(&mut service, &table, "true").await, 0, "{table} without a tenant");
    }
}

/// The rows of one tenant in every table, as text.
pub async fn everything_of(owner: &mut PgConnection, tenant: TenantId) -> Vec<String> {
    let mut all = Vec::new();
    for table in walled_tables(owner).await {
        let of = format!("select '{table} ' || t::text from {table} t where tenant_id = '{tenant}' order by 1");
        all.extend(rows(owner, &of).await);
    }
    all
}

/// As a's, every kind of statement on every table, of which none may read or change a row of b's.
// tidy: long function: a list of statements
#[tokio::test]
async fn no_statement_reaches_another_tenants_rows() {
    let (world, [a, b]) = two_tenants().await;
    let (mut owner, mut service) = (world.owner().await, as_service(&world.database).await);
    let before = everything_of(&mut owner, b).await;
    let of_b = format!("tenant_id = '{b}'");
    for table in walled_tables(&mut owner).await {
        for_tenants(&mut service, &a.to_string()).await;
        // a read that finds b's rows by another way in
        for read in [
            format!("select tenant_id::text from {table} where {of_b}"),
            format!("select t.tenant_id::text from {table} t join {table} u on u.{of_b}"),
            format!("select (select min(tenant_id::text) from {table} u where u.{of_b}) from tenant limit 0"),
            format!("select 'seen' where exists (select from {table} where {of_b})"),
            format!("with x as materialized (select * from {table}) select tenant_id::text from x where {of_b}"),
            format!("select tenant_id::text from {table} tablesample system (100) where {of_b}"),
            format!(
                "select tenant_id::text from {table} where {of_b} union all select tenant_id::text from {table} where {of_b}"
            ),
            format!("select tenant_id::text from only {table} where {of_b} for key share"),
            // an error for a row that is not seen would tell of it
            format!("select 'seen' from {table} where {of_b} and 1 / (length(tenant_id::text) - 36) = 1"),
        ] {
            match sqlx::query_scalar::<_, String>(AssertSqlSafe(read.clone())).fetch_all(&mut service).await {
                Ok(found) => assert_eq!(found, [""; 0], "{read}"),
                Err(error) => assert_eq!(code(&error).as_deref(), Some("42501"), "{read}: {error}"),
            }
        }
        let columns = rows(
            &mut owner,
            &format!("select attname::text from pg_attribute where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped order by attnum"),
        )
        .await;
        let list = columns.join(", ");
        let copied = columns
            .iter()
            .map(|c| if c == "tenant_id" { format!("'{b}'::uuid") } else { c.clone() })
            .collect::<Vec<_>>();
        let key = rows(
            &mut owner,
            &format!("select string_agg(attname, ', ') from pg_index join pg_attribute on attrelid = indrelid and attnum = any (indkey::int2[])
                where indrelid = '{table}'::regclass and indisprimary"),
        )
        .await;
        for write in [
            format!("insert into {table} ({list}) select {} from {table} limit 1", copied.join(", ")),
            format!(
                "insert into {table} ({list}) select {} from {table} limit 1 on conflict do nothing",
                copied.join(", ")
            ),
            format!(
                "insert into {table} ({list}) select {} from {table} limit 1 on conflict ({}) do update set tenant_id = '{b}' returning *",
                copied.join(", "),
                key[0]
            ),
            format!("update {table} set tenant_id = '{b}'"),
            format!("update {table} set tenant_id = tenant_id where {of_b}"),
            format!("update {table} t set tenant_id = u.tenant_id from {table} u where u.{of_b} returning t.*"),
            format!("delete from {table} where {of_b}"),
            format!("delete from {table} t using {table} u where u.{of_b} returning u.*"),
            format!(
                "merge into {table} t using (select '{b}'::uuid as id) s on t.tenant_id = s.id when matched then delete"
            ),
            format!("truncate {table} cascade"),
            format!("alter table {table} disable row level security"),
            format!("alter table {table} no force row level security"),
            format!("alter table {table} owner to gpuledger_service"),
            format!("create policy mine on {table} using (true)"),
            format!("alter policy tenant_wall on {table} using (true)"),
            format!("drop policy tenant_wall on {table}"),
            format!("create trigger mine before insert on {table} execute function make_reading_month()"),
            format!("create rule mine as on insert to {table} do also nothing"),
            format!("create view mine as select * from {table}"),
            format!("grant all on {table} to public"),
            format!("copy {table} from program 'cat /dev/null'"),
            format!("copy {table} to '/tmp/of-{table}'"),
            format!("copy (select * from {table}) to program 'cat'"),
            format!("analyze {table}"),
        ] {
            // those that succeed are those that find nothing
            if let Ok(touched) = run(&mut service, &write).await {
                assert!(touched == 0 || write.starts_with("analyze"), "{touched} rows by {write}");
            }
        }
    }
    let after = everything_of(&mut owner, b).await;
    assert!(after == before, "b's rows are others now");
    let strange = texts(&mut owner, "select relname::text from pg_class where relname = 'mine'").await;
    assert_eq!(strange, [""; 0]);
}

#[tokio::test]
async fn copy_cursors_and_prepared_statements_keep_to_the_setting() {
    let (world, [a, b]) = two_tenants().await;
    let (mut owner, mut service) = (world.owner().await, as_service(&world.database).await);
    for table in walled_tables(&mut owner).await {
        let theirs =
            rows(&mut owner, &format!("select to_jsonb(t)::text from {table} t where tenant_id = '{b}'")).await;
        for_tenants(&mut service, &a.to_string()).await;
        let copy = format!("copy (select * from {table}) to stdout");
        let copied = service.copy_out_raw(&copy).await.unwrap();
        let out = copied.try_collect::<Vec<_>>().await.unwrap().concat();
        assert!(!String::from_utf8_lossy(&out).contains(&b.to_string()), "{table}");

        // a plan made for a's transaction, used in b's
        must(&mut service, &format!("prepare look as select count(*)::text from {table} where tenant_id = '{b}'"))
            .await;
        for _ in 0..6 {
            assert_eq!(rows(&mut service, "execute look").await, ["0"], "{table}");
        }
        for_tenants(&mut service, &b.to_string()).await;
        assert_eq!(rows(&mut service, "execute look").await, [theirs.len().to_string()], "{table}");
        for_tenants(&mut service, &a.to_string()).await;
        assert_eq!(rows(&mut service, "execute look").await, ["0"], "{table}");
        must(&mut service, "deallocate look").await;

        // a cursor that stays open beyond its transaction holds what its own saw
        must(&mut service, "begin").await;
        must(&mut service, &format!("declare seen cursor with hold for select tenant_id::text from {table}")).await;
        must(&mut service, "commit").await;
        for_tenants(&mut service, "").await;
        let held = rows(&mut service, "fetch all from seen").await;
        assert!(!held.contains(&b.to_string()), "{table}");
        must(&mut service, "close seen").await;
    }
}

/// A month's table is asked by its own name, also one that was made after the schema.
#[tokio::test]
async fn the_tables_of_months_have_the_wall_of_all_readings() {
    let (world, [a, b]) = two_tenants().await;
    let (mut owner, mut service) = (world.owner().await, as_service(&world.database).await);
    must(&mut service, "select make_reading_month('2033-03-01')").await;
    for tenant in [a, b] {
        let copy = format!(
            "insert into reading select tenant_id, '2033-03-02', part_id, '2033-03-03', allocation_id, project_id, gpu_id,
                reading_id, granted, used, above, peak, covered_ms, quality, skew_ms, stream_id, sequence, received_at
               from reading where tenant_id = '{tenant}' limit 1"
        );
        assert_eq!(must(&mut owner, &copy).await, 1);
    }
    for_tenants(&mut service, &a.to_string()).await;
    assert_eq!(count(&mut service, "reading_2033_03", "true").await, 1);
    assert_eq!(count(&mut service, "reading_2033_03", &format!("tenant_id = '{b}'")).await, 0);
    refused(&mut service, &format!("insert into reading_2033_03 select '{b}', starts_at, part_id, ends_at, allocation_id, project_id,
        gpu_id, reading_id, granted, used, above, peak, covered_ms, quality, skew_ms, stream_id, sequence, received_at from reading_2033_03")).await;
    for_tenants(&mut service, "").await;
    assert_eq!(count(&mut service, "reading_2033_03", "true").await, 0);
    for statement in [
        "update reading_2033_03 set granted = 0",
        "delete from reading_2033_03",
        "truncate reading_2033_03",
        "alter table reading detach partition reading_2033_03",
        "drop table reading_2033_03",
        "alter table reading_2033_03 disable row level security",
    ] {
        refused(&mut service, statement).await;
    }
}

/// Whoever may make temporary objects could slip a type of their own under a function with the owner's right. The service
/// may not; and where an owner lets it, the function takes Postgres' own all the same.
#[tokio::test]
async fn nothing_can_be_slipped_under_the_function_with_the_owners_right() {
    let database = Database::fresh().await;
    let mut service = as_service(&database).await;
    let mut owner = database.connect().await;
    for statement in [
        "create temp table charge (a int)",
        "create function pg_temp.f() returns int language sql as 'select 1'",
        "create domain pg_temp.text as pg_catalog.text",
        "select 1 as a into temp x",
    ] {
        refused(&mut service, statement).await;
    }
    let name = rows(&mut owner, "select current_database()::text").await;
    must(&mut owner, &format!("grant temporary on database {} to gpuledger_service", name[0])).await;
    must(&mut owner, "create table who (who pg_catalog.text); grant insert, select on who to gpuledger_service").await;
    for statement in [
        "create function pg_temp.tell(t pg_catalog.text) returns boolean language plpgsql as
            $$ begin insert into public.who values (current_user); return true; end $$",
        "create domain pg_temp.text as pg_catalog.text check (pg_temp.tell(value))",
        "create domain pg_temp.date as pg_catalog.date check (pg_temp.tell(value::pg_catalog.text))",
        "create function pg_temp.format(pg_catalog.text, pg_catalog.text) returns pg_catalog.text language plpgsql as
            $$ begin perform pg_temp.tell('format'); return pg_catalog.format($1, $2); end $$",
        "create function pg_temp.concat(pg_catalog.text, pg_catalog.text) returns pg_catalog.text language plpgsql as
            $$ begin perform pg_temp.tell('||'); return 'x'; end $$",
        "create operator pg_temp.|| (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = pg_temp.concat)",
        "set search_path = pg_temp, public",
        "select public.make_reading_month('2034-06-01')",
    ] {
        must(&mut service, statement).await;
    }
    assert_eq!(rows(&mut owner, "select distinct who from who").await, [""; 0]);
    let made = rows(&mut owner, "select relname::text from pg_class where relname = 'reading_2034_06'").await;
    assert_eq!(made, ["reading_2034_06"]);
}

/// A login that owns nothing, and is let work as the service's role: what docs/operator.md says to serve under.
#[derive(Debug)]
struct Login {
    role: String,
    url: String,
}

impl Login {
    async fn make(database: &Database) -> Self {
        let options = PgConnectOptions::from_str(database.url()).unwrap();
        let role = format!("login_of_{}", options.get_database().unwrap());
        let mut owner = database.connect().await;
        must(&mut owner, &format!("create role {role} login noinherit password 'of tests'")).await;
        must(&mut owner, &format!("grant gpuledger_service to {role}")).await;
        let url = sqlx::ConnectOptions::to_url_lossy(&options.username(&role).password("of tests")).to_string();
        Self { role, url }
    }

    /// Roles belong to the whole server.
    async fn remove(self, database: &Database) {
        must(&mut database.connect().await, &format!("drop role {}", self.role)).await;
    }
}

// tidy: long function: a list of statements
#[tokio::test]
async fn under_a_login_that_owns_nothing_no_statement_leaves_the_services_role_for_more() {
    let (world, [a, b]) = two_tenants().await;
    let mut owner = world.owner().await;
    must(&mut owner, "select lo_from_bytea(4711, 'secret')").await;
    let owner_name = rows(&mut owner, "select current_user::text").await;
    store::migrate(world.database.url()).await.unwrap();
    let login = Login::make(&world.database).await;
    let mut service = PgConnection::connect(&login.url).await.unwrap();
    must(&mut service, "set role gpuledger_service").await;
    for_tenants(&mut service, &a.to_string()).await;
    for statement in [
        format!("set role {}", owner_name[0]),
        format!("set session authorization {}", owner_name[0]),
        "set row_security = off; select count(*) from charge".to_owned(),
        "create role mine superuser".to_owned(),
        "alter role gpuledger_service bypassrls".to_owned(),
        format!("alter role {} superuser", login.role),
        "alter system set log_statement = 'all'".to_owned(),
        "create extension dblink".to_owned(),
        "create extension postgres_fdw".to_owned(),
        "create schema mine".to_owned(),
        "create table public.mine (a int)".to_owned(),
        "create function public.mine() returns int language sql security definer as 'select 1'".to_owned(),
        "create or replace function make_reading_month(month date) returns void language sql as ''".to_owned(),
        "alter function make_reading_month(date) reset search_path".to_owned(),
        "create sequence public.mine".to_owned(),
        "create publication mine for all tables".to_owned(),
        "create event trigger mine on ddl_command_start execute function make_reading_month()".to_owned(),
        "load 'auto_explain'".to_owned(),
        "set session_replication_role = replica".to_owned(),
        "select pg_read_file('PG_VERSION')".to_owned(),
        "select pg_ls_dir('.')".to_owned(),
        "select pg_stat_file('PG_VERSION')".to_owned(),
        "select lo_import('/etc/passwd')".to_owned(),
        "select lo_export(4711, '/tmp/exported')".to_owned(),
        "select lo_get(4711)".to_owned(),
        "select count(*) from pg_authid".to_owned(),
        "select count(*) from pg_statistic".to_owned(),
        "select count(*) from pg_largeobject".to_owned(),
        "copy charge to program 'cat'".to_owned(),
        "create temp table mine as select 1".to_owned(),
        "drop owned by current_user cascade; select count(*) from pg_authid".to_owned(),
        "reassign owned by gpuledger_service to public".to_owned(),
    ] {
        match run(&mut service, &statement).await {
            Err(error) => assert!(code(&error).is_some(), "{statement}: {error}"),
            Ok(_) => panic!("allowed: {statement}"),
        }
    }
    // what the setting does not show, no other role that can be had shows either
    for leave in ["reset role", "set role none", "set session authorization default"] {
        must(&mut service, "set role gpuledger_service").await;
        must(&mut service, leave).await;
        let answer = run(&mut service, "select count(*) from charge").await;
        assert_eq!(answer.as_ref().err().and_then(code).as_deref(), Some("42501"), "{leave}: {answer:?}");
    }
    // statistics and other sessions tell nothing
    must(&mut owner, "analyze").await;
    must(&mut service, "set role gpuledger_service").await;
    for_tenants(&mut service, &a.to_string()).await;
    let of_b = format!(
        "select count(*)::text from pg_stats where most_common_vals::text like '%{b}%' or histogram_bounds::text like '%{b}%'"
    );
    assert_eq!(rows(&mut service, &of_b).await, ["0"]);
    assert_ne!(rows(&mut owner, &of_b).await, ["0"], "the test has no statistics to hide");
    must(&mut owner, &format!("select '{b}' as told")).await;
    let others =
        format!("select count(*)::text from pg_stat_activity where query like '%{b}%' and pid <> pg_backend_pid()");
    assert_eq!(rows(&mut service, &others).await, ["0"]);
    drop(service);
    login.remove(&world.database).await;
}

/// The server works under such a login, and keeps the owner's URL for the schema alone.
#[tokio::test]
async fn the_server_needs_to_own_nothing() {
    let database = Database::fresh().await;
    let login = Login::make(&database).await;
    let owner = [("GPULEDGER_DATABASE__OWNER_URL", database.url())];
    let with_owner = [("DATABASE_URL", login.url.as_str()), owner[0]];
    let init = ["admin", "init", "--email", OPERATOR, "--name", "Operator", "--password-stdin"];
    deployment::run(&init, &with_owner, PASSWORD).expect(0);
    deployment::run(&["migrate"], &with_owner, "").expect(0);
    let server = Server::start_on(&login.url, &owner).await;
    let operator = log_in(&server.client(), OPERATOR).await;
    let tenant = serde_json::json!({"name": "t", "zone": "UTC", "currency": "USD"});
    operator.post("/v1/tenants", &tenant).await.expect(201);
    eventually("months are made with the owner's right", 20, async || {
        let months = "select count(*) from pg_inherits where inhparent = 'reading'::regclass";
        (count_of(&mut database.connect().await, months).await > 1).then_some(())
    })
    .await;
    let doctor = deployment::run(&["doctor", "--json"], &with_owner, "").out;
    assert!(doctor.contains("has nothing beside it"), "{doctor}");
    // and without the owner's URL it looks at the schema and leaves it alone
    deployment::run(&["migrate"], &with_owner[..1], "").expect(1);
    drop(server);
    login.remove(&database).await;
}

async fn count_of(connection: &mut PgConnection, query: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).persistent(false).fetch_one(connection).await.unwrap()
}

/// A refusal names the rule and no value of a row that the transaction does not see.
#[tokio::test]
async fn a_refusal_carries_no_value_of_another_tenant() {
    let (world, [a, b]) = two_tenants().await;
    let (mut owner, mut service) = (world.owner().await, as_service(&world.database).await);
    for_tenants(&mut service, &a.to_string()).await;
    let theirs = rows(&mut owner, &format!("select email from user_account where tenant_id = '{b}'")).await;
    let clash = format!(
        "insert into user_account (user_id, tenant_id, email, name, role, password_hash, created_at)
         values (gen_random_uuid(), '{a}', '{}', 'x', 'viewer', 'x', now())",
        theirs[0]
    );
    for statement in [
        clash.clone(),
        format!("{clash} on conflict (email) do update set name = user_account.name"),
        format!("{clash} on conflict (email) do update set tenant_id = '{a}' returning *"),
        format!(
            "insert into set_aside_ruling select set_aside_id, 'accepted', 'x', now() from (select '{}'::uuid as set_aside_id) s",
            rows(&mut owner, &format!("select set_aside_id::text from set_aside where tenant_id = '{b}'")).await[0]
        ),
        "insert into set_aside_ruling values (gen_random_uuid(), 'accepted', 'x', now())".to_owned(),
    ] {
        let error = run(&mut service, &statement).await.expect_err(&statement);
        let told = error.as_database_error().unwrap().downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!(told.detail(), None, "{statement}");
        assert!(!told.message().contains(&theirs[0]), "{statement}: {}", told.message());
    }
    assert_eq!(must(&mut service, &format!("{clash} on conflict do nothing")).await, 0);
}
