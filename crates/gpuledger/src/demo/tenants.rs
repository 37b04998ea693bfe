//! The demo's tenants: who they are, what they pay, and what they may have.

use ::quota::Limits;
use app::{App, AppError, Caller, password, plan, project, quota, subscription, tenant, user};
use billing::{Rate, Rates};
use std::collections::BTreeMap;
use types::{BillingUnit, Bytes, Price, ProjectId, Role, TenantId};

/// One tenant of the demo.
struct Invented {
    name: &'static str,
    zone: &'static str,
    currency: &'static str,
    unit: BillingUnit,
    /// Of one unit on any card, on an H100, and above the reservation.
    prices: (&'static str, &'static str, Option<&'static str>),
    /// GiB at once, GiB of one workload, allocations.
    limits: (Option<u64>, Option<u64>, Option<u32>),
    projects: &'static [&'static str],
    /// How many of a hundred jobs are theirs.
    share: u32,
}

const TENANTS: [Invented; 8] = [
    Invented {
        name: SHOWN,
        zone: "Asia/Seoul",
        currency: "KRW",
        unit: BillingUnit::GibHour,
        prices: ("38", "95", Some("57")),
        limits: (Some(900), Some(330), Some(40)),
        projects: &["detection", "ocr"],
        share: 22,
    },
    Invented {
        name: "Hudson Analytics",
        zone: "America/New_York",
        currency: "USD",
        unit: BillingUnit::GbHour,
        prices: ("0.0275", "0.068", Some("0.04")),
        limits: (Some(700), None, None),
        projects: &["forecasting"],
        share: 18,
    },
    Invented {
        name: "Deccan Speech",
        zone: "Asia/Kolkata",
        currency: "INR",
        unit: BillingUnit::GibHour,
        prices: ("2.35", "5.8", None),
        limits: (Some(400), Some(160), Some(25)),
        projects: &["asr", "tts"],
        share: 14,
    },
    Invented {
        name: "Spree Robotics",
        zone: "Europe/Berlin",
        currency: "EUR",
        unit: BillingUnit::GbHour,
        prices: ("0.026", "0.064", None),
        limits: (Some(600), None, Some(30)),
        projects: &["grasping"],
        share: 12,
    },
    Invented {
        name: "浅霧レンダリング",
        zone: "Asia/Tokyo",
        currency: "JPY",
        unit: BillingUnit::GibHour,
        prices: ("4.2", "10.5", Some("6")),
        limits: (None, Some(320), None),
        projects: &["frames"],
        share: 12,
    },
    Invented {
        name: "Thames Genomics",
        zone: "Europe/London",
        currency: "GBP",
        unit: BillingUnit::GbSecond,
        prices: ("0.0000063", "0.0000155", None),
        limits: (Some(250), None, None),
        projects: &["variants"],
        share: 9,
    },
    Invented {
        name: "Gulf Weather",
        zone: "Asia/Kuwait",
        currency: "KWD",
        unit: BillingUnit::GibHour,
        prices: ("0.0084", "0.021", None),
        limits: (Some(300), Some(300), Some(12)),
        projects: &["nowcast"],
        share: 7,
    },
    Invented {
        name: "Harbour Imaging",
        zone: "Australia/Sydney",
        currency: "AUD",
        unit: BillingUnit::GibHour,
        prices: ("0.045", "0.11", None),
        // small, so that some of its requests are refused with reasons
        limits: (Some(48), Some(40), Some(4)),
        projects: &["mri"],
        share: 6,
    },
];

/// The zones of all tenants.
pub fn zones() -> impl Iterator<Item = &'static str> {
    TENANTS.iter().map(|t| t.zone)
}

/// A tenant as the workload needs to know it.
#[derive(Debug, Clone)]
pub struct DemoTenant {
    pub tenant_id: TenantId,
    pub name: String,
    pub projects: Vec<ProjectId>,
    /// How many of a hundred jobs are theirs.
    pub share: u32,
}

