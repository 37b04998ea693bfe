//! Tests through the real product and a real Postgres: one module per noun. `world` drives the product in process, at a
//! time that stands until a test moves it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent;
mod attack;
mod audit;
mod authorisation;
mod backup;
mod balance;
mod charge;
mod cli;
mod cluster;
mod credential;
mod deployment;
mod doctor;
mod hostile;
mod http;
mod invitation;
mod invoice;
mod log;
mod metric;
mod migration;
mod model;
mod node;
mod node_credential;
mod oidc;
mod past;
mod queue;
mod quota;
mod race;
mod reading;
mod recovery;
mod scheduler;
mod schema;
mod scope;
mod session;
mod set_aside;
mod store_wall;
mod subscription;
mod take_over;
mod task;
mod tls;
mod wall;
mod world;
