//! The only SQL. One module per noun; every function that touches a tenant's data works inside a [`Tx`], which was
//! begun under a [`Scope`], and row-level security holds the transaction to that scope a second time.
//!
//! What this crate does not do: decide. It reads, writes, counts the rows that it wrote, and names the rule that a
//! refused row broke.

pub mod allocation;
pub mod api_key;
pub mod audit;
pub mod charge;
pub mod doctor;
pub mod error;
pub mod gpu;
pub mod history;
pub mod interval;
pub mod invitation;
pub mod invoice;
pub mod join_token;
pub mod leadership;
pub mod membership;
pub mod migrate;
pub mod node;
pub mod node_credential;
pub mod node_refusal;
pub mod part;
pub mod period;
pub mod plan;
pub mod pool;
pub mod project;
pub mod quota;
pub mod quota_use;
pub mod reading;
pub mod request_key;
pub mod scope;
pub mod server;
pub mod session;
pub mod set_aside;
pub mod signing_key;
pub mod subscription;
pub mod task;
pub mod tenant;
pub mod time;
pub mod tx;
pub mod usage;
pub mod user;

pub use error::{Rule, StoreError};
pub use migrate::migrate;
pub use scope::Scope;
pub use tx::{Store, StoreSettings, Tx};
