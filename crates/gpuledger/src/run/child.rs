//! The process that becomes the command. It is this program, run again: it has itself bound by the node's agent, says
//! so, waits for the word to go, and then executes the command in its own place. So the process that is bound is the
//! command itself, and nothing of the command runs before the allocation is confirmed.
//!
//! Both sides meet at a socket in Linux' abstract namespace under a random name; each checks that the kernel names the
//! other one as its peer. Nothing of it is left in the command: the socket is closed by the exec.

use super::{local_agent, signals};
use crate::error::{CliError, exit};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::Command as StdCommand,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader as AsyncReader},
    net::{UnixListener, UnixStream},
    process::{Child, Command},
    time::timeout,
};
use types::AllocationId;

/// How long binding may take.
const PATIENCE: Duration = Duration::from_secs(40);
const BOUND: &str = "bound\n";
const GO: &str = "go\n";

/// What the waiting process is told. For `gpuledger run` alone.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    meet: String,
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    allocation: AllocationId,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A process that is bound and waits to become the command. Dropped, it ends.
pub(super) struct Waiting {
    process: Child,
    stream: AsyncReader<UnixStream>,
}

impl Waiting {
    /// Starts it and waits until it is bound.
    pub async fn start(
        command: &[OsString],
        socket: &Path,
        allocation: AllocationId,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, CliError> {
        let failed = |e: std::io::Error| CliError::Failed(format!("no process can be started: {e}"));
        let name = format!("gpuledger-{}", hex::encode(rand::random::<[u8; 16]>()));
        let listener = StdListener::bind_addr(&address(&name).map_err(failed)?).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let mut process = Command::new("/proc/self/exe")
            .arg0("gpuledger")
            .args(["run-child", "--meet", &name, "--allocation", &allocation.to_string(), "--socket"])
            .arg(socket)
            .arg("--")
            .args(command)
            .envs(environment)
            .env("GPULEDGER_ALLOCATION_ID", allocation.to_string())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
        let met = async {
            loop {
                let (stream, _) = listener.accept().await.map_err(failed)?;
                if stream.peer_cred().is_ok_and(|peer| peer.pid() == pid) {
                    let mut stream = AsyncReader::new(stream);
                    let mut said = String::new();
                    stream.read_line(&mut said).await.map_err(failed)?;
                    return Ok::<_, CliError>((stream, said));
                }
            }
        };
        let (stream, said) = tokio::select! {
            met = timeout(PATIENCE, met) => {
                met.map_err(|_| CliError::Failed("the process was not bound in time".to_owned()))??
            }
            ended = process.wait() => {
                let status = ended.map_err(failed)?;
                return Err(CliError::Failed(format!("the process ended before it was bound ({status})")));
            }
        };
        if said != BOUND {
            return Err(CliError::Failed(if said.is_empty() {
                "the process ended before it was bound".to_owned()
            } else {
                said.trim_end().to_owned()
            }));
        }
        Ok(Self { process, stream })
    }

    /// Lets it become the command.
    pub async fn go(mut self) -> Result<Child, CliError> {
        let sent = self.stream.get_mut().write_all(GO.as_bytes()).await;
        sent.map_err(|e| CliError::Failed(format!("the process ended before it could start the command: {e}")))?;
        Ok(self.process)
    }
}

fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// `gpuledger run-child`: waits, then becomes the command. Comes back only when it does not.
pub(crate) fn run(args: &ChildArgs) -> u8 {
    match wait_for_word(args) {
        Ok(true) => {}
        // whoever started it has gone or says why
        Ok(false) | Err(_) => return exit::NOT_STARTED,
    }
    let Some((program, arguments)) = args.command.split_first() else { return exit::NOT_STARTED };
    if let Err(error) = signals::let_go() {
        crate::output::note(format_args!("signals cannot be let go of: {error}"));
        return exit::NOT_STARTED;
    }
    let error = StdCommand::new(program).args(arguments).exec();
    crate::output::note(format_args!("cannot run {}: {error}", program.display()));
    if error.kind() == std::io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE }
}

/// Binds, says how that went, and waits: `true` for the word to go.
fn wait_for_word(args: &ChildArgs) -> std::io::Result<bool> {
    let stream = StdStream::connect_addr(&address(&args.meet)?)?;
    let bound = local_agent::bind(&args.socket, args.allocation);
    let said = match &bound {
        Ok(()) => BOUND.to_owned(),
        Err(error) => format!("{}\n", error.explain().replace('\n', " ")),
    };
    (&stream).write_all(said.as_bytes())?;
    let mut word = String::new();
    BufReader::new(&stream).read_line(&mut word)?;
    Ok(bound.is_ok() && word == GO)
}
