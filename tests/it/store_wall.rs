// tidy: long file: one entry for each function of the store
//! Every function of `store` that may touch a tenant's rows, asked with another tenant's scope: it gives nothing of the
//! tenant's and changes nothing of it. The functions are read from the source, so a new one without an entry fails.

use crate::{
    scope::two_tenants,
    wall::everything_of,
    world::{World, ask, at},
};
use std::{collections::BTreeSet, fmt::Debug, fs, path::Path};
use store::{
    Scope, StoreError, Tx, allocation, api_key, audit, charge, doctor, history, interval, invitation, invoice,
    membership, part, period, plan, project, quota, quota_use, reading, request_key, session, set_aside, subscription,
    tenant, usage, user,
};
use types::{
    AllocationState, AuditId, Bytes, ChargeId, GpuId, HistoryId, Instant, IntervalId, InvoiceId, KeyId, NodeId, PartId,
    PlanId, PoolId, ProjectId, ReadingId, SessionId, SetAsideId, Span, StreamId, SubscriptionId, TenantId,
    UnbilledSpanId, UserId,
};
use uuid::Uuid;

/// Functions that touch no row of a tenant although their module does. May only shrink.
const OF_THE_PLATFORM: [&str; 22] = [
    "doctor::clock",
    "doctor::excessive_rights",
    "doctor::leads",
    "doctor::missing_rights",
    "doctor::months_without_table",
    "doctor::refused_nodes",
    "doctor::server",
    "doctor::silent_nodes",
    "doctor::tables_without_wall",
    "doctor::tasks",
    // what the doctor compares, for the operator alone
    "doctor/ledger::first_capacity",
    "doctor/ledger::grant_differences",
    "doctor/ledger::newest_invoices",
    "doctor/ledger::overdue",
    "doctor/ledger::quota_differences",
    "invoice::lock_series",
    "plan::insert",
    "plan::insert_version",
    "plan::versions",
    "reading::begin_stream",
    "reading::lock_mark",
    "reading::make_month",
];
/// The same: it moves a node's mark.
const OF_NODES: &str = "reading::move_mark";

/// `module::function` of each public asynchronous function in a module that speaks of tenants.
fn functions() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/store/src");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    for inner in files.clone().iter().filter(|path| path.is_dir()) {
        files.extend(fs::read_dir(inner).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.is_file());
    let mut found = BTreeSet::new();
    for path in files {
        let module = path.strip_prefix(&folder).unwrap().with_extension("").to_str().unwrap().to_owned();
        let source = fs::read_to_string(&path).unwrap();
        // how transactions and schemas come about is not about rows
        if ["tx", "migrate"].contains(&module.as_str()) || !source.to_lowercase().contains("tenant") {
            continue;
        }
        for rest in source.split("\npub async fn ").skip(1) {
            let name = rest.split(['(', '<']).next().unwrap();
            found.insert(format!("{module}::{name}"));
        }
    }
    assert!(found.len() > 60, "{found:?}");
    found
}

/// One of everything of a tenant.
struct Ours {
    tenant: TenantId,
    project: project::ProjectRow,
    /// Of what has ended.
    allocation: allocation::AllocationRow,
    /// Of what runs.
    running: allocation::AllocationRow,
    running_part: part::PartRow,
    part: part::PartRow,
    pool: PoolId,
    node: NodeId,
    plan: PlanId,
    user: user::UserRow,
    session: session::SessionRow,
    invitation: invitation::InvitationRow,
    key: api_key::ApiKeyRow,
    subscription: subscription::SubscriptionRow,
    interval: interval::IntervalRow,
    reading: reading::ReadingRow,
    invoice: invoice::InvoiceRow,
    charge: charge::ChargeRow,
    history: history::HistoryRow,
    request_key: request_key::RequestKey,
    set_aside: SetAsideId,
    entry: audit::AuditRow,
    last_entry: i64,
    last_serial: i64,
    open_period: period::PeriodRow,
    whole: Span,
    now: Instant,
}

const STREAM: StreamId = StreamId(Uuid::from_u128(99));

