//! Pure billing: plans, periods, rating engines, invoices, their verification, and the one place that rounds.
//!
//! The way of a fact to an invoice: [`rating::rate`] prices [`Source`]s by the [`Schedule`] of plan versions in force
//! and gives exact [`Charge`]s; [`invoice::assemble`] sums them into [`Line`]s, each divided and rounded once by
//! [`rounding`]; [`invoice::digest`] seals inputs and results; [`verify::verify`] repeats all of it later.

pub mod amount;
pub mod csv;
pub mod invoice;
pub mod number;
pub mod period;
pub mod plan;
pub mod rating;
pub mod rounding;
pub mod verify;

#[cfg(test)]
mod fixture;

pub use amount::Amount;
pub use invoice::{Document, Header, Line};
pub use number::InvoiceNumber;
pub use period::{Period, PeriodError, Zone};
pub use plan::{InForce, PlanVersion, Rate, Rates, Schedule, ScheduleError};
pub use rating::{Charge, ChargeKind, ENGINE, RatingError, Source, SourceKind};
pub use verify::{Difference, Facts, Stored};
