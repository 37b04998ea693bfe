//! What a check of a deployment looks at: the server and its roles, rights and walls, and rows that tell of trouble.
//! Nothing here judges.

pub mod ledger;
pub mod server;
pub mod stream;

use crate::{error::StoreError, node_refusal::RefusalReason, time::At, tx::Tx};
use sqlx::{Connection, PgConnection, Row};
use types::{Instant, PoolId, SetAsideId};

/// Tables whose rows are inserted once and never changed. Months of readings belong to them too.
pub const APPEND_ONLY: [&str; 21] = [
    "gpu_model",
    "plan",
    "plan_version",
    "plan_rate",
    "occupancy",
    "gpu_capacity",
    "node_presence",
    "set_aside",
    "set_aside_ruling",
    "invoice_number",
    "history",
    "interval",
    "unbilled_span",
    "reading",
    "charge",
    "invoice",
    "audit",
    "note",
    "credit",
    "credit_use",
    "membership",
];

/// A Postgres server as the URL's user finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Such as 150008 for 15.8.
    pub version_number: i32,
    /// As the server writes it, such as `15.8 (Debian 15.8-0+deb12u1)`.
    pub version: String,
    /// Who connected.
    pub user: String,
    /// Whether it still recovers from a crash or a backup, or follows another server: it takes no writes.
    pub is_in_recovery: bool,
    /// The role that the service works as; absent before the first migration.
    pub role: Option<ServiceRole>,
}

/// The role `gpuledger_service`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRole {
    pub is_superuser: bool,
    pub bypasses_row_security: bool,
    /// Whether the URL's user may work as it.
    pub may_be_taken: bool,
    /// Whether the URL's user has nothing beside it: owns no table of the ledger and is no superuser.
    pub is_all_there_is: bool,
    /// Whether it may make temporary objects, which shadow the ledger's.
    pub makes_temporary_objects: bool,
}

/// Connects as the URL's user and looks at the server.
///
/// # Errors
/// What the connection says.
pub async fn server(url: &str) -> Result<Server, StoreError> {
    let mut connection = PgConnection::connect(url).await?;
    let row = sqlx::query(
        "select current_setting('server_version_num')::integer, current_setting('server_version'), session_user::text,
            pg_is_in_recovery()",
    )
    .fetch_one(&mut connection)
    .await?;
    let role = sqlx::query(
        "select rolsuper, rolbypassrls, pg_has_role(session_user, oid, 'member'),
            not (select u.rolsuper or u.rolbypassrls from pg_roles u where u.rolname = session_user)
                and not exists (select from pg_tables t
                    where schemaname = 'public' and pg_has_role(session_user, t.tableowner, 'member')),
            has_database_privilege(oid, current_database(), 'temporary')
           from pg_roles where rolname = 'gpuledger_service'",
    )
    .fetch_optional(&mut connection)
    .await?;
    let role = role
        .map(|r| {
            Ok::<_, sqlx::Error>(ServiceRole {
                is_superuser: r.try_get(0)?,
                bypasses_row_security: r.try_get(1)?,
                may_be_taken: r.try_get(2)?,
                is_all_there_is: r.try_get(3)?,
                makes_temporary_objects: r.try_get(4)?,
            })
        })
        .transpose()?;
    let server = Server {
        version_number: row.try_get(0)?,
        version: row.try_get(1)?,
        user: row.try_get(2)?,
        is_in_recovery: row.try_get(3)?,
        role,
    };
    connection.close().await?;
    Ok(server)
}

/// The server's clock.
///
/// # Errors
/// What the database says.
pub async fn clock(tx: &mut Tx) -> Result<Instant, StoreError> {
    let at = sqlx::query_scalar!(r#"select clock_timestamp() as "at!""#).fetch_one(tx.connection()).await?;
    Ok(at.0)
}

/// Rights of the service's role that reach too far: table, and `UPDATE`, `DELETE`, `TRUNCATE` or `OWNER`.
///
/// # Errors
/// What the database says.
pub async fn excessive_rights(tx: &mut Tx) -> Result<Vec<(String, String)>, StoreError> {
    let append_only = APPEND_ONLY.map(str::to_owned);
    let rows = sqlx::query!(
        r#"with ours as (
             select c.oid, c.relname::text as name, pg_get_userbyid(c.relowner)::text as owner,
                    (c.relname = any($1) or c.relname like 'reading\_%') as append_only
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'public' and c.relkind in ('r', 'p'))
           select name as "table!", 'OWNER' as "right!" from ours where owner = 'gpuledger_service'
           union all
           select name, 'UPDATE' from ours
            where append_only and has_any_column_privilege('gpuledger_service', oid, 'UPDATE')
           union all
           select name, r.r from ours cross join unnest(array['DELETE', 'TRUNCATE']) as r (r)
            where append_only and has_table_privilege('gpuledger_service', oid, r.r)
           order by 1, 2"#,
        &append_only
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(|r| (r.table, r.right)).collect())
}