impl Ours {
    async fn of(world: &World, tenant: TenantId) -> Self {
        let whole = Span::new(at("2026-11-01T00:00:00Z"), at("2027-02-01T00:00:00Z")).unwrap();
        let open_period = period::PeriodRow {
            tenant_id: tenant,
            label: "2027-01".to_owned(),
            span: Span::new(at("2027-01-01T00:00:00Z"), at("2027-02-01T00:00:00Z")).unwrap(),
        };
        let mut tx = world.app.store.begin("test", Scope::Operator).await.unwrap();
        period::share(&mut tx, std::slice::from_ref(&open_period)).await.unwrap();
        tx.commit().await.unwrap();

        let tx = &mut world.app.store.begin("test", Scope::Operator).await.unwrap();
        let filter = allocation::Filter { tenant_id: Some(tenant), ..allocation::Filter::default() };
        // the newest first: the last one ran and has ended
        let mut all = allocation::page(tx, &filter, None, 10).await.unwrap();
        let running = all.iter().find(|row| row.state == AllocationState::Active).unwrap().clone();
        let running_part = part::of_allocations(tx, &[running.allocation_id]).await.unwrap().remove(0);
        let allocation = all.pop().unwrap();
        let part = part::of_allocations(tx, &[allocation.allocation_id]).await.unwrap().remove(0);
        let interval = interval::of_allocation(tx, tenant, allocation.allocation_id).await.unwrap().remove(0);
        let invoice = invoice::page(tx, Some(tenant), None, 1).await.unwrap().remove(0);
        let row = request_key::find(tx, &[(tenant, "key 1".to_owned()), (tenant, "key 2".to_owned())]).await.unwrap();
        let aside = set_aside::page(tx, true, None, 10).await.unwrap();
        let user = user::page(tx, Some(tenant), None, 1).await.unwrap().remove(0);
        let entry = audit::page(tx, Some(tenant), None, 1).await.unwrap().remove(0);
        Self {
            tenant,
            project: project::page(tx, tenant, None, 1).await.unwrap().remove(0),
            pool: world.pool,
            node: part.node_id,
            plan: subscription::page(tx, tenant, None, 1).await.unwrap()[0].plan_id,
            invitation: invitation::page(tx, Some(tenant), None, 1).await.unwrap().remove(0),
            session: session::page(tx, Some(user.user_id), None, 1).await.unwrap().remove(0),
            user,
            key: api_key::page(tx, Some(tenant), None, 1).await.unwrap().remove(0),
            subscription: subscription::page(tx, tenant, None, 1).await.unwrap().remove(0),
            reading: reading::of_part(tx, tenant, part.part_id, whole, 1).await.unwrap().remove(0),
            charge: charge::of_invoice(tx, tenant, invoice.invoice_id, None).await.unwrap().remove(0),
            history: history::of_allocation(tx, tenant, allocation.allocation_id).await.unwrap().remove(0),
            request_key: row.into_iter().next().unwrap(),
            set_aside: aside.iter().find(|row| row.tenant_id == Some(tenant)).unwrap().set_aside_id,
            last_entry: entry.place.as_ref().unwrap().sequence,
            last_serial: invoice::lock_series(tx, &invoice.series).await.unwrap().0,
            now: world.now(),
            allocation,
            running,
            running_part,
            part,
            interval,
            invoice,
            entry,
            open_period,
            whole,
        }
    }

    /// What an answer about this tenant would contain.
    fn marks(&self) -> Vec<String> {
        vec![
            self.tenant.to_string(),
            self.project.project_id.to_string(),
            self.allocation.allocation_id.to_string(),
            self.part.part_id.to_string(),
            self.user.user_id.to_string(),
            self.session.session_id.to_string(),
            self.invitation.invitation_id.to_string(),
            self.key.key_id.to_string(),
            self.subscription.subscription_id.to_string(),
            self.interval.interval_id.to_string(),
            self.reading.reading_id.to_string(),
            self.invoice.invoice_id.to_string(),
            self.charge.charge_id.to_string(),
            self.set_aside.to_string(),
            self.invoice.number.clone(),
        ]
    }

