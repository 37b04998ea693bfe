//! The invoices of a month, beside SQL that sums the same rows and inserts as many as there are charges.

use crate::{
    Outcome, Settings, client,
    deployment::{Deployment, MODEL, text},
    load::{self, Script, whole},
    postgres_server::{self, PostgresServer},
    row::Row,
    yardstick,
};
use serde_json::json;
use types::Clock;

const BENCH: &str = "close";
/// Invoices are asked for by so many at once.
const CLIENTS: usize = 4;

/// The last month that is over.
struct Month {
    /// Such as `2026-11`.
    label: String,
    /// Its start, its end and the start of the month before it, as SQL reads them.
    starts: String,
    ends: String,
    before: String,
}

impl Month {
    fn last() -> Self {
        let now = Clock::System.now().to_jiff().to_zoned(jiff::tz::TimeZone::UTC).date();
        let start = |back: i32| {
            let months = i32::from(now.year()) * 12 + i32::from(now.month()) - 1 - back;
            format!("{:04}-{:02}", months.div_euclid(12), months.rem_euclid(12) + 1)
        };
        let at = |label: &str| format!("{label}-01 00:00:00Z");
        Self { label: start(1), starts: at(&start(1)), ends: at(&start(0)), before: at(&start(2)) }
    }
}

pub async fn run(settings: Settings) -> Outcome<Vec<Row>> {
    let (tenants, each) = (settings.size(10, 1000), settings.size(20, 100));
    let month = Month::last();
    let postgres = PostgresServer::start(settings.quick).await?;
    let deployment = Deployment::start(postgres.create("close", None).await?).await?;
    let ids = payers(&deployment, tenants, &month).await?;
    let pool = deployment.pool().await?;
    deployment.nodes(&pool, settings.size(2, 100)).await?;
    let (url, operator) = (deployment.database_url.clone(), deployment.operator.clone());
    // its memory does not know what comes now
    deployment.stop().await;
    postgres_server::execute(&url, &worked(&month, tenants * each)).await?;
    postgres_server::execute(&url, "vacuum analyze").await?;

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..settings.turns {
        let url = postgres.create(&format!("close_{turn}"), Some("close")).await?;
        postgres.settle().await?;
        theirs.push(yardstick::timed(&url, &bare(&month)).await?.as_secs_f64());
        let deployment = Deployment::start_on(url, operator.clone()).await;
        postgres.settle().await?;
        ours.push(issue(&deployment, &ids, &month).await?);
        let charges: i64 = postgres_server::query(&deployment.database_url, "select count(*) from charge").await?;
        if usize::try_from(charges) != Ok(tenants * each) {
            return Err(format!("{charges} charges instead of {}", tenants * each));
        }
    }
    let invoices: Vec<f64> = ours.iter().map(|seconds| tenants as f64 / seconds).collect();
    let what = format!("{tenants} invoices of {} allocations", tenants * each);
    Ok(vec![
        Row::new(BENCH, what, "s", &ours).beside("sum and insert", &ours, &theirs).goal("≤ 5"),
        Row::new(BENCH, "invoices", "/s", &invoices),
    ])
}

/// Tenants on a plan since before the month.
async fn payers(deployment: &Deployment, count: usize, month: &Month) -> Outcome<Vec<String>> {
    let before = month.before.replacen(' ', "T", 1);
    let rates = json!({"default": {"reserved": "0.03"}});
    let plan = json!({"name": "plan", "currency": "USD", "unit": "GiB-hour", "rates": rates, "valid_from": before});
    let plan = text(&deployment.post("/v1/plans", &plan, 201).await?["plan_id"])?;
    let mut ids = Vec::with_capacity(count);
    for number in 0..count {
        let id = deployment.tenant(number).await?;
        let subscription = json!({"tenant_id": id, "plan_id": plan, "starts_at": before});
        deployment.post("/v1/subscriptions", &subscription, 201).await?;
        ids.push(id);
    }
    Ok(ids)
}

/// Asks for every tenant's invoice: seconds until the last is there.
async fn issue(deployment: &Deployment, tenants: &[String], month: &Month) -> Outcome<f64> {
    let mut scripts: Vec<Script> = vec![Vec::new(); CLIENTS];
    for (number, tenant) in tenants.iter().enumerate() {
        let body = json!({"tenant_id": tenant, "period": month.label});
        scripts[number % CLIENTS].push(client::post("/v1/invoices", &deployment.operator, &body));
    }
    let load = load::run(deployment.address()?, scripts, whole, 201, false).await?;
    Ok(load.took.as_secs_f64())
}