/// Rights that the service's role needs and lacks: table or function, and right.
///
/// # Errors
/// What the database says.
pub async fn missing_rights(tx: &mut Tx) -> Result<Vec<(String, String)>, StoreError> {
    let append_only = APPEND_ONLY.map(str::to_owned);
    let rows = sqlx::query!(
        r#"with ours as (
             select c.oid, c.relname::text as name, (c.relname = any($1) or c.relname like 'reading\_%') as append_only
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'public' and c.relkind in ('r', 'p'))
           select name as "object!", r.r as "right!" from ours cross join unnest(array['SELECT', 'INSERT', 'UPDATE']) as r (r)
            -- present state is changed or removed, as its table needs
            where not has_table_privilege('gpuledger_service', oid, case r.r when 'UPDATE' then 'UPDATE, DELETE' else r.r end)
              and (r.r = 'SELECT' or (name <> 'schema_migration' and not (append_only and r.r = 'UPDATE')))
           union all
           select 'make_reading_month', 'EXECUTE'
            where not has_function_privilege('gpuledger_service', 'public.make_reading_month(date)', 'EXECUTE')
           order by 1, 2"#,
        &append_only
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows.into_iter().map(|r| (r.object, r.right)).collect())
}

/// Tables with a tenant's rows that row security does not hold: it is off, or has no policy, or one that shows rows to
/// whoever names no tenant.
///
/// # Errors
/// What the database says.
pub async fn tables_without_wall(tx: &mut Tx) -> Result<Vec<String>, StoreError> {
    let names = sqlx::query_scalar!(
        r#"select c.relname::text as "name!" from pg_class c
             join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'public'
             join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
            where c.relkind in ('r', 'p')
              and (not c.relrowsecurity
                   or not exists (select 1 from pg_policy p where p.polrelid = c.oid)
                   or exists (select 1 from pg_policy p
                        where p.polrelid = c.oid and p.polpermissive and p.polcmd <> 'a'
                          and coalesce(pg_get_expr(p.polqual, p.polrelid), 'true') not like '%app.tenants%'))
            order by 1"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(names)
}

/// Which of these months, such as `2026_11`, have no table of readings.
///
/// # Errors
/// What the database says.
pub async fn months_without_table(tx: &mut Tx, months: &[String]) -> Result<Vec<String>, StoreError> {
    let missing = sqlx::query_scalar!(
        r#"select month as "month!" from unnest($1::text[]) as m (month)
            where to_regclass('public.reading_' || month) is null order by 1"#,
        months
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(missing)
}

/// A pool and whether somebody leads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLead {
    pub pool_id: PoolId,
    pub name: String,
    /// Absent when nobody ever led it.
    pub term: Option<i64>,
    /// Whether the lease is fresh by the server's clock.
    pub is_led: bool,
}

/// Every pool's leadership.
///
/// # Errors
/// What the database says.
pub async fn leads(tx: &mut Tx) -> Result<Vec<PoolLead>, StoreError> {
    let rows = sqlx::query!(
        r#"select p.pool_id, p.name, l.term as "term?", coalesce(l.expires_at > clock_timestamp(), false) as "is_led!"
             from pool p left join pool_leadership l using (pool_id) order by p.name"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| PoolLead { pool_id: r.pool_id.into(), name: r.name, term: r.term, is_led: r.is_led })
        .collect())
}

/// A node that should be heard and is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentNode {
    pub hostname: String,
    pub pool: String,
    /// Absent when it never reported.
    pub last_heard: Option<Instant>,
}

/// Nodes, not removed, that were not heard for their pool's `silence_grace_s` by the server's clock.
///
/// # Errors
/// What the database says.
pub async fn silent_nodes(tx: &mut Tx) -> Result<Vec<SilentNode>, StoreError> {
    let rows = sqlx::query!(
        "select n.hostname, p.name as pool, n.last_heard from node n join pool p using (pool_id)
          where n.state <> 'removed' and (n.last_heard is null
             or n.last_heard < clock_timestamp() - make_interval(secs => p.silence_grace_s))
          order by p.name, n.hostname"
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| SilentNode { hostname: r.hostname, pool: r.pool, last_heard: r.last_heard.map(|t| t.0) })
        .collect())
}