    fn scope(&self, project: Option<ProjectId>) -> quota_use::QuotaScope {
        quota_use::QuotaScope { tenant_id: self.tenant, project_id: project }
    }

    fn origin(&self) -> reading::BatchOrigin {
        reading::BatchOrigin { stream_id: STREAM, sequence: 1, received_at: self.now }
    }
}

type Told = Option<Result<String, StoreError>>;

#[expect(clippy::unnecessary_wraps, reason = "an entry of the tables below")]
fn told<T: Debug>(answer: Result<T, StoreError>) -> Told {
    Some(answer.map(|answer| format!("{answer:?}")))
}

fn id<T: From<Uuid>>() -> T {
    Uuid::from_u128(rand::random()).into()
}

/// Calls the function of this name about the tenant's rows: reads what is theirs, or writes where they are.
async fn call(name: &str, tx: &mut Tx, of: &Ours) -> Told {
    match name.split_once("::").unwrap().0 {
        "allocation" | "part" | "history" | "request_key" => of_allocations(name, tx, of).await,
        "api_key" | "audit" | "invitation" | "membership" | "project" | "quota" | "quota_use" | "session"
        | "tenant" | "user" => of_people(name, tx, of).await,
        "interval" | "reading" | "set_aside" | "usage" => of_facts(name, tx, of).await,
        _ => of_bills(name, tx, of).await,
    }
}

async fn of_allocations(name: &str, tx: &mut Tx, of: &Ours) -> Told {
    let allocation_id = of.allocation.allocation_id;
    match name {
        "allocation::insert" => told(
            allocation::insert(tx, &[allocation::AllocationRow { allocation_id: id(), ..of.allocation.clone() }]).await,
        ),
        "allocation::update" => told(allocation::update(tx, std::slice::from_ref(&of.running)).await),
        "allocation::put_off_deadlines" => told(allocation::put_off_deadlines(tx, of.pool, 1).await),
        "allocation::set_last_sign" => {
            told(allocation::set_last_sign(tx, &[(of.tenant, of.running.allocation_id, of.now)]).await)
        }
        "allocation::get" => told(allocation::get(tx, allocation_id).await),
        "allocation::page" => {
            let filter = allocation::Filter { project_id: Some(of.project.project_id), ..Default::default() };
            told(allocation::page(tx, &filter, None, 200).await)
        }
        "allocation::open_of_pool" => told(allocation::open_of_pool(tx, of.pool).await),
        "allocation::last_queue_number" => told(allocation::last_queue_number(tx, of.pool).await),
        "allocation::ahead_in_queue" => told(allocation::ahead_in_queue(tx, of.pool, i64::MAX).await),
        "part::insert" => told(
            part::insert(tx, &[part::PartRow { part_id: id(), gpu_id: id(), ended_at: None, ..of.part.clone() }]).await,
        ),
        "part::update" => told(part::update(tx, std::slice::from_ref(&of.running_part)).await),
        "part::open_of_pool" => told(part::open_of_pool(tx, of.pool).await),
        "part::of_allocations" => told(part::of_allocations(tx, &[allocation_id]).await),
        "part::open_of_tenant" => told(part::open_of_tenant(tx, Some(of.tenant), of.whole.end()).await),
        "part::open_on_gpus" => {
            let gpus = gpus(tx).await;
            told(part::open_on_gpus(tx, &gpus, of.whole.end()).await)
        }
        "part::gpus_of_tenant" => told(part::gpus_of_tenant(tx, of.tenant, of.whole).await),
        "part::for_readings" => told(part::for_readings(tx, of.node, &[of.part.part_id]).await),
        "part::tenants_of" => told(part::tenants_of(tx, of.node, &[of.part.part_id]).await),
        "part::set_read_to" => told(part::set_read_to(tx, &[(of.tenant, of.part.part_id, of.now)]).await),
        "history::insert" => told(
            history::insert(tx, &[history::HistoryRow { history_id: id::<HistoryId>(), ..of.history.clone() }]).await,
        ),
        "history::of_allocation" => told(history::of_allocation(tx, of.tenant, allocation_id).await),
        "request_key::find" => told(request_key::find(tx, &[(of.tenant, of.request_key.key.clone())]).await),
        "request_key::insert" => {
            let new = request_key::RequestKey { key: "new".to_owned(), ..of.request_key.clone() };
            told(request_key::insert(tx, &[new], of.now).await)
        }
        "request_key::forget_before" => told(request_key::forget_before(tx, of.whole.end()).await),
        _ => None,
    }
}

