//! What the tests need of the world: a Postgres with the product's schema, the real server on it, and a client that
//! speaks to the server. Nothing here stands in for a part of the product; a token issuer stands in for those of others.
//!
//! `cargo xtask test` starts one Postgres for all tests and tells them by `GPULEDGER_TEST_DATABASE_URL`. A test that
//! is run without it starts one for its own process, which takes under a second.

mod client;
mod database;
mod database_server;
mod issuer;
mod link;
mod seed;
mod server;

pub use client::{Answer, Client};
pub use database::Database;
pub use database_server::{DatabaseServer, URL_VARIABLE};
pub use issuer::{AUDIENCE, CLIENT_ID, Issuer, IssuerKey};
pub use link::Link;
pub use seed::Seed;
pub use server::{CA_FILE, Server, binary};
