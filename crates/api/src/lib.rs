//! HTTP: router, credentials, request and response types, errors to statuses, the OpenAPI document.
//!
//! A handler translates, calls one function of `app`, and answers; it opens no transaction and decides nothing.

pub mod api_key;
pub mod audit;
pub mod extract;
pub mod health;
mod layers;
pub mod page;
pub mod plan;
pub mod pool;
pub mod problem;
pub mod project;
pub mod quota;
mod router;
pub mod session;
pub mod subscription;
pub mod tenant;
pub mod user;

pub use problem::Problem;
pub use router::{ApiState, HttpLimits, openapi, router};
