//! Pure placement: inventory, policies, queue order, explanations.
//!
//! Decisions are functions of the inventory and the request alone: the same inputs give the same answer, with every
//! tie broken by node and then by GPU id.

pub mod gpu;
pub mod inventory;
pub mod no_room;
pub mod place;
pub mod queue;
pub mod reason;
pub mod request;

#[cfg(test)]
mod public_reports;
#[cfg(test)]
mod sample;

pub use gpu::{Gpu, PartUse, Service};
pub use inventory::{Inventory, InventoryError};
pub use no_room::{Nearest, NoRoom};
pub use place::{Placement, place};
pub use queue::{closed_by, could_use};
pub use reason::{Excluded, Reason};
pub use request::{Invalid, validate};
