//! Pure quota rules and the life of an allocation.

pub mod decide;
pub mod life;

#[cfg(test)]
mod public_reports;

pub use decide::{Account, Ask, Level, LimitKind, Limits, UnderflowError, Use, Violation, decide};
pub use life::{Illegal, next};
