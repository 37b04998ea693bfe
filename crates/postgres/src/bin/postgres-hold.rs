//! Runs a private Postgres on the folder that is given, or an ephemeral one, until its input ends. Prints the
//! connection URL. A kill by `SIGKILL` has to end the server too; the tests of this crate do that to it.

#![expect(clippy::print_stdout, reason = "the URL is what this program is for")]

use postgres::{Place, Settings};
use std::{env, io::Read, process::ExitCode};

fn main() -> ExitCode {
    let place = env::args_os().nth(1).map_or(Place::Ephemeral, |folder| Place::Folder(folder.into()));
    match postgres::find(&Settings::new(None, place)) {
        Ok(running) => {
            eprintln!("{}", running.describe());
            println!("{}", running.url());
            // the end of the input is the only message; whatever is read is of no interest
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(none) => {
            eprintln!("{none}");
            ExitCode::FAILURE
        }
    }
}
