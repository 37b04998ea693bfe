//! Price lists, their frozen versions, and what is in force for a tenant when.

use crate::{error::StoreError, time::At, tx::Tx};
use billing::{InForce, PlanVersion, Rate, Rates};
use rust_decimal::Decimal;
use std::collections::{BTreeMap, HashMap};
use types::{Currency, GpuModel, Instant, Name, PlanId, Price, Span, TenantId};
use uuid::Uuid;

/// A price list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRow {
    pub plan_id: PlanId,
    /// Unique among plans.
    pub name: Name,
    pub currency: Currency,
    pub created_at: Instant,
}

/// A version of a price list and when its prices begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanVersionRow {
    pub version: PlanVersion,
    /// A whole minute; the version holds until the next one's.
    pub valid_from: Instant,
    pub created_at: Instant,
}

/// The model under which `plan_rate` keeps the rate of every model not named.
const DEFAULT_MODEL: &str = "";

struct Raw {
    plan_id: Uuid,
    name: String,
    currency: String,
    created_at: At,
}

impl Raw {
    fn parse(self) -> Result<PlanRow, StoreError> {
        Ok(PlanRow {
            plan_id: self.plan_id.into(),
            name: self.name.parse().map_err(|_| StoreError::corrupt("plan", "name", &self.name))?,
            currency: self.currency.parse().map_err(|_| StoreError::corrupt("plan", "currency", &self.currency))?,
            created_at: self.created_at.0,
        })
    }
}

/// A new plan, as yet without prices.
///
/// # Errors
/// The rule `plan_name_is_unique`.
pub async fn insert(tx: &mut Tx, row: &PlanRow) -> Result<(), StoreError> {
    sqlx::query!(
        "insert into plan (plan_id, name, currency, created_at) values ($1, $2, $3, $4)",
        row.plan_id.uuid(),
        row.name.as_str(),
        row.currency.code(),
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A new version with all its rates.
///
/// # Errors
/// The rules `plan_version_number_is_unique` and `plan_version_starts_once`, when another was added meanwhile;
/// `plan_rate_is_not_negative`; [`StoreError::RowCount`] when not every rate was written.
pub async fn insert_version(tx: &mut Tx, row: &PlanVersionRow) -> Result<(), StoreError> {
    let version = &row.version;
    sqlx::query!(
        "insert into plan_version (plan_version_id, plan_id, version, unit, valid_from, created_at)
         values ($1, $2, $3, $4, $5, $6)",
        version.plan_version_id.uuid(),
        version.plan_id.uuid(),
        i32::try_from(version.version).unwrap_or(i32::MAX),
        version.unit.name(),
        At(row.valid_from) as _,
        At(row.created_at) as _,
    )
    .execute(tx.connection())
    .await?;
    let named = version.rates.models.iter().map(|(model, rate)| (model.as_str(), rate));
    let (models, rates): (Vec<String>, Vec<&Rate>) =
        named.chain([(DEFAULT_MODEL, &version.rates.default)]).map(|(model, rate)| (model.to_owned(), rate)).unzip();
    let reserved: Vec<Decimal> = rates.iter().map(|r| r.reserved.to_decimal()).collect();
    let above: Vec<Option<Decimal>> = rates.iter().map(|r| r.above.map(Price::to_decimal)).collect();
    let done = sqlx::query!(
        "insert into plan_rate (plan_version_id, model, reserved, above)
         select $1, r.* from unnest($2::text[], $3::numeric[], $4::numeric[]) as r",
        version.plan_version_id.uuid(),
        &models,
        &reserved,
        &above as &[Option<Decimal>],
    )
    .execute(tx.connection())
    .await?;
    StoreError::expect_rows("plan rates", models.len(), done.rows_affected())
}

/// One plan; with `subscriber`, only if that tenant is or was on it.
///
/// # Errors
/// What the database says.
pub async fn get(tx: &mut Tx, plan: PlanId, subscriber: Option<TenantId>) -> Result<Option<PlanRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select plan_id, name, currency, created_at from plan p
          where plan_id = $1 and ($2::uuid is null
            or exists (select from subscription s where s.plan_id = p.plan_id and s.tenant_id = $2))",
        plan.uuid(),
        subscriber.map(TenantId::uuid)
    )
    .fetch_optional(tx.connection())
    .await?
    .map(Raw::parse)
    .transpose()
}

/// A page of plans in order of id; with `subscriber`, only of those which that tenant is or was on.
///
/// # Errors
/// What the database says.
pub async fn page(
    tx: &mut Tx,
    subscriber: Option<TenantId>,
    after: Option<PlanId>,
    limit: i64,
) -> Result<Vec<PlanRow>, StoreError> {
    sqlx::query_as!(
        Raw,
        "select plan_id, name, currency, created_at from plan p
          where ($1::uuid is null or exists (select from subscription s where s.plan_id = p.plan_id and s.tenant_id = $1))
            and ($2::uuid is null or plan_id > $2)
          order by plan_id limit $3",
        subscriber.map(TenantId::uuid),
        after.map(PlanId::uuid),
        limit
    )
    .fetch_all(tx.connection())
    .await?
    .into_iter()
    .map(Raw::parse)
    .collect()
}

