//! Migrations meet data, each other, a kill, and binaries of other versions.

use crate::deployment::{command, eventually, run};
use sha2::{Digest, Sha384};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use std::{collections::BTreeMap, fs, path::Path, process::Stdio};
use support::Database;

/// The migrations of this tree, in order: version, description and text.
fn files() -> Vec<(i64, String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "sql"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let (version, description) = name.split_once('_').unwrap();
            (version.parse().unwrap(), description.replace('_', " "), fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn newest() -> i64 {
    files().last().unwrap().0
}

/// A database as a gpuledger left it whose newest migration was this one.
async fn left_by(newest: i64) -> (Database, PgConnection) {
    let database = Database::empty().await;
    let mut owner = database.connect().await;
    sqlx::raw_sql(
        "create table schema_migration (version bigint primary key, description text not null, checksum bytea not null,
            applied_at timestamptz not null default now())",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    for (version, description, text) in files().into_iter().filter(|(version, ..)| *version <= newest) {
        sqlx::raw_sql(AssertSqlSafe(text.clone())).execute(&mut owner).await.unwrap();
        sqlx::query("insert into schema_migration (version, description, checksum) values ($1, $2, $3)")
            .bind(version)
            .bind(description)
            .bind(Sha384::digest(text.as_bytes()).to_vec())
            .execute(&mut owner)
            .await
            .unwrap();
    }
    // 0004 makes the role
    if newest >= 4 {
        sqlx::raw_sql("grant select on schema_migration to gpuledger_service").execute(&mut owner).await.unwrap();
    }
    (database, owner)
}

/// The same as 0005 left it, with rows in every table.
async fn with_rows() -> (Database, PgConnection) {
    let (database, mut owner) = left_by(5).await;
    sqlx::raw_sql(include_str!("rows_of_0005.sql")).execute(&mut owner).await.unwrap();
    (database, owner)
}

/// The columns of every table, by its name.
async fn columns(owner: &mut PgConnection) -> BTreeMap<String, Vec<String>> {
    let rows = sqlx::query(
        "select c.relname::text, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
          where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and a.attnum > 0 and not a.attisdropped and c.relname <> 'schema_migration'
          order by c.relname, a.attnum",
    )
    .fetch_all(owner)
    .await
    .unwrap();
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows {
        columns.entry(row.get(0)).or_default().push(row.get(1));
    }
    columns
}

/// Every table's rows in these columns, as text.
async fn contents(owner: &mut PgConnection, columns: &BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    let mut contents = BTreeMap::new();
    for (table, columns) in columns {
        let columns: Vec<String> = columns.iter().map(|column| format!("\"{column}\"")).collect();
        let rows = format!("select r::text from (select {} from \"{table}\") r order by 1", columns.join(", "));
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(rows)).fetch_all(&mut *owner).await.unwrap();
        contents.insert(table.clone(), rows);
    }
    contents
}