/// The cards of the world's hosts.
async fn gpus(tx: &mut Tx) -> Vec<GpuId> {
    store::gpu::page(tx, None, None, None, 100).await.unwrap().into_iter().map(|gpu| gpu.gpu_id).collect()
}

// tidy: long function: one entry for each function
async fn of_people(name: &str, tx: &mut Tx, of: &Ours) -> Told {
    let limits = ::quota::Limits { bytes: Some(Bytes(1)), ..::quota::Limits::default() };
    match name {
        "api_key::insert" => {
            let new = api_key::ApiKeyRow { key_id: id::<KeyId>(), prefix: "new".to_owned(), ..of.key.clone() };
            told(api_key::insert(tx, &new).await)
        }
        "api_key::get" => told(api_key::get(tx, of.key.key_id).await),
        "api_key::by_prefix" => told(api_key::by_prefix(tx, &of.key.prefix).await),
        "api_key::page" => told(api_key::page(tx, Some(of.tenant), None, 200).await),
        "api_key::set_last_used" => told(api_key::set_last_used(tx, of.key.key_id, of.now).await),
        "api_key::revoke" => told(api_key::revoke(tx, of.key.key_id, of.now).await),
        "audit::lock_chain" => told(audit::lock_chain(tx, Some(of.tenant)).await),
        "audit::insert" => {
            let place = Some(audit::Place { sequence: of.last_entry + 1, hash: audit::ORIGIN.to_owned() });
            told(audit::insert(tx, &audit::AuditRow { audit_id: id::<AuditId>(), place, ..of.entry.clone() }).await)
        }
        "audit::page" => told(audit::page(tx, None, None, 200).await),
        "audit::chains" => told(audit::chains(tx).await),
        "audit::links" => told(audit::links(tx, Some(of.tenant), 0, 200).await),
        // where nothing is older than the chains, there is nothing to seal
        "audit::seal_of_unchained" => told(audit::seal_of_unchained(tx, Some(of.tenant)).await),
        "invitation::insert" => {
            let prefix = "new".to_owned();
            told(
                invitation::insert(
                    tx,
                    &invitation::InvitationRow { invitation_id: id(), prefix, ..of.invitation.clone() },
                )
                .await,
            )
        }
        "invitation::usable" => told(invitation::usable(tx, &of.invitation.prefix, of.invitation.created_at).await),
        // it says whether there was such an invitation
        "invitation::set_accepted" => {
            told(invitation::set_accepted(tx, of.invitation.invitation_id, of.invitation.created_at).await)
        }
        "invitation::lock" => told(invitation::lock(tx, of.invitation.invitation_id).await),
        "invitation::page" => told(invitation::page(tx, Some(of.tenant), None, 200).await),
        "invitation::revoke" => told(invitation::revoke(tx, of.invitation.invitation_id, of.now).await),
        "invitation::revoke_all_by" => {
            told(invitation::revoke_all_by(tx, &of.invitation.created_by, of.invitation.created_at).await)
        }
        "membership::insert" => {
            let new = membership::MembershipRow {
                issuer: "new".to_owned(),
                subject: "new".to_owned(),
                tenant_id: Some(of.tenant),
                user_id: of.user.user_id,
                created_at: of.now,
            };
            told(membership::insert(tx, &new).await)
        }
        "membership::user_of" => told(membership::user_of(tx, "https://id.example", &of.user.email).await),
        "project::insert" => {
            let new = project::ProjectRow { project_id: id(), name: crate::world::name("new"), ..of.project.clone() };
            told(project::insert(tx, &new).await)
        }
        "project::get" => told(project::get(tx, of.tenant, of.project.project_id).await),
        "project::tenant_of" => told(project::tenant_of(tx, of.project.project_id).await),
        "project::by_name" => told(project::by_name(tx, of.tenant, &of.project.name).await),
        "project::page" => told(project::page(tx, of.tenant, None, 200).await),
        "quota::insert" => told(quota::insert(tx, &of.scope(Some(id())), &limits, of.now).await),
        // it says whether there was such a quota
        "quota::set" => told(quota::set(tx, &of.scope(None), &limits, of.now).await),
        "quota::page" => told(quota::page(tx, of.tenant, None, 200).await),
        "quota_use::lock" => told(quota_use::lock(tx, &[of.scope(None)]).await),
        "quota_use::set" => told(
            quota_use::set(tx, &[(of.scope(None), ::quota::Use { bytes: Bytes(1), allocations: 1 })], of.now).await,
        ),
        "session::insert" => told(
            session::insert(tx, &session::SessionRow { session_id: id::<SessionId>(), ..of.session.clone() }).await,
        ),
        "session::get" => told(session::get(tx, of.session.session_id).await),
        "session::page" => told(session::page(tx, Some(of.user.user_id), None, 200).await),
        "session::revoke" => told(session::revoke(tx, of.session.session_id, of.now).await),
        "session::revoke_of_user" => told(session::revoke_of_user(tx, of.user.user_id, None, of.now).await),
        "session::forget_expired" => told(session::forget_expired(tx, of.whole.end(), 200).await),
        "tenant::insert" => {
            let row = tenant::get(tx, of.tenant).await.unwrap();
            let new = tenant::TenantRow {
                tenant_id: id(),
                name: crate::world::name("new"),
                zone: row.as_ref().map_or_else(|| "UTC".parse().unwrap(), |row| row.zone.clone()),
                currency: "USD".parse().unwrap(),
                created_at: of.now,
            };
            told(tenant::insert(tx, &new).await)
        }
        "tenant::get" => told(tenant::get(tx, of.tenant).await),
        "tenant::page" => told(tenant::page(tx, None, 200).await),
        "user::insert" => {
            let new = user::UserRow { user_id: id::<UserId>(), email: "new@example.org".to_owned(), ..of.user.clone() };
            told(user::insert(tx, &new).await)
        }
        "user::get" => told(user::get(tx, of.user.user_id).await),
        "user::hold" => told(user::hold(tx, of.user.user_id).await),
        "user::by_email" => told(user::by_email(tx, &of.user.email).await),
        "user::has_operator" => told(user::has_operator(tx).await),
        "user::page" => told(user::page(tx, Some(of.tenant), None, 200).await),
        "user::disable" => told(user::disable(tx, of.user.user_id, of.now).await),
        "user::set_password_hash" => told(user::set_password_hash(tx, of.user.user_id, "another").await),
        _ => None,
    }
}

