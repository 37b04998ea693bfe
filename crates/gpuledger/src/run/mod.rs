//! `gpuledger run`: a command with memory on this node. Asked for, bound through the node's agent, confirmed before the
//! command is executed, renewed while it runs, released whatever its end.

mod child;
mod local_agent;
mod renewal;
mod signals;

pub(crate) use child::{ChildArgs, run as run_child};
pub(crate) use signals::Signals;

use crate::{
    allocation::{self, Allocation, WhatArgs},
    client::{Client, ClientError, ServerArgs},
    duration,
    error::{self, CliError, exit},
    output,
};
use child::Waiting;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    env,
    ffi::OsString,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};
use tokio::time::{Instant as Monotonic, sleep_until};
use types::{AllocationId, AllocationState};

/// What to run, with how much memory.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// The longest to wait in the queue; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait: Duration,
    /// The node agent's socket
    #[arg(long, env = "GPULEDGER_AGENT__SOCKET", value_name = "PATH", default_value = "/run/gpuledger/agent.sock")]
    socket: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How long the server may be away before the command has started.
const BEFORE_START: Duration = Duration::from_secs(20);
/// How long it may be away when the memory is given back; the node's agent reports the end of the process anyway.
const AT_END: Duration = Duration::from_secs(60);
/// How long a command may take to end once its allocation has.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Runs the command and gives its exit status.
pub(crate) async fn run(args: RunArgs, mut signals: Signals) -> u8 {
    if let Some(program) = args.command.first()
        && !is_there(program)
    {
        output::note(format_args!("there is no command {}", program.display()));
        return exit::NOT_FOUND;
    }
    match granted(&args, &mut signals).await {
        Ok(status) => status,
        Err(End::Interrupted(signal)) => exit::SIGNAL + signal,
        Err(End::Failed(error)) => {
            output::note(format_args!("the command was not started: {}", error.explain()));
            exit::NOT_STARTED
        }
    }
}

/// Why the command was not started.
enum End {
    /// A signal came first.
    Interrupted(u8),
    Failed(CliError),
}

impl<E: Into<CliError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

async fn granted(args: &RunArgs, signals: &mut Signals) -> Result<u8, End> {
    let node = local_agent::hello(&args.socket).await?;
    let client = args.server.client_of(&node.server_url)?.with_patience(BEFORE_START);
    let body = args.what.body(&client, Some((node.pool_id, Some(node.node_id)))).await?;
    let allocation = ask(&client, &body, signals).await?;
    let id = allocation.allocation_id;
    let done = async {
        let held = placed(&client, allocation, args.wait, signals).await?;
        start(args, &client, &held, signals).await
    }
    .await;
    give_back(&client, id).await;
    done
}

/// Asks for the memory. A signal does not break off what the server may have granted already; a second one does.
async fn ask(client: &Client, body: &serde_json::Value, signals: &mut Signals) -> Result<Allocation, End> {
    let key = allocation::new_key();
    let asked = allocation::ask(client, body, &key);
    tokio::pin!(asked);
    let mut first = None;
    loop {
        tokio::select! {
            answer = &mut asked => {
                let allocation = Allocation::read(&answer?)?;
                if let Some(signal) = first {
                    give_back(client, allocation.allocation_id).await;
                    return Err(End::Interrupted(signal));
                }
                return Ok(allocation);
            }
            signal = signals.ending() => match first {
                None => first = Some(signal),
                Some(_) => return Err(End::Interrupted(signal)),
            }
        }
    }
}

/// Waits until the allocation is placed.
async fn placed(
    client: &Client,
    mut allocation: Allocation,
    wait: Duration,
    signals: &mut Signals,
) -> Result<Allocation, End> {
    let id = allocation.allocation_id;
    let deadline = Monotonic::now() + wait;
    let mut said = String::new();
    while allocation.state == AllocationState::Queued {
        let why = allocation.queue.clone().unwrap_or_default().explain();
        let left = deadline.saturating_duration_since(Monotonic::now());
        if left < Duration::from_secs(1) {
            return Err(CliError::Failed(format!("there was no room in time: {why}")).into());
        }
        if why != said {
            output::note(format_args!("{id} waits {why}"));
            said = why;
        }
        let looked = allocation::look(client, id, left.min(Duration::from_secs(30)));
        let value = tokio::select! {
            value = looked => value?,
            signal = signals.ending() => return Err(End::Interrupted(signal)),
        };
        allocation = Allocation::read(&value)?;
    }
    if allocation.state == AllocationState::Held {
        return Ok(allocation);
    }
    Err(CliError::Failed(format!("the allocation is {} ({})", allocation.state, allocation.cause)).into())
}