/// Every version of a plan, in order.
///
/// # Errors
/// What the database says.
pub async fn versions(tx: &mut Tx, plan: PlanId) -> Result<Vec<PlanVersionRow>, StoreError> {
    let rows = sqlx::query!(
        "select v.plan_version_id, v.version, v.unit, v.valid_from, v.created_at, p.currency
           from plan_version v join plan p using (plan_id) where v.plan_id = $1 order by v.version",
        plan.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|r| r.plan_version_id).collect();
    let mut rates = rates_of(tx, &ids).await?;
    rows.into_iter()
        .map(|r| {
            let head = VersionHead {
                plan_version_id: r.plan_version_id,
                plan_id: plan.uuid(),
                version: r.version,
                currency: r.currency,
                unit: r.unit,
            };
            Ok(PlanVersionRow {
                version: head.with(rates.remove(&r.plan_version_id))?,
                valid_from: r.valid_from.0,
                created_at: r.created_at.0,
            })
        })
        .collect()
}

/// Which plan version prices a tenant's use when: each subscription cut at the instants at which a version of its plan
/// begins. Where a subscription begins before its plan has prices there is a hole. An open end is [`Instant::LAST`].
///
/// # Errors
/// What the database says.
pub async fn schedule(tx: &mut Tx, tenant: TenantId) -> Result<Vec<InForce>, StoreError> {
    let rows = sqlx::query!(
        r#"select s.starts_at, s.ends_at, v.plan_version_id, v.plan_id, v.version, v.unit, v.valid_from,
                  v.valid_until as "valid_until?: At", p.currency
             from subscription s
             join plan p using (plan_id)
             join (select *, lead(valid_from) over (partition by plan_id order by valid_from) as valid_until
                     from plan_version) v using (plan_id)
            where s.tenant_id = $1 and (s.ends_at is null or v.valid_from < s.ends_at)
              and (v.valid_until is null or v.valid_until > s.starts_at)
            order by s.starts_at, v.valid_from"#,
        tenant.uuid()
    )
    .fetch_all(tx.connection())
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|r| r.plan_version_id).collect();
    let rates = rates_of(tx, &ids).await?;
    rows.into_iter()
        .map(|r| {
            let last = Instant::LAST;
            let start = r.starts_at.0.max(r.valid_from.0);
            let end = r.ends_at.map_or(last, |t| t.0).min(r.valid_until.map_or(last, |t| t.0));
            let head = VersionHead {
                plan_version_id: r.plan_version_id,
                plan_id: r.plan_id,
                version: r.version,
                currency: r.currency,
                unit: r.unit,
            };
            Ok(InForce { span: Span::clamped(start, end), plan: head.with(rates.get(&r.plan_version_id).cloned())? })
        })
        .collect()
}

/// A version's row, to be joined with its rates.
struct VersionHead {
    plan_version_id: Uuid,
    plan_id: Uuid,
    version: i32,
    currency: String,
    unit: String,
}

impl VersionHead {
    fn with(self, rates: Option<Rates>) -> Result<PlanVersion, StoreError> {
        Ok(PlanVersion {
            plan_version_id: self.plan_version_id.into(),
            plan_id: self.plan_id.into(),
            version: u32::try_from(self.version)
                .map_err(|_| StoreError::corrupt("plan_version", "version", self.version))?,
            currency: self.currency.parse().map_err(|_| StoreError::corrupt("plan", "currency", &self.currency))?,
            unit: self.unit.parse().map_err(|_| StoreError::corrupt("plan_version", "unit", &self.unit))?,
            rates: rates.ok_or_else(|| StoreError::corrupt("plan_rate", "plan_version_id", self.plan_version_id))?,
        })
    }
}

async fn rates_of(tx: &mut Tx, versions: &[Uuid]) -> Result<HashMap<Uuid, Rates>, StoreError> {
    let rows = sqlx::query!(
        "select plan_version_id, model, reserved, above from plan_rate where plan_version_id = any($1)",
        versions
    )
    .fetch_all(tx.connection())
    .await?;
    let price = |column, d: Decimal| Price::from_decimal(d).map_err(|_| StoreError::corrupt("plan_rate", column, d));
    let mut defaults: HashMap<Uuid, Rate> = HashMap::new();
    let mut named: HashMap<Uuid, BTreeMap<GpuModel, Rate>> = HashMap::new();
    for r in rows {
        let rate =
            Rate { reserved: price("reserved", r.reserved)?, above: r.above.map(|d| price("above", d)).transpose()? };
        if r.model == DEFAULT_MODEL {
            defaults.insert(r.plan_version_id, rate);
        } else {
            let model = r.model.parse().map_err(|_| StoreError::corrupt("plan_rate", "model", &r.model))?;
            named.entry(r.plan_version_id).or_default().insert(model, rate);
        }
    }
    Ok(defaults
        .into_iter()
        .map(|(version, default)| (version, Rates { default, models: named.remove(&version).unwrap_or_default() }))
        .collect())
}
