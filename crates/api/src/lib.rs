//! HTTP: router, credentials, request and response types, errors to statuses, the OpenAPI document.
//!
//! A handler translates, calls one function of `app`, and answers; it opens no transaction and decides nothing.

mod access;
pub mod allocation;
pub mod api_key;
pub mod audit;
pub mod balance;
mod body;
mod exact;
pub mod extract;
pub mod gpu;
pub mod guard;
pub mod health;
pub mod interval;
pub mod invitation;
pub mod invoice;
mod layers;
pub mod metric;
pub mod node;
mod nul;
pub mod oidc;
pub mod page;
pub mod plan;
pub mod pool;
pub mod problem;
pub mod project;
pub mod quota;
pub mod reading;
mod router;
pub mod server;
pub mod session;
pub mod set_aside;
mod span;
pub mod subscription;
pub mod tenant;
pub mod usage;
pub mod user;

pub use guard::{Guard, TrustedProxy};
pub use metric::PrometheusHandle;
pub use problem::Problem;
pub use router::{ApiState, HttpLimits, openapi, router};