/// Starts the process, has it bound, confirms, lets it become the command, and sees it to its end.
async fn start(args: &RunArgs, client: &Client, held: &Allocation, signals: &mut Signals) -> Result<u8, End> {
    let id = held.allocation_id;
    let ready = async {
        let waiting = Waiting::start(&args.command, &args.socket, id, &held.environment).await?;
        let confirmed = allocation::change(client, id, "confirm").await?;
        Ok::<_, End>((waiting, Allocation::read(&confirmed)?))
    };
    let (waiting, active) = tokio::select! {
        ready = ready => ready?,
        // what was started sees that nobody waits for it any more, and ends
        signal = signals.ending() => return Err(End::Interrupted(signal)),
    };
    let gpus: Vec<&str> = active.parts.iter().map(|part| part.gpu_uuid.as_str()).collect();
    output::note(format_args!("{id}: {} on {}", active.request.memory, gpus.join(", ")));
    let running = waiting.go().await?;
    let every = Duration::from_secs(active.renew_within_s.unwrap_or(60).into()) / 3;
    let renewal = renewal::keep(client, id, every, args.what.max_duration);
    Ok(status_of(see_through(running, id, renewal, signals).await?))
}

/// Passes signals on and renews until the command has ended.
async fn see_through(
    mut running: tokio::process::Child,
    id: AllocationId,
    renewal: impl Future<Output = String>,
    signals: &mut Signals,
) -> Result<ExitStatus, CliError> {
    let pid = running.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    let send = |signal: Signal| {
        if let Some(pid) = pid {
            // an error means that it has ended, which is seen next
            let _ = kill(pid, signal);
        }
    };
    tokio::pin!(renewal);
    // when the allocation has ended and the command has not
    let mut last_words: Option<Monotonic> = None;
    loop {
        tokio::select! {
            ended = running.wait() => return ended.map_err(|e| CliError::Failed(format!("the command is lost: {e}"))),
            signal = signals.relayed() => send(signal),
            why = &mut renewal, if last_words.is_none() => {
                let after = LAST_WORDS.as_secs();
                output::note(format_args!("{id} {why}: the command is asked to end, and made to after {after} s"));
                send(Signal::SIGTERM);
                last_words = Some(Monotonic::now() + LAST_WORDS);
            }
            () = sleep_until(last_words.unwrap_or_else(Monotonic::now)), if last_words.is_some() => {
                send(Signal::SIGKILL);
                last_words = Some(Monotonic::now() + LAST_WORDS);
            }
        }
    }
}

/// Releases the memory, or withdraws what was not yet confirmed.
async fn give_back(client: &Client, id: AllocationId) {
    let at_once = allocation::change(&client.with_patience(Duration::ZERO), id, "release").await;
    let released = match at_once {
        Err(ClientError::Unavailable(why)) => {
            let longest = AT_END.as_secs();
            output::note(format_args!("{id} cannot be released yet and is tried for {longest} s: {why}"));
            let later = allocation::change(&client.with_patience(AT_END), id, "release").await;
            if later.is_ok() {
                output::note(format_args!("{id} is released"));
            }
            later
        }
        other => other,
    };
    if let Err(error) = released {
        let what = "the node's agent reports the end of the command";
        output::note(format_args!("{id} was not released from here; {what}: {}", error::explain(&error)));
    }
}

/// The exit status to pass on.
fn status_of(status: ExitStatus) -> u8 {
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code(), signal) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(exit::FAILED),
        (None, Some(signal)) => exit::SIGNAL.saturating_add(signal),
        (None, None) => exit::FAILED,
    }
}

/// Whether there is such a command, so that none is granted memory that cannot be started.
fn is_there(program: &std::ffi::OsStr) -> bool {
    let is_executable =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        // what is there and cannot be executed is told by the attempt
        return path.exists();
    }
    env::var_os("PATH")
        .is_some_and(|folders| env::split_paths(&folders).any(|folder| is_executable(&folder.join(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_signals_are_passed_on() {
        for code in [0, 1, 7, 255] {
            assert_eq!(i32::from(status_of(ExitStatus::from_raw(code << 8))), code);
        }
        for signal in [2, 9, 15] {
            assert_eq!(i32::from(status_of(ExitStatus::from_raw(signal))), 128 + signal);
        }
    }

    #[test]
    fn a_command_is_looked_for_where_the_system_would() {
        assert!(is_there("sh".as_ref()) && is_there("/bin/sh".as_ref()));
        for missing in ["", "no-such-command-anywhere", "/no/such", "./no-such"] {
            assert!(!is_there(missing.as_ref()), "{missing:?}");
        }
    }
}
