//! What stands in the ledger at the end of a run, read as the schema's owner, row by row.

use sqlx::{Connection, FromRow, PgConnection, postgres::PgRow};

#[derive(Debug)]
pub struct Facts {
    pub allocations: Vec<AllocationRow>,
    pub parts: Vec<PartRow>,
    pub history: Vec<HistoryRow>,
    pub intervals: Vec<IntervalRow>,
    pub unbilled: Vec<UnbilledRow>,
    pub readings: Vec<ReadingRow>,
    pub charges: Vec<ChargeRow>,
    pub invoices: Vec<InvoiceRow>,
    /// Tenant and place in the series.
    pub numbers: Vec<NumberRow>,
    pub keys: Vec<KeyRow>,
    pub quotas: Vec<QuotaRow>,
    pub gpus: Vec<GpuRow>,
    pub streams: Vec<StreamRow>,
    pub set_aside: Vec<SetAsideRow>,
    /// The series' last serial; 0 before the first.
    pub last_serial: i64,
}

/// A row with a type for each column.
macro_rules! row {
    ($name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        #[derive(Debug, Clone, FromRow)]
        pub struct $name { $(pub $field: $kind),* }
    };
}

row! { AllocationRow {
    tenant: String, id: String, state: String, cause: String, memory: i64, gpus: i32, max_duration_s: Option<i32>,
    active_since: Option<i64>, ended_at: Option<i64>,
} }
row! { PartRow {
    id: String, allocation: String, gpu: String, bytes: i64, held_from: i64, active_from: Option<i64>,
    ended_at: Option<i64>,
} }
row! { HistoryRow {
    tenant: String, allocation: String, at: i64, from_state: Option<String>, to_state: String,
    cause: String, lived_until: Option<String>,
} }
row! { IntervalRow {
    tenant: String, id: String, part: String, gpu: String, project: String, model: String,
    bytes: i64, starts_at: i64, ends_at: i64,
} }
row! { UnbilledRow { part: String, kind: String, starts_at: i64, ends_at: i64 } }
row! { ReadingRow {
    tenant: String, id: String, part: String, project: String, model: String, stream: String, sequence: i64,
    starts_at: i64, ends_at: i64, used: Option<String>, above: Option<String>, skew_ms: i64,
} }
row! { ChargeRow {
    tenant: String, invoice: String, source: String, kind: String, period: String, quantity: String, starts_at: i64,
} }
row! { InvoiceRow {
    tenant: String, id: String, number: String, serial: i64, period: String, total_minor: i64, digest: String,
    document: String,
} }
row! { NumberRow { tenant: String, serial: i64, invoice: String } }
row! { KeyRow { tenant: String, key: String, allocation: Option<String> } }
row! { QuotaRow {
    tenant: String, level: String, limit_bytes: Option<i64>, limit_allocations: Option<i32>, used_bytes: i64,
    used_allocations: i32,
} }
row! { GpuRow { id: String, allocatable: i64, granted: i64 } }
row! { StreamRow { id: String, node: String, sequence: i64 } }
row! { SetAsideRow { reason: String, stream: String, sequence: i64 } }

impl Facts {
    // tidy: long function: a query for each table
    /// All of it as it stands at one instant.
    pub async fn load(url: &str) -> Self {
        let mut owner = PgConnection::connect(url).await.unwrap();
        let ledger = &mut owner;
        sqlx::raw_sql("begin isolation level repeatable read read only").execute(&mut *ledger).await.unwrap();
        Self {
            allocations: all(
                ledger,
                "select tenant_id::text as tenant, allocation_id::text as id, state, cause, memory, gpus, max_duration_s,
                    (extract(epoch from active_since) * 1000)::bigint as active_since,
                    (extract(epoch from ended_at) * 1000)::bigint as ended_at
                   from allocation order by allocation_id",
            )
            .await,
            parts: all(
                ledger,
                "select part_id::text as id, allocation_id::text as allocation, gpu_id::text as gpu, bytes,
                    (extract(epoch from held_from) * 1000)::bigint as held_from,
                    (extract(epoch from active_from) * 1000)::bigint as active_from,
                    (extract(epoch from ended_at) * 1000)::bigint as ended_at
                   from part order by part_id",
            )
            .await,
            history: all(
                ledger,
                "select tenant_id::text as tenant, allocation_id::text as allocation,
                    (extract(epoch from at) * 1000)::bigint as at, from_state, to_state, cause,
                    detail->>'lived_until' as lived_until
                   from history order by at, history_id",
            )
            .await,
            intervals: all(
                ledger,
                "select tenant_id::text as tenant, interval_id::text as id,
                    part_id::text as part, gpu_id::text as gpu, project_id::text as project, model, bytes,
                    (extract(epoch from starts_at) * 1000)::bigint as starts_at,
                    (extract(epoch from ends_at) * 1000)::bigint as ends_at
                   from interval order by part_id, starts_at",
            )
            .await,
            unbilled: all(
                ledger,
                "select part_id::text as part, kind,
                    (extract(epoch from starts_at) * 1000)::bigint as starts_at,
                    (extract(epoch from ends_at) * 1000)::bigint as ends_at
                   from unbilled_span order by part_id, starts_at",
            )
            .await,
            readings: all(
                ledger,
                "select r.tenant_id::text as tenant, r.reading_id::text as id, r.part_id::text as part,
                    r.project_id::text as project, p.model, r.stream_id::text as stream, r.sequence,
                    (extract(epoch from r.starts_at) * 1000)::bigint as starts_at,
                    (extract(epoch from r.ends_at) * 1000)::bigint as ends_at, r.used::text, r.above::text, r.skew_ms
                   from reading r join part p using (tenant_id, part_id) order by r.part_id, r.starts_at",
            )
            .await,
            charges: all(
                ledger,
                "select tenant_id::text as tenant, invoice_id::text as invoice, source_id::text as source, kind, period,
                    quantity::text as quantity, (extract(epoch from starts_at) * 1000)::bigint as starts_at
                   from charge order by source_id, kind, segment",
            )
            .await,
            invoices: all(
                ledger,
                "select tenant_id::text as tenant, invoice_id::text as id, number, serial, period, total_minor, digest,
                    document from invoice order by serial",
            )
            .await,
            numbers: all(
                ledger,
                "select tenant_id::text as tenant, serial, invoice_id::text as invoice from invoice_number order by serial",
            )
            .await,
            keys: all(
                ledger,
                "select tenant_id::text as tenant, key, allocation_id::text as allocation from request_key order by key",
            )
            .await,
            quotas: all(
                ledger,
                "select tenant_id::text as tenant, level, limit_bytes, limit_allocations, used_bytes, used_allocations
                   from quota order by tenant_id, scope_id",
            )
            .await,
            gpus: all(
                ledger,
                "select gpu_id::text as id, allocatable, granted from gpu order by gpu_id",
            )
            .await,
            streams: all(
                ledger,
                "select stream_id::text as id, node_id::text as node, sequence from stream order by stream_id",
            )
            .await,
            set_aside: all(
                ledger,
                "select reason, stream_id::text as stream, sequence from set_aside order by set_aside_id",
            )
            .await,
            last_serial: sqlx::query_scalar("select coalesce(max(last_serial), 0) from invoice_series")
                .fetch_one(ledger)
                .await
                .unwrap(),
        }
    }
}

async fn all<T: for<'r> FromRow<'r, PgRow> + Send + Unpin>(owner: &mut PgConnection, query: &'static str) -> Vec<T> {
    match sqlx::query_as(query).fetch_all(owner).await {
        Ok(rows) => rows,
        Err(error) => panic!("{error}: {query}"),
    }
}
