//! One Postgres for all tests: finds or starts it, prints its URL, and stops it when the input ends, which it also
//! does when whoever holds the other end is killed. `cargo xtask test` runs this.

#![expect(clippy::print_stdout, reason = "the URL is what this program is for")]

use std::{io::Read, process::ExitCode};
use support::DatabaseServer;

#[tokio::main]
async fn main() -> ExitCode {
    let server = match DatabaseServer::find().await {
        Ok(server) => server,
        Err(none) => {
            eprintln!("{none}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}\n{}", server.url(), server.describe());
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    server.stop().await;
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
