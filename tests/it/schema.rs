//! The schema keeps the rules under which it can outgrow one machine, and names each constraint after what it holds.

use sqlx::{PgConnection, query_scalar};
use support::Database;

async fn texts(owner: &mut PgConnection, query: &'static str) -> Vec<String> {
    query_scalar(query).fetch_all(owner).await.unwrap()
}

/// Tables of present state that must be unique across tenants: they stay on one machine, whatever happens to the rest.
const CONTROL: [&str; 8] =
    ["api_key", "invitation", "invoice_number", "membership", "session", "set_aside", "tenant", "user_account"];

/// Tables of tenants' facts, in order.
const FACTS: [&str; 10] =
    ["audit", "charge", "credit", "credit_use", "history", "interval", "invoice", "note", "reading", "unbilled_span"];

/// The lint query for Citus: of a table that would be spread by tenant, each unique key contains the tenant.
#[tokio::test]
async fn every_unique_key_of_tenants_data_contains_the_tenant() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    let mut tables = texts(
        &mut owner,
        "select distinct c.conrelid::regclass::text
           from pg_constraint c join pg_attribute a on a.attrelid = c.conrelid and a.attname = 'tenant_id' and not a.attisdropped
          where c.contype in ('p', 'u', 'x') and not a.attnum = any (c.conkey)
          order by 1",
    )
    .await;
    tables.retain(|table| !CONTROL.contains(&table.as_str()));
    assert_eq!(tables, [""; 0]);
    // a unique index is a unique key, too
    let mut indexes = texts(
        &mut owner,
        "select i.indrelid::regclass::text
           from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attname = 'tenant_id'
          where i.indisunique and not a.attnum = any (i.indkey::int2[]) order by 1",
    )
    .await;
    indexes.retain(|table| !CONTROL.contains(&table.as_str()));
    assert_eq!(indexes, [""; 0]);
}

/// No foreign key leads out of a tenant's facts, and none from a table of one machine into a spread one.
#[tokio::test]
async fn no_foreign_key_crosses_tenants() {
    let database = Database::fresh().await;
    let keys = texts(
        &mut database.connect().await,
        "select c.conname::text from pg_constraint c
          where c.contype = 'f' and c.conrelid in (select a.attrelid from pg_attribute a where a.attname = 'tenant_id')
            and c.confrelid in (select a.attrelid from pg_attribute a where a.attname = 'tenant_id')
            and not exists (select 1 from pg_attribute a
                where a.attrelid = c.conrelid and a.attname = 'tenant_id' and a.attnum = any (c.conkey))",
    )
    .await;
    assert_eq!(keys, [""; 0]);
    let of_facts = texts(
        &mut database.connect().await,
        "select conname::text from pg_constraint where contype = 'f' and conrelid::regclass::text in
            ('history', '\"interval\"', 'unbilled_span', 'reading', 'charge', 'invoice', 'audit', 'note', 'credit', 'credit_use')",
    )
    .await;
    assert_eq!(of_facts, [""; 0]);
}

/// The tenant leads the key of each table of facts.
#[tokio::test]
async fn the_tenant_comes_first_in_the_keys_of_facts() {
    let database = Database::fresh().await;
    let mut first = texts(
        &mut database.connect().await,
        "select t.relname::text from pg_constraint c join pg_class t on t.oid = c.conrelid
           join pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
          where c.contype = 'p' and a.attname = 'tenant_id' order by 1",
    )
    .await;
    first.retain(|table| FACTS.contains(&table.as_str()));
    assert_eq!(first, FACTS);
}

/// `table_column_check`, `table_pkey` and the like say nothing to who reads an error: each rule has a name of its own.
#[tokio::test]
async fn every_constraint_is_named_after_its_rule() {
    let database = Database::fresh().await;
    let unnamed = texts(
        &mut database.connect().await,
        "select t.relname || '.' || c.conname from pg_constraint c join pg_namespace n on n.oid = c.connamespace
           join pg_class t on t.oid = c.conrelid
          where n.nspname = 'public' and c.contype in ('p', 'u', 'x', 'f', 'c')
            and t.relname <> 'schema_migration'
            and not exists (select 1 from pg_inherits i where i.inhrelid = c.conrelid)
            and c.conname ~ '_(pkey|key[0-9]*|excl[0-9]*|fkey[0-9]*|check[0-9]*)$'
            -- the name of a table's own key is its table's and `key`
            and not (c.contype = 'p' and c.conname = t.relname || '_key')
          order by 1",
    )
    .await;
    assert_eq!(unnamed, [""; 0]);
}

/// Sums of byte-milliseconds outgrow 64 bits: every column that holds them has 28 digits.
#[tokio::test]
async fn byte_milliseconds_have_28_digits() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    let narrow = texts(
        &mut owner,
        "select table_name || '.' || column_name from information_schema.columns
          where table_schema = 'public' and column_name in ('used', 'above', 'quantity') and table_name <> 'plan_rate'
            and (data_type <> 'numeric' or numeric_precision < 28) order by 1",
    )
    .await;
    assert_eq!(narrow, [""; 0]);
    let floats = texts(
        &mut owner,
        "select table_name || '.' || column_name from information_schema.columns
          where table_schema = 'public' and data_type in ('real', 'double precision', 'money') order by 1",
    )
    .await;
    assert_eq!(floats, [""; 0]);
    let zoneless = texts(
        &mut owner,
        "select table_name || '.' || column_name from information_schema.columns
          where table_schema = 'public' and data_type = 'timestamp without time zone' order by 1",
    )
    .await;
    assert_eq!(zoneless, [""; 0]);
}

/// Corrections come by adding: nothing relies on triggers, which would not survive on several machines.
#[tokio::test]
async fn there_are_no_triggers() {
    let database = Database::fresh().await;
    let triggers =
        texts(&mut database.connect().await, "select tgname::text from pg_trigger where not tgisinternal").await;
    assert_eq!(triggers, [""; 0]);
}