/// One sum over every interval of the month, and as many rows as there will be charges.
fn bare(Month { label, starts, ends, .. }: &Month) -> String {
    let within = format!("starts_at >= '{starts}' and starts_at < '{ends}'");
    let quantity = "bytes::numeric * (extract(epoch from ends_at - starts_at) * 1000)::bigint";
    format!(
        "create table yardstick (like charge);
         select tenant_id, model, sum({quantity}) from interval where {within} group by 1, 2;
         insert into yardstick (tenant_id, charge_id, invoice_id, line_number, source_kind, source_id, kind, segment,
            starts_at, ends_at, allocation_id, project_id, model, period, plan_version_id, quantity, price, unit)
         select tenant_id, interval_id, tenant_id, 1, 'interval', interval_id, 'reserved', 0,
            starts_at, ends_at, allocation_id, project_id, model, '{label}', tenant_id, {quantity}, 0.03, 'GiB-hour'
           from interval where {within}"
    )
}

/// Writes what a scheduler would have written in a month with so many allocations: ten at a time on each card, each
/// held for half a minute and then active for most of its turn.
// tidy: long function: one script of SQL
fn worked(Month { label, starts, ends, before }: &Month, allocations: usize) -> String {
    let id = |kind: &str| {
        format!(
            "(lpad(to_hex((extract(epoch from held) * 1000)::bigint), 12, '0') || '7' || substr(md5('{kind}' || i), 1, 3)
                || '8' || substr(md5('{kind}' || i), 4, 15))::uuid"
        )
    };
    let (allocation, part, interval, span) = (id("allocation"), id("part"), id("interval"), id("span"));
    format!(
        "begin;
         -- the cards have been there since before the month
         update gpu_capacity set at = '{before}';
         update node_presence set at = '{before}';
         update occupancy set at = '{before}';
         create temporary table card as
            select row_number() over (order by gpu_id) - 1 as n, gpu_id, node_id, pool_id, model, allocatable from gpu;
         create temporary table payer as
            select row_number() over (order by tenant_id) - 1 as n, tenant_id, project_id from project;
         create temporary table work as
            select *, {allocation} as allocation_id, {part} as part_id, {interval} as interval_id, {span} as span_id
              from (select *, held + interval '30 s' as active, date_trunc('milliseconds', held + turn * 0.8) as ended
                      from (select i, c.*, p.tenant_id, p.project_id, turn, 8::bigint << 30 as bytes,
                                timestamptz '{starts}' + i / (cards * 10) * turn + i % 60000 * interval '1 ms' as held
                              from (select count(*) as cards, date_trunc('milliseconds',
                                        (timestamptz '{ends}' - '{starts}') / ceil({allocations} / (count(*) * 10.0))) as turn
                                      from card) s,
                                  generate_series(0, {allocations} - 1) as i
                              join card c on c.n = i % (select count(*) from card)
                              join payer p on p.n = i * 7919 % (select count(*) from payer)) w) w;
         insert into allocation (tenant_id, allocation_id, project_id, pool_id, state, memory, gpus, requested_by,
            requested_at, queue_number, active_since, last_sign, ended_at, cause)
         select tenant_id, allocation_id, project_id, pool_id, 'released', bytes, 1, 'system', held, i + 1, active, ended,
            ended, 'owner' from work;
         insert into part (tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held_from,
            active_from, metered_to, ended_at)
         select tenant_id, part_id, allocation_id, project_id, pool_id, node_id, gpu_id, model, bytes, held, active, ended,
            ended from work;
         insert into interval (tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, starts_at,
            ends_at, attested, inserted_at)
         select tenant_id, interval_id, allocation_id, part_id, project_id, gpu_id, model, bytes, active, ended, false,
            ended from work;
         insert into unbilled_span (tenant_id, unbilled_span_id, allocation_id, part_id, gpu_id, kind, bytes, starts_at,
            ends_at)
         select tenant_id, span_id, allocation_id, part_id, gpu_id, 'held', bytes, held, active from work;
         insert into occupancy (gpu_id, sequence, at, held, granted, slack, free)
         select gpu_id, known + row_number() over steps, at, sum(held) over steps, sum(granted) over steps, 0,
                allocatable - sum(held) over steps - sum(granted) over steps
           from (select gpu_id, allocatable, i, held as at, bytes as held, 0 as granted from work
                 union all select gpu_id, allocatable, i, active, -bytes, bytes from work
                 union all select gpu_id, allocatable, i, ended, 0, -bytes from work) e
           join (select gpu_id, max(sequence) as known from occupancy group by 1) o using (gpu_id)
         window steps as (partition by gpu_id order by at, i rows unbounded preceding);
         -- as the first interval of a month makes it
         insert into period (tenant_id, label, starts_at, ends_at)
         select tenant_id, '{label}', '{starts}', '{ends}' from payer;
         do $$ begin
            if exists (select from work where model <> '{MODEL}') then raise 'a card of another model'; end if;
         end $$;
         commit"
    )
}
