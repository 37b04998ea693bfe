//! The command line.

use crate::{
    admin::{self, Admin},
    allocation::{self, ListArgs, OneArgs, RequestArgs, WaitArgs},
    authority::{self, Tls},
    config::{Config, DEFAULTS},
    database, demo,
    doctor::{self, DoctorArgs},
    error::{CliError, exit},
    invoice::{self, InvoicesArgs, VerifyArgs},
    log::{self, LogFormat},
    node::{self, Node},
    output,
    run::{self, ChildArgs, RunArgs, Signals},
    serve::{self, ServeArgs},
    token::{self, LoginArgs},
    usage::{self, UsageArgs},
};
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
A first look, with everything it needs:
  gpuledger demo

An installation of its own:
  gpuledger admin init --email you@example.com --name \"Your Name\"
  gpuledger serve

Memory for a command, on a node with an agent:
  gpuledger login --email kim@example.com
  gpuledger run --memory 20GiB -- python train.py

Exit statuses: 0 done; 1 failed, or the answer is no; 2 wrong command line or configuration; 3 refused by the server;
4 the server or PostgreSQL cannot be reached. `gpuledger run` gives the status of its command, 128 and the signal that
ended it, 125 when it was not started, 126 when it cannot be executed, 127 when it was not found.

Configuration: a file (--config) and variables such as GPULEDGER_HTTP__LISTEN; `gpuledger config` prints every key.";

const EVERYWHERE: &str = "Options of every command";

/// Meters, admits and bills GPU memory
///
/// Gpuledger sells and guards GPU memory, not whole GPUs: agents on the nodes meter it, requests are checked against quotas
/// and placed on GPUs with room, and invoices can be recomputed from the recorded facts.
#[derive(Debug, Parser)]
#[command(name = "gpuledger", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// The configuration's file [default: /etc/gpuledger/gpuledger.toml, where it is there]
    #[arg(long, env = "GPULEDGER_CONFIG", value_name = "FILE", global = true, help_heading = EVERYWHERE)]
    config: Option<PathBuf>,
    /// How events are written on standard error: text or json [default: log.format]
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true, global = true, help_heading = EVERYWHERE)]
    log_format: Option<LogFormat>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API, schedule every pool, run recurring tasks
    Serve(ServeArgs),
    /// Set up a whole installation with simulated nodes and a history, and serve it
    Demo(demo::Args),
    /// Bring the database to this binary's schema
    Migrate,
    /// Make the first operator, or reset a password
    #[command(subcommand)]
    Admin(Admin),
    /// Check a deployment and say what is wrong, and what to do
    Doctor(DoctorArgs),
    /// Print every key of the configuration with its meaning and default
    Config,
    /// Print the OpenAPI document
    Openapi,
    /// Make a certificate authority of your own and the server's certificate, or renew that
    #[command(subcommand)]
    Tls(Tls),

    /// Join a host to a pool
    #[command(subcommand)]
    Node(Node),
    /// Run the agent of a node that joined
    Agent,

    /// Log in with a password and keep the token for the commands below
    Login(LoginArgs),
    /// Run a command on this node with GPU memory that is asked for, confirmed, renewed and released around it
    #[command(after_help = "\
Example: gpuledger run --memory 20GiB --gpus 2 --max-duration 2h -- python train.py --epochs 3

The command sees its GPUs in CUDA_VISIBLE_DEVICES and its allocation in GPULEDGER_ALLOCATION_ID. Signals and the exit
status are passed on. Should the server be away, the command runs on. When the allocation ends first, as after
--max-duration, the command gets SIGTERM, and SIGKILL 30 seconds later.")]
    Run(RunArgs),
    #[command(hide = true)]
    RunChild(ChildArgs),
    /// Ask for GPU memory
    #[command(after_help = "\
Example: gpuledger request --memory 20GiB --gpus 2 --wait 10m

What is placed is held for a short time: confirm it when the workload starts, renew it while it runs, release it at its
end. `gpuledger run` does all of that.")]
    Request(RequestArgs),
    /// List allocations that have not ended
    List(ListArgs),
    /// Show an allocation and what happened to it
    Show(OneArgs),
    /// Wait until an allocation is placed
    Wait(WaitArgs),
    /// Confirm a held allocation: its workload starts, and the meter with it
    Confirm(OneArgs),
    /// Say that the workload of an allocation lives
    Renew(OneArgs),
    /// Release an allocation: its workload ended
    Release(OneArgs),
    /// Withdraw an allocation that has not started
    Cancel(OneArgs),
    /// Show what was reserved and used
    Usage(UsageArgs),
    /// List issued invoices
    Invoices(InvoicesArgs),
    /// Recompute an issued invoice from the recorded facts: identical, or where it differs
    ///
    /// By the server that is named, or else on the configured database.
    VerifyInvoice(VerifyArgs),
}