/// The e-mail address of the operator.
pub const OPERATOR: &str = "operator@demo.test";
/// The first tenant: the one whose login is printed.
pub const SHOWN: &str = "Hanbit Vision";
/// The e-mail address of its administrator.
pub const TENANT_ADMIN: &str = "admin@hanbit.demo.test";

/// Makes all tenants with plans, subscriptions, quotas, projects, and two people who can log in.
pub async fn create(app: &App, operator_password: &str, tenant_password: &str) -> Result<Vec<DemoTenant>, AppError> {
    let caller = Caller::system();
    let password = |text: &str| password::Password::from(text.to_owned());
    user::init_operator(app, OPERATOR.to_owned(), parsed("Demo operator")?, password(operator_password)).await?;
    let mut made = Vec::new();
    for invented in &TENANTS {
        made.push(create_one(app, &caller, invented).await?);
    }
    let new = user::NewUser {
        tenant_id: made.first().map(|t| t.tenant_id),
        email: TENANT_ADMIN.to_owned(),
        name: parsed("Hanbit administrator")?,
        role: Role::TenantAdmin,
        password: password(tenant_password),
    };
    user::create(app, &caller, new).await?;
    Ok(made)
}

async fn create_one(app: &App, caller: &Caller, invented: &Invented) -> Result<DemoTenant, AppError> {
    let currency = parsed(invented.currency)?;
    let new = tenant::NewTenant { name: parsed(invented.name)?, zone: parsed(invented.zone)?, currency };
    let row = tenant::create(app, caller, new).await?;
    let (any, h100, above) = invented.prices;
    let above: Option<Price> = above.map(parsed).transpose()?;
    let rates = Rates {
        default: Rate { reserved: parsed(any)?, above },
        models: BTreeMap::from([(parsed("NVIDIA H100 80GB HBM3")?, Rate { reserved: parsed(h100)?, above })]),
    };
    let first = plan::NewVersion { unit: invented.unit, rates, valid_from: None };
    let plan =
        plan::create(app, caller, parsed(&format!("{} by the {}", invented.name, invented.unit))?, currency, first)
            .await?;
    let new = subscription::NewSubscription { tenant_id: row.tenant_id, plan_id: plan.row.plan_id, starts_at: None };
    subscription::create(app, caller, new).await?;
    let (bytes, workload, allocations) = invented.limits;
    let limits = Limits { bytes: bytes.map(Bytes::gib), workload_bytes: workload.map(Bytes::gib), allocations };
    quota::set_tenant(app, caller, row.tenant_id, limits).await?;
    let mut projects = Vec::new();
    for name in invented.projects {
        projects.push(project::create(app, caller, Some(row.tenant_id), parsed(name)?).await?.project_id);
    }
    // the first project of the first tenant has a limit of its own
    if let (Some(first), SHOWN) = (projects.first(), invented.name) {
        quota::set_project(app, caller, *first, Limits { bytes: Some(Bytes::gib(600)), ..Limits::default() }).await?;
    }
    Ok(DemoTenant { tenant_id: row.tenant_id, name: invented.name.to_owned(), projects, share: invented.share })
}

/// The tenants of a demo that was set up before.
pub async fn find(app: &App) -> Result<Vec<DemoTenant>, AppError> {
    let caller = Caller::system();
    let mut found = Vec::new();
    for row in tenant::list(app, &caller, None, 200).await? {
        let Some(invented) = TENANTS.iter().find(|t| t.name == row.name.as_str()) else { continue };
        let projects = project::list(app, &caller, Some(row.tenant_id), None, 200).await?;
        let projects = projects
            .into_iter()
            .filter(|p| invented.projects.contains(&p.name.as_str()))
            .map(|p| p.project_id)
            .collect();
        found.push(DemoTenant {
            tenant_id: row.tenant_id,
            name: invented.name.to_owned(),
            projects,
            share: invented.share,
        });
    }
    Ok(found)
}

/// Parses one of the texts above; a failure is a defect of the demo.
fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, AppError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e| AppError::Internal(format!("the demo's own {text:?}: {e}")))
}
