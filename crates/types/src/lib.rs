//! The vocabulary of Gpuledger: ids, bytes, byte-milliseconds, money, instants and spans, and what agents and server
//! say to each other. No I/O, no clock but [`Clock`], no randomness.

pub mod allocation;
pub mod bytes;
pub mod clock;
pub mod gpu;
pub mod id;
pub mod list;
pub mod money;
pub mod name;
pub mod remark;
pub mod role;
pub mod span;
pub mod wire;

pub use allocation::{AllocationState, Cause, Request};
pub use bytes::{ByteMillis, ByteMillisError, Bytes, BytesError, BytesGiven};
pub use clock::Clock;
pub use gpu::{GpuModel, GpuUuid};
pub use id::*;
pub use money::{BillingUnit, Currency, MoneyError, Price};
pub use name::{Name, NameError};
pub use remark::{Remark, RemarkError};
pub use role::Role;
pub use span::{Instant, InstantError, Span};