/// Parses the command line, does what it says, and gives the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::RunChild(args) = &cli.command {
        return run::run_child(args).into();
    }
    // both only fail when one is installed already
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    match start(cli) {
        Ok(status) => status.into(),
        Err(error) => {
            let status = error.exit();
            if status != exit::DONE {
                output::note(error.explain());
            }
            status.into()
        }
    }
}

fn start(cli: Cli) -> Result<u8, CliError> {
    // before there is any other thread
    let signals = matches!(cli.command, Command::Run(_)).then(Signals::take).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::Failed(format!("no threads can be started: {e}")))?;
    match (cli.command, signals) {
        (Command::Run(args), Some(signals)) => Ok(runtime.block_on(run::run(args, signals))),
        (command, _) => runtime.block_on(dispatch(command, cli.config, cli.log_format)),
    }
}

async fn dispatch(command: Command, file: Option<PathBuf>, format: Option<LogFormat>) -> Result<u8, CliError> {
    let configured = || -> Result<Config, CliError> {
        let config = Config::load(file.as_deref())?;
        log::begin(&config, format)?;
        Ok(config)
    };
    match command {
        Command::Serve(args) => serve::run(&configured()?, args).await?,
        Command::Demo(args) => {
            let mut config = Config::load(file.as_deref())?;
            // its progress is what is to be seen
            "warn".clone_into(&mut config.log.filter);
            log::begin(&config, format)?;
            demo::run(args, serve::metrics()?).await?;
        }
        Command::Migrate => database::migrate(&configured()?).await?,
        Command::Admin(admin) => admin::run(&configured()?, admin).await?,
        Command::Doctor(args) => return doctor::run(file.as_deref(), args).await,
        Command::Config => output::line(DEFAULTS.trim_end())?,
        Command::Openapi => {
            let document = api::openapi().to_pretty_json().map_err(|e| CliError::Failed(e.to_string()))?;
            output::line(document.trim_end())?;
        }
        Command::Tls(tls) => authority::run(tls)?,
        Command::Node(Node::Join(args)) => node::join(&configured()?, args).await?,
        Command::Agent => node::run_agent(&configured()?).await?,
        Command::Login(args) => token::login(&args).await?,
        Command::Request(args) => return allocation::request(&args).await,
        Command::List(args) => allocation::list(&args).await?,
        Command::Show(args) => allocation::show(&args).await?,
        Command::Wait(args) => return allocation::wait(&args).await,
        Command::Confirm(args) => allocation::change_one(&args, "confirm").await?,
        Command::Renew(args) => allocation::change_one(&args, "renew").await?,
        Command::Release(args) => allocation::change_one(&args, "release").await?,
        Command::Cancel(args) => allocation::change_one(&args, "cancel").await?,
        Command::Usage(args) => usage::run(&args).await?,
        Command::Invoices(args) => invoice::list(&args).await?,
        Command::VerifyInvoice(args) => return invoice::verify(configured, &args).await,
        // both are started before there are other threads
        Command::Run(_) | Command::RunChild(_) => {}
    }
    Ok(exit::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_stands_behind_the_dashes_is_the_command() {
        let cli = Cli::try_parse_from(["gpuledger", "run", "--memory", "20GiB", "--", "sh", "-c", "--memory"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("{cli:?}") };
        assert!(format!("{args:?}").contains(r#"command: ["sh", "-c", "--memory"]"#), "{args:?}");
        for bad in [
            vec!["gpuledger", "run", "--memory", "20GiB"],
            vec!["gpuledger", "run", "--memory", "NaN", "--", "sh"],
            vec!["gpuledger", "request", "--memory", "20G"],
            vec!["gpuledger", "request", "--memory", "1GiB", "--gpus", "0"],
            vec!["gpuledger", "request", "--memory", "1GiB", "--max-duration", "90"],
            vec!["gpuledger", "request", "--memory", "1GiB", "--dry-run", "--wait", "1m"],
            vec!["gpuledger", "show", "not-an-id"],
        ] {
            assert!(Cli::try_parse_from(&bad).is_err(), "{bad:?} was accepted");
        }
    }
}