async fn of_facts(name: &str, tx: &mut Tx, of: &Ours) -> Told {
    let gpus = [of.part.gpu_id];
    match name {
        "interval::insert" => {
            let new = interval::IntervalRow { interval_id: id::<IntervalId>(), part_id: id(), ..of.interval.clone() };
            told(interval::insert(tx, &[new], of.now).await)
        }
        "interval::uncharged" => told(interval::uncharged(tx, of.tenant, of.whole.end()).await),
        "interval::by_ids" => told(interval::by_ids(tx, of.tenant, &[of.interval.interval_id]).await),
        "interval::within" => told(interval::within(tx, None, of.whole).await),
        "interval::on_gpus" => told(interval::on_gpus(tx, &gpus, of.whole).await),
        "interval::of_allocation" => told(interval::of_allocation(tx, of.tenant, of.allocation.allocation_id).await),
        "interval::insert_unbilled" => {
            let new = interval::UnbilledSpan {
                tenant_id: of.tenant,
                unbilled_span_id: id::<UnbilledSpanId>(),
                allocation_id: of.allocation.allocation_id,
                part_id: of.part.part_id,
                gpu_id: of.part.gpu_id,
                kind: interval::UnbilledKind::Held,
                bytes: of.part.bytes,
                span: of.interval.span,
            };
            told(interval::insert_unbilled(tx, &[new]).await)
        }
        "interval::unbilled_on_gpus" => told(interval::unbilled_on_gpus(tx, &gpus, of.whole).await),
        "reading::insert" => {
            let new =
                reading::ReadingRow { reading_id: id::<ReadingId>(), part_id: id::<PartId>(), ..of.reading.clone() };
            told(reading::insert(tx, &[new], of.origin()).await)
        }
        "reading::of_part" => told(reading::of_part(tx, of.tenant, of.part.part_id, of.whole, 200).await),
        "reading::uncharged_above" => told(reading::uncharged_above(tx, of.tenant, of.whole.end()).await),
        "reading::by_ids" => told(reading::by_ids(tx, of.tenant, &[of.reading.reading_id], of.whole).await),
        "set_aside::insert" => {
            let new = set_aside::SetAsideRow {
                set_aside_id: id(),
                node_id: of.node,
                stream_id: STREAM,
                sequence: 1,
                row_number: 1,
                tenant_id: Some(of.tenant),
                part_id: of.part.part_id,
                starts_at: of.now,
                reason: "test".to_owned(),
                reading: serde_json::json!({}),
                skew_ms: 0,
                received_at: of.now,
                ruling: None,
            };
            told(set_aside::insert(tx, &[new], of.origin()).await)
        }
        "set_aside::page" => told(set_aside::page(tx, true, None, 200).await),
        "set_aside::get" => told(set_aside::get(tx, of.set_aside).await),
        "set_aside::open_of_tenant" => told(set_aside::open_of_tenant(tx, of.tenant, of.whole).await),
        "set_aside::rule" => {
            let ruling =
                set_aside::Ruling { accepted: false, ruled_by: "test".to_owned(), ruled_at: of.now, note: None };
            told(set_aside::rule(tx, of.set_aside, &ruling).await)
        }
        "usage::by_project" => told(usage::by_project(tx, of.tenant, of.whole).await),
        "usage::by_model" => told(usage::by_model(tx, of.tenant, of.whole).await),
        "usage::by_quarter_hour" => told(usage::by_quarter_hour(tx, of.tenant, of.whole).await),
        _ => None,
    }
}