async fn applied(owner: &mut PgConnection) -> Vec<(i64, String)> {
    let rows = sqlx::query("select version, applied_at::text from schema_migration order by version");
    rows.fetch_all(owner).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn migrate(database: &Database) -> String {
    run(&["migrate"], &[("DATABASE_URL", database.url())], "").expect(0)
}

#[tokio::test]
async fn every_row_of_an_older_database_survives_and_a_second_run_changes_nothing() {
    let (database, mut owner) = with_rows().await;
    let columns = columns(&mut owner).await;
    let before = contents(&mut owner, &columns).await;
    for (table, rows) in &before {
        assert!(!rows.is_empty(), "{table} has no rows to carry along");
    }
    migrate(&database);
    assert_eq!(contents(&mut owner, &columns).await, before);
    let versions = applied(&mut owner).await;
    assert_eq!(
        versions.iter().map(|(version, _)| *version).collect::<Vec<_>>(),
        files().iter().map(|f| f.0).collect::<Vec<_>>()
    );
    migrate(&database);
    assert_eq!(applied(&mut owner).await, versions);
    assert_eq!(contents(&mut owner, &columns).await, before);
    // and what it made is what a fresh database gets
    let fresh = Database::fresh().await;
    let mut of_fresh = fresh.connect().await;
    let mut expected = self::columns(&mut of_fresh).await;
    for columns in expected.values_mut() {
        columns.sort();
    }
    let mut found = self::columns(&mut owner).await;
    for columns in found.values_mut() {
        columns.sort();
    }
    assert_eq!(found, expected);
}

#[tokio::test]
async fn of_three_that_migrate_at_once_each_succeeds_and_each_file_is_applied_once() {
    let (database, mut owner) = left_by(3).await;
    let all: Vec<_> = (0..3)
        .map(|_| {
            let mut migrate = command(&["migrate"], &[("DATABASE_URL", database.url())]);
            migrate.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for one in all {
        let ended = one.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let versions: Vec<i64> = applied(&mut owner).await.into_iter().map(|(version, _)| version).collect();
    assert_eq!(versions, files().iter().map(|f| f.0).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_migration_that_is_killed_in_the_middle_leaves_the_database_as_it_was() {
    let (database, mut owner) = left_by(4).await;
    let (tables, versions) = (columns(&mut owner).await, applied(&mut owner).await);
    // 0005 makes a table that refers to gpu, for which it waits now
    let mut other = database.connect().await;
    let mut holds = other.begin().await.unwrap();
    sqlx::raw_sql("lock table gpu in access exclusive mode").execute(&mut *holds).await.unwrap();
    let mut migrate = command(&["migrate"], &[("DATABASE_URL", database.url())]);
    let mut migrate = migrate.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let waits = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let backend: i32 = eventually("the migration is in the middle", 20, async || {
        sqlx::query_scalar(waits).fetch_optional(&mut owner).await.unwrap()
    })
    .await;
    migrate.kill().unwrap();
    migrate.wait().unwrap();
    holds.rollback().await.unwrap();
    eventually("its session has ended", 20, async || {
        let alive = sqlx::query("select 1 from pg_stat_activity where pid = $1").bind(backend);
        alive.fetch_optional(&mut owner).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(columns(&mut owner).await, tables);
    assert_eq!(applied(&mut owner).await, versions);
    self::migrate(&database);
    assert_eq!(applied(&mut owner).await.last().unwrap().0, newest());
}

/// Whoever meets a database that is not its own says which versions there are and what to do, and changes nothing.
async fn refused_by_everyone(database: &Database, words: &[&str]) {
    let init = ["admin", "init", "--email", "a@b.example", "--name", "A", "--password-stdin"];
    let reset = ["admin", "reset-password", "--email", "a@b.example", "--password-stdin"];
    let environment = [("DATABASE_URL", database.url()), ("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0")];
    for args in
        [&["serve"][..], &["serve", "--no-migrate"], &["migrate"], &["verify-invoice", "GL-000001"], &init, &reset]
    {
        let said = run(args, &environment, "a password of tests").complaint(1);
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
    let doctor = run(&["doctor"], &environment, "").expect(1);
    let schema = doctor.lines().skip_while(|line| !line.contains("problem  schema")).collect::<Vec<_>>().join(" ");
    assert!(words.iter().all(|word| schema.contains(word)), "doctor: {doctor}");
    assert!(schema.contains("-> "), "{doctor}");
}

#[tokio::test]
async fn a_database_of_a_newer_gpuledger_is_refused_with_both_versions_and_what_to_do() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    sqlx::query("insert into schema_migration (version, description, checksum) values (9999, 'of the future', '')")
        .execute(&mut owner)
        .await
        .unwrap();
    let ours = format!("up to {}", newest());
    refused_by_everyone(&database, &["schema 9999", &ours, "a newer gpuledger", "backup"]).await;
    assert_eq!(applied(&mut owner).await.last().unwrap().0, 9999);
}

#[tokio::test]
async fn a_migration_that_was_applied_with_another_text_is_refused() {
    let database = Database::fresh().await;
    let mut owner = database.connect().await;
    sqlx::query("update schema_migration set checksum = sha256(checksum) where version = 2")
        .execute(&mut owner)
        .await
        .unwrap();
    refused_by_everyone(&database, &["migration 2", "another text"]).await;
}

#[tokio::test]
async fn a_server_that_may_not_migrate_refuses_an_older_schema_and_no_schema() {
    let (database, mut owner) = left_by(4).await;
    let environment = [("DATABASE_URL", database.url()), ("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0")];
    let said = run(&["serve", "--no-migrate"], &environment, "").complaint(1);
    let ours = format!("up to {}", newest());
    assert!(["schema 4", &ours, "gpuledger migrate"].iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(applied(&mut owner).await.last().unwrap().0, 4);
    let doctor = run(&["doctor"], &environment, "").expect(1);
    assert!(doctor.contains("schema 4") && doctor.contains("`gpuledger migrate`"), "{doctor}");

    let empty = Database::empty().await;
    let environment = [("DATABASE_URL", empty.url()), ("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0")];
    let said = run(&["serve", "--no-migrate"], &environment, "").complaint(1);
    assert!(said.contains("no schema yet") && said.contains("gpuledger migrate"), "{said}");
}
