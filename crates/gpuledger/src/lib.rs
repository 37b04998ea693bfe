//! Everything behind the command line of the one binary.

mod admin;
mod allocation;
mod authority;
mod certificate;
pub mod cli;
mod client;
mod clock;
mod cluster;
mod config;
mod connection;
mod database;
pub mod demo;
mod doctor;
pub mod duration;
mod error;
mod invoice;
mod listener;
mod log;
mod node;
mod oidc;
mod output;
mod problem;
mod run;
mod secret;
mod serve;
mod token;
mod usage;