async fn of_bills(name: &str, tx: &mut Tx, of: &Ours) -> Told {
    match name {
        "charge::insert" => {
            let mut new = charge::ChargeRow { charge_id: id::<ChargeId>(), ..of.charge.clone() };
            new.charge.source_id = id();
            told(charge::insert(tx, of.tenant, of.invoice.invoice_id, &[new]).await)
        }
        "charge::of_invoice" => told(charge::of_invoice(tx, of.tenant, of.invoice.invoice_id, None).await),
        "doctor::series" => told(doctor::series(tx).await),
        "doctor::waiting_rows" => told(doctor::waiting_rows(tx).await),
        "invoice::insert" => {
            let new = invoice::InvoiceRow {
                invoice_id: id::<InvoiceId>(),
                serial: of.last_serial + 1,
                number: "GL-new".to_owned(),
                period: "2020-01".to_owned(),
                ..of.invoice.clone()
            };
            told(invoice::insert(tx, &new).await)
        }
        "invoice::get" => told(invoice::get(tx, of.invoice.invoice_id).await),
        "invoice::by_number" => told(invoice::by_number(tx, &of.invoice.number).await),
        "invoice::page" => told(invoice::page(tx, None, None, 200).await),
        "invoice::hash_of" => told(invoice::hash_of(tx, &of.invoice.series, of.invoice.serial).await),
        "period::share" => {
            let new = period::PeriodRow { label: "2027-02".to_owned(), ..of.open_period.clone() };
            told(period::share(tx, &[new]).await)
        }
        "period::lock" => {
            let issued = period::PeriodRow { label: of.invoice.period.clone(), ..of.open_period.clone() };
            told(period::lock(tx, &issued).await)
        }
        "period::set_issued" => told(period::set_issued(tx, &of.open_period, of.invoice.invoice_id).await),
        "period::issued" => told(period::issued(tx, of.tenant).await),
        "plan::get" => told(plan::get(tx, of.plan, Some(of.tenant)).await),
        "plan::page" => told(plan::page(tx, Some(of.tenant), None, 200).await),
        "plan::schedule" => told(plan::schedule(tx, of.tenant).await),
        "subscription::insert" => {
            let new = subscription::SubscriptionRow {
                subscription_id: id::<SubscriptionId>(),
                starts_at: at("2020-01-01T00:00:00Z"),
                ends_at: Some(at("2020-02-01T00:00:00Z")),
                ..of.subscription.clone()
            };
            told(subscription::insert(tx, &new).await)
        }
        "subscription::lock_all" => told(subscription::lock_all(tx, of.tenant).await),
        "subscription::end" => {
            told(subscription::end(tx, of.tenant, of.subscription.subscription_id, of.whole.end()).await)
        }
        "subscription::lock_issued_until" => told(subscription::lock_issued_until(tx, of.tenant).await),
        "subscription::page" => told(subscription::page(tx, of.tenant, None, 200).await),
        _ => None,
    }
}

