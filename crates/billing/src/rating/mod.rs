//! Rating: from facts to charges. Each engine is a frozen module: an issued invoice names the engine that made it and can
//! be made again by it, so a change of the rules is a new engine beside the old ones.

mod v1;

use crate::{
    invoice::Line,
    period::{Period, Zone},
    plan::Schedule,
    rounding::TooLarge,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{
    AllocationId, BillingUnit, ByteMillis, Bytes, Currency, GpuId, GpuModel, Instant, PartId, PlanVersionId, Price,
    ProjectId, Span,
};
use uuid::Uuid;

/// The engine that makes new invoices.
pub const ENGINE: &str = "v1";

/// What kind of fact is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A final span in which a part held bytes while confirmed.
    Interval,
    /// What an agent measured for a part over a window.
    Reading,
}

impl SourceKind {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Reading => "reading",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Interval, Self::Reading].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fact to be charged, of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The id of the interval or reading.
    pub id: Uuid,
    pub kind: SourceKind,
    pub allocation_id: AllocationId,
    pub part_id: PartId,
    pub project_id: ProjectId,
    pub gpu_id: GpuId,
    /// Of the GPU.
    pub model: GpuModel,
    /// What the part was granted.
    pub bytes: Bytes,
    pub span: Span,
    /// A reading's ∫ of memory used above the grant; absent when unknown, and in an interval.
    pub above: Option<ByteMillis>,
}

/// What is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChargeKind {
    /// Memory held, used or not.
    Reserved,
    /// Memory used above what was held.
    Above,
}

impl ChargeKind {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Above => "above",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Reserved, Self::Above].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for ChargeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One rated fact. It has no amount of its own: that is the rational quantity × price ÷ unit, and a line sums charges
/// before it divides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    pub source_id: Uuid,
    pub source_kind: SourceKind,
    pub kind: ChargeKind,
    /// From 0 within its source, in the order of time.
    pub segment: u32,
    pub span: Span,
    pub allocation_id: AllocationId,
    pub project_id: ProjectId,
    pub model: GpuModel,
    /// The label of the period, in the tenant's zone, that the span's start lies in.
    #[schema(example = "2026-11")]
    pub period: String,
    pub plan_version_id: PlanVersionId,
    /// In byte-milliseconds; never negative.
    pub quantity: ByteMillis,
    /// Of one unit.
    pub price: Price,
    pub unit: BillingUnit,
}

/// What makes a charge unique within a tenant; charges are ordered by it.
pub type ChargeKey = (Uuid, SourceKind, ChargeKind, u32);

impl Charge {
    /// What makes it unique within its tenant.
    #[must_use]
    pub const fn key(&self) -> ChargeKey {
        (self.source_id, self.source_kind, self.kind, self.segment)
    }
}

/// Why facts cannot be rated. Nothing is rated in part: a fact that is left out would be lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RatingError {
    #[error("there is no rating engine {0:?}")]
    UnknownEngine(String),
    #[error("{kind} {source_id}: no plan is in force at {at}")]
    NoPlan { kind: SourceKind, source_id: Uuid, at: Instant },
    #[error("{kind} {source_id} is given twice")]
    Repeated { kind: SourceKind, source_id: Uuid },
    #[error("intervals {first} and {second} of part {part_id} overlap")]
    Overlap { part_id: PartId, first: Uuid, second: Uuid },
    #[error("reading {source_id} has a negative quantity")]
    Negative { source_id: Uuid },
}

/// Charges for facts, by the plan versions in force and the months of the zone, ordered by [`Charge::key`].
///
/// - An interval is cut at changes of plan and at month edges; its charges' quantities add up to its bytes × time.
/// - A reading belongs whole to the price and month of its start, and is charged only for use above the grant, where the
///   plan in force prices it. So a reading may give no charge.
/// - An interval that reaches into a month that is not invoiced yet gives that month's charges too; they belong to that
///   month's invoice.
///
/// # Errors
/// An unknown engine, a hole in the schedule, facts given twice, intervals that overlap, a negative quantity.
pub fn rate(engine: &str, sources: &[Source], schedule: &Schedule, zone: &Zone) -> Result<Vec<Charge>, RatingError> {
    match engine {
        "v1" => v1::rate(sources, schedule, zone),
        _ => Err(RatingError::UnknownEngine(engine.to_owned())),
    }
}

/// The lines of an invoice, by the engine; `None` when there is no such engine.
pub(crate) fn lines(
    engine: &str,
    charges: &[Charge],
    period: &Period,
    currency: Currency,
) -> Option<Result<Vec<Line>, TooLarge>> {
    match engine {
        "v1" => Some(v1::lines(charges, period, currency)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
