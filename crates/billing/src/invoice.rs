//! An invoice's document: lines, total, and the digest that seals them with all they were made from.

use crate::{
    amount::Amount,
    period::{Period, Zone},
    plan::PlanVersion,
    rating::{self, Charge, ChargeKey, ChargeKind},
    rounding::TooLarge,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use types::{BillingUnit, ByteMillis, Currency, GpuModel, Name, PlanVersionId, Price, ProjectId, TenantId};

/// One line: charges of one kind, project, model and price, summed and then divided and rounded once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// From 1.
    pub number: u32,
    pub kind: ChargeKind,
    /// The label of the earlier period that it corrects; absent for this invoice's own period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "2026-10")]
    pub correction_of: Option<String>,
    pub project_id: ProjectId,
    pub model: GpuModel,
    pub plan_version_id: PlanVersionId,
    /// What the price is the price of.
    pub unit: BillingUnit,
    pub price: Price,
    /// In byte-milliseconds, exact.
    pub quantity: ByteMillis,
    /// quantity × price ÷ unit, rounded half away from zero.
    pub amount: Amount,
    /// How many charges it sums.
    pub charges: u32,
}

/// An invoice without its number: what is computed, frozen at issue, kept as JSON and recomputed to verify it.
///
/// Its JSON is canonical: fields in this order, one text for each value. A field that a later engine adds is left out
/// where it is absent, so that digests of older documents stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The rating engine that made it.
    #[schema(example = "v1")]
    pub engine: String,
    pub tenant_id: TenantId,
    pub tenant_name: Name,
    pub currency: Currency,
    pub zone: Zone,
    pub period: Period,
    pub lines: Vec<Line>,
    /// The sum of the lines' amounts.
    pub total: Amount,
}

/// What a document states that is not computed from charges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub tenant_id: TenantId,
    pub tenant_name: Name,
    pub currency: Currency,
    pub zone: Zone,
    pub period: Period,
}

/// Why charges make no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    #[error("there is no rating engine {0:?}")]
    UnknownEngine(String),
    #[error("a charge of {kind} {source_id} belongs to {found}, which is after {period}",
            kind = key.1, source_id = key.0)]
    LaterPeriod { key: ChargeKey, found: String, period: String },
    #[error("segment {segment} of {kind} {source_id} is charged twice",
            segment = key.3, kind = key.1, source_id = key.0)]
    Repeated { key: ChargeKey },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// What the charges of one line share: the period corrected, kind, project, model, plan version, price, and the unit by
/// its byte-milliseconds. Lines are in the order of it.
type LineKey<'a> = (Option<&'a str>, ChargeKind, ProjectId, &'a GpuModel, PlanVersionId, Price, i128);

impl Line {
    fn key(&self) -> LineKey<'_> {
        (
            self.correction_of.as_deref(),
            self.kind,
            self.project_id,
            &self.model,
            self.plan_version_id,
            self.price,
            self.unit.byte_millis(),
        )
    }
}

/// The key of the line that a charge stands on in the invoice of a period: a charge of an earlier period corrects it.
pub(crate) fn line_key<'a>(charge: &'a Charge, period: &Period) -> LineKey<'a> {
    (
        Some(charge.period.as_str()).filter(|label| *label != period.label),
        charge.kind,
        charge.project_id,
        &charge.model,
        charge.plan_version_id,
        charge.price,
        charge.unit.byte_millis(),
    )
}

impl Document {
    /// The number of the line that one of its charges stands on; `None` when the charge is not of this document.
    #[must_use]
    pub fn line_of(&self, charge: &Charge) -> Option<u32> {
        let key = line_key(charge, &self.period);
        self.lines.iter().find(|line| line.key() == key).map(|line| line.number)
    }
}

/// The document of a period's charges, in whatever order they are given. A charge of an earlier period becomes part of a
/// correction line that names its period.
///
/// # Errors
/// An unknown engine, a charge given twice, a charge of a later period, or an amount that does not fit.
pub fn assemble(engine: &str, header: Header, charges: &[Charge]) -> Result<Document, AssembleError> {
    let mut seen = BTreeSet::new();
    for charge in charges {
        let key = charge.key();
        if charge.period > header.period.label {
            return Err(AssembleError::LaterPeriod { key, found: charge.period.clone(), period: header.period.label });
        }
        if !seen.insert(key) {
            return Err(AssembleError::Repeated { key });
        }
    }
    let lines = rating::lines(engine, charges, &header.period, header.currency)
        .ok_or_else(|| AssembleError::UnknownEngine(engine.to_owned()))??;
    let total = lines.iter().try_fold(0_i64, |sum, line| sum.checked_add(line.amount.minor())).ok_or(TooLarge)?;
    Ok(Document {
        engine: engine.to_owned(),
        tenant_id: header.tenant_id,
        tenant_name: header.tenant_name,
        currency: header.currency,
        total: Amount::new(header.currency, total),
        zone: header.zone,
        period: header.period,
        lines,
    })
}

/// The digest of a document, its charges, and those of `plans` that the charges name: SHA-256 in lower-case hexadecimal
/// over one line of JSON for each, plan versions in the order of their ids and charges in the order of their keys.
/// The order in which charges and plans are given, and further plans among them, make no difference.
#[must_use]
pub fn digest(document: &Document, charges: &[Charge], plans: &[PlanVersion]) -> String {
    let mut charges: Vec<&Charge> = charges.iter().collect();
    charges.sort_unstable_by_key(|charge| charge.key());
    let named: BTreeSet<PlanVersionId> = charges.iter().map(|c| c.plan_version_id).collect();
    let mut plans: Vec<&PlanVersion> = plans.iter().filter(|plan| named.contains(&plan.plan_version_id)).collect();
    plans.sort_by_key(|plan| plan.plan_version_id);
    plans.dedup();

    let mut hash = Sha256::new();
    seal(&mut hash, "document", document);
    for plan in plans {
        seal(&mut hash, "plan", plan);
    }
    for charge in charges {
        seal(&mut hash, "charge", charge);
    }
    hex::encode(hash.finalize())
}

/// JSON holds no raw line break, so lines of it cannot run into each other.
fn seal(hash: &mut Sha256, what: &str, value: &impl Serialize) {
    let json = serde_json::to_vec(value).expect("these types have text keys and no failing field");
    hash.update(what);
    hash.update(b" ");
    hash.update(json);
    hash.update(b"\n");
}

/// The head of a series before its first invoice.
pub const CHAIN_START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The head of a series after its invoice of this serial and digest: SHA-256, in lower-case hexadecimal, over the
/// previous head, the serial and the digest. A document that is changed, left out or moved breaks every later head.
#[must_use]
pub fn chain(previous: &str, serial: u64, digest: &str) -> String {
    hex::encode(Sha256::digest(format!("{previous}\n{serial}\n{digest}\n")))
}

#[cfg(test)]
mod tests;