/// A node that was refused something lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    pub hostname: String,
    pub pool: String,
    pub reason: RefusalReason,
    pub last_at: Instant,
    pub times: i64,
}

/// What was refused of nodes since an instant, although it held their credential.
///
/// # Errors
/// What the database says.
pub async fn refused_nodes(tx: &mut Tx, since: Instant) -> Result<Vec<RefusedNode>, StoreError> {
    let rows = sqlx::query!(
        "select n.hostname, p.name as pool, r.reason, r.last_at, r.times
           from node_refusal r join node n using (node_id) join pool p using (pool_id)
          where r.last_at >= $1 order by r.last_at desc, n.hostname",
        At(since) as _
    )
    .fetch_all(tx.connection())
    .await?;
    rows.into_iter()
        .map(|r| {
            let reason = RefusalReason::from_name(&r.reason)
                .ok_or_else(|| StoreError::corrupt("node_refusal", "reason", &r.reason))?;
            Ok(RefusedNode { hostname: r.hostname, pool: r.pool, reason, last_at: r.last_at.0, times: r.times })
        })
        .collect()
}

/// A place of a series and the invoice that stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub serial: i64,
    /// Absent when the number names an invoice that is not there.
    pub invoice: Option<LinkedInvoice>,
}

/// What an invoice says of its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedInvoice {
    pub number: String,
    pub digest: String,
    pub previous_hash: String,
    pub hash: String,
}

/// A series: how far it counts, the head of its chain, and every number given, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    pub series: String,
    pub last_serial: i64,
    pub head_hash: String,
    pub links: Vec<Link>,
}

/// Every series of invoices. The transaction must see one instant's state.
///
/// # Errors
/// What the database says.
pub async fn series(tx: &mut Tx) -> Result<Vec<Series>, StoreError> {
    let heads = sqlx::query!("select series, last_serial, head_hash from invoice_series order by series")
        .fetch_all(tx.connection())
        .await?;
    let mut all = Vec::with_capacity(heads.len());
    for head in heads {
        let rows = sqlx::query!(
            r#"select n.serial, i.number as "number?", i.digest as "digest?", i.previous_hash as "previous_hash?",
                i.hash as "hash?"
               from invoice_number n
               left join invoice i on i.tenant_id = n.tenant_id and i.invoice_id = n.invoice_id
                and i.series = n.series and i.serial = n.serial
              where n.series = $1 order by n.serial"#,
            head.series
        )
        .fetch_all(tx.connection())
        .await?;
        let links = rows
            .into_iter()
            .map(|r| Link {
                serial: r.serial,
                invoice: r.number.zip(r.digest).zip(r.previous_hash.zip(r.hash)).map(
                    |((number, digest), (previous_hash, hash))| LinkedInvoice { number, digest, previous_hash, hash },
                ),
            })
            .collect();
        all.push(Series { series: head.series, last_serial: head.last_serial, head_hash: head.head_hash, links });
    }
    Ok(all)
}

/// Rows set aside for one reason that wait for a ruling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub rows: i64,
    pub oldest: Instant,
    /// One of them, to look at first.
    pub example: SetAsideId,
}

/// Rows set aside that wait for a ruling, by reason.
///
/// # Errors
/// What the database says.
pub async fn waiting_rows(tx: &mut Tx) -> Result<Vec<Waiting>, StoreError> {
    let rows = sqlx::query!(
        r#"select s.reason, count(*) as "rows!", min(s.received_at) as "oldest!",
            (array_agg(s.set_aside_id order by s.received_at))[1] as "example!"
           from set_aside s
          where not exists (select 1 from set_aside_ruling r where r.set_aside_id = s.set_aside_id)
          group by s.reason order by s.reason"#
    )
    .fetch_all(tx.connection())
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Waiting { reason: r.reason, rows: r.rows, oldest: r.oldest.0, example: r.example.into() })
        .collect())
}

/// A recurring task as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStanding {
    pub name: String,
    pub due_at: Instant,
    /// Absent before its first run.
    pub last_run_at: Option<Instant>,
    /// How its last run failed; absent when it did not.
    pub last_error: Option<String>,
}

/// Every recurring task.
///
/// # Errors
/// What the database says.
pub async fn tasks(tx: &mut Tx) -> Result<Vec<TaskStanding>, StoreError> {
    let rows = sqlx::query!("select name, due_at, last_run_at, last_error from task order by name")
        .fetch_all(tx.connection())
        .await?;
    Ok(rows
        .into_iter()
        .map(|r| TaskStanding {
            name: r.name,
            due_at: r.due_at.0,
            last_run_at: r.last_run_at.map(|t| t.0),
            last_error: r.last_error,
        })
        .collect())
}