#[tokio::test]
async fn every_function_gives_and_changes_nothing_of_another_tenant() {
    let (mut world, [a, b]) = two_tenants().await;
    // something of a's that runs, and something that waits
    world.host("another", &[Bytes::gib(80)]).await;
    world.run(a, ask(Bytes::gib(10), 1)).await;
    for _ in 0..2 {
        world.request(a, ask(Bytes::gib(79), 1)).await.unwrap();
    }
    // and what no invoice has charged yet
    sqlx::raw_sql(
        "select make_reading_month('2026-12-01');
         insert into reading select tenant_id, starts_at + interval '30 days', part_id, ends_at + interval '30 days',
            allocation_id, project_id, gpu_id, gen_random_uuid(), granted, used, above, peak, covered_ms, quality, skew_ms,
            stream_id, sequence, received_at from reading;
         insert into interval select tenant_id, gen_random_uuid(), allocation_id, part_id, project_id, gpu_id, model, bytes,
            starts_at + interval '30 days', ends_at + interval '30 days', attested, inserted_at from interval",
    )
    .execute(&mut world.owner().await)
    .await
    .unwrap();
    app::user::init_operator(
        &world.app,
        "o@example.org".to_owned(),
        crate::world::name("o"),
        "long enough it is".to_owned().into(),
    )
    .await
    .unwrap();
    let ours = Ours::of(&world, a).await;
    let marks = ours.marks();
    let mut owner = world.owner().await;
    let before = everything_of(&mut owner, a).await;
    let mut open = Vec::new();
    for name in functions() {
        if OF_THE_PLATFORM.contains(&name.as_str()) || name == OF_NODES {
            continue;
        }
        let mut tx = world.app.store.begin("test", Scope::Operator).await.unwrap();
        let right = call(&name, &mut tx, &ours).await;
        let right = right.unwrap_or_else(|| panic!("{name} is new: say above how it is called about a tenant's rows"));
        let right = match right {
            Ok(right) => right,
            Err(error) => {
                open.push(format!("{name} for the operator: {error}"));
                continue;
            }
        };
        drop(tx);
        for scope in [Scope::Tenant(b), Scope::Batch(vec![b]), Scope::Batch(Vec::new())] {
            let mut tx = world.app.store.begin("test", scope.clone()).await.unwrap();
            let Some(Ok(wrong)) = call(&name, &mut tx, &ours).await else { continue };
            tx.commit().await.unwrap();
            let shown: Vec<_> = marks.iter().filter(|mark| wrong.contains(*mark)).collect();
            if !shown.is_empty() {
                open.push(format!("{name} under {scope:?} shows {shown:?}"));
            }
            // what was asked about is there: an answer that is the same without it would say nothing
            let says_nothing = ["()", "audit::seal_of_unchained"].iter().any(|known| right == *known || name == *known);
            if wrong == right && !says_nothing {
                open.push(format!("{name} under {scope:?} answers as the operator is answered: {right}"));
            }
        }
        let after = everything_of(&mut owner, a).await;
        if after != before {
            open.push(format!("{name} changed rows of another tenant"));
            break;
        }
    }
    assert!(open.is_empty(), "{open:#?}");
}
