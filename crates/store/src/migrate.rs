//! Brings a database to this binary's schema.

use crate::error::StoreError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, migrate::Migrator};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// Temporary objects would shadow the service's tables. Rights on a database are in no dump and no copy of it, so they are
/// looked at each time; whoever does not own the database cannot take them away, and is told by `gpuledger doctor`.
const NO_TEMPORARY_OBJECTS: &str = "
    do $$
    begin
        if has_database_privilege('gpuledger_service', current_database(), 'temporary') then
            execute format('revoke temporary, create on database %I from public, gpuledger_service', current_database());
        end if;
    end
    $$";

/// Applies what is missing, in order, each in one transaction, as the user of the URL, who then owns the schema.
/// Running it again changes nothing; two at once wait for each other.
///
/// # Errors
/// [`StoreError::Schema`] when the database was migrated by a newer binary, or a merged migration was changed;
/// [`StoreError::Unavailable`] when Postgres does not answer.
pub async fn migrate(url: &str) -> Result<(), StoreError> {
    let mut connection = PgConnection::connect(url).await?;
    let created = sqlx::raw_sql(
        "create table if not exists schema_migration (
            version bigint primary key, description text not null, checksum bytea not null,
            applied_at timestamptz not null default now())",
    )
    .execute(&mut connection)
    .await
    .map_err(StoreError::from);
    match created {
        // of two that create it at once, Postgres tells one so; it exists all the same
        Ok(_) | Err(StoreError::Rule(_)) => {}
        Err(error) => return Err(error),
    }

    let mut tx = connection.begin().await?;
    sqlx::raw_sql("lock table schema_migration in exclusive mode").execute(&mut *tx).await?;
    let applied = applied(&mut tx).await?;
    check(&applied)?;
    for migration in MIGRATIONS.iter().filter(|m| applied.iter().all(|(version, _)| *version != m.version)) {
        // the text is compiled in
        sqlx::raw_sql(AssertSqlSafe(migration.sql.as_str().to_owned())).execute(&mut *tx).await.map_err(|error| {
            StoreError::Schema(format!("migration {} ({}) failed: {error}", migration.version, migration.description))
        })?;
        sqlx::query("insert into schema_migration (version, description, checksum) values ($1, $2, $3)")
            .bind(migration.version)
            .bind(migration.description.as_ref())
            .bind(migration.checksum.as_ref())
            .execute(&mut *tx)
            .await?;
    }
    sqlx::raw_sql("grant select on schema_migration to gpuledger_service").execute(&mut *tx).await?;
    sqlx::raw_sql(NO_TEMPORARY_OBJECTS).execute(&mut *tx).await?;
    tx.commit().await?;
    connection.close().await?;
    Ok(())
}

/// Whether the database has exactly this binary's schema.
///
/// # Errors
/// [`StoreError::Schema`] saying what to do when it has not.
pub async fn check_schema(url: &str) -> Result<(), StoreError> {
    let mut connection = PgConnection::connect(url).await?;
    // a login that owns nothing reads it as the service does; where there is no such role yet, there is no schema either
    let _ = sqlx::raw_sql("set role gpuledger_service").execute(&mut connection).await;
    let applied = applied(&mut connection)
        .await
        .map_err(|_| StoreError::Schema("the database has no schema yet: run `gpuledger migrate`".into()))?;
    check(&applied)?;
    let missing = MIGRATIONS.iter().filter(|m| applied.iter().all(|(version, _)| *version != m.version)).count();
    if missing > 0 {
        let (theirs, ours) = (applied.iter().map(|(version, _)| *version).max().unwrap_or(0), newest().unwrap_or(0));
        return Err(StoreError::Schema(format!(
            "the database has schema {theirs} and lacks {missing} migrations up to {ours}, which this gpuledger ({}) needs: \
             run `gpuledger migrate`, or start `gpuledger serve` without --no-migrate",
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(())
}

/// The version of this binary's schema.
pub(crate) fn newest() -> Option<i64> {
    MIGRATIONS.iter().map(|m| m.version).max()
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
    let rows =
        sqlx::query("select version, checksum from schema_migration order by version").fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

fn check(applied: &[(i64, Vec<u8>)]) -> Result<(), StoreError> {
    let ours = newest().unwrap_or(0);
    if let Some((theirs, _)) =
        applied.iter().rev().find(|(version, _)| MIGRATIONS.iter().all(|m| m.version != *version))
    {
        return Err(StoreError::Schema(format!(
            "the database has schema {theirs}, this gpuledger ({}) knows schemas up to {ours}: a newer gpuledger migrated it. \
             Use that one; there is no way back but a backup from before",
            env!("CARGO_PKG_VERSION")
        )));
    }
    for (version, checksum) in applied {
        let known = MIGRATIONS.iter().find(|m| m.version == *version);
        if let Some(known) = known.filter(|known| known.checksum.as_ref() != checksum.as_slice()) {
            return Err(StoreError::Schema(format!(
                "migration {version} ({}) was applied with another text than this gpuledger ({}) carries: use the one that \
                 applied it, or a released one with a backup from before",
                known.description,
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    Ok(())
}
