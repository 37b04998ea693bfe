//! One private cluster: made once, started, watched over, stopped.

use crate::{
    NoPostgres, Running, Url,
    folder::{Folder, io_error, write_secret},
    owner::Owner,
    programs::Programs,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The owner's role.
const ROLE: &str = "postgres";
/// The database of a cluster that is kept.
const DATABASE: &str = "gpuledger";
/// How long a start may take: recovery after a crash comes first.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long a server whose starter has gone may take to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(15);
/// How long a fast shutdown may take before it becomes an immediate one.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(15);
/// How often another port is tried when somebody takes the chosen one first.
const PORT_TRIES: usize = 3;

/// Waits for the end of the pipe, then stops the server `$1` with signal `$2`, and removes the folder `$3` if given.
const WATCHDOG: &str = r#"read -r _
kill -"$2" "$1"
[ -n "$3" ] || exit 0
n=0
while kill -0 "$1" && [ $n -lt 200 ]; do n=$((n + 1)); sleep 0.05; done
rm -rf "$3""#;

/// A server that this process started.
#[derive(Debug)]
pub(crate) struct Server {
    postgres: Child,
    watchdog: Child,
    /// Outlives the server: an ephemeral one goes with this value.
    folder: Folder,
    /// Held as long as the server may run.
    _lock: File,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.postgres.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.postgres.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error here means that the process is gone already, which is what is wanted.
        if self.folder.ephemeral {
            signal(&mut self.postgres, Signal::SIGQUIT);
        } else {
            signal(&mut self.postgres, Signal::SIGINT);
            if !ends_within(&mut self.postgres, STOP_LIMIT) {
                signal(&mut self.postgres, Signal::SIGQUIT);
            }
        }
        if !ends_within(&mut self.postgres, LEAVE_LIMIT) {
            let _ = self.postgres.kill();
            let _ = self.postgres.wait();
        }
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}

/// Runs the folder's cluster, or attaches to the server that another process runs on it.
pub(crate) fn run(folder: Folder, programs: &Programs, owner: &Owner) -> Result<Running, NoPostgres> {
    let lock = folder.lock_file()?;
    let since = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return start(folder, lock, programs, owner),
            Err(TryLockError::Error(e)) => return Err(io_error("lock", folder.path())(e)),
            Err(TryLockError::WouldBlock) => {}
        }
        if is_ready(&folder.cluster(), None)
            && let Some(port) = folder.last_port()
        {
            return Ok(Running {
                url: url(&folder.password()?, port, DATABASE),
                description: format!("{programs}, started by another process, {}", folder.describe()),
                programs: Some(programs.folder.clone()),
                data: Some(folder.path().to_owned()),
                started: None,
            });
        }
        if since.elapsed() > START_LIMIT {
            return Err(NoPostgres::HeldByAnother { folder: folder.path().to_owned() });
        }
        thread::sleep(PAUSE);
    }
}

fn start(folder: Folder, lock: File, programs: &Programs, owner: &Owner) -> Result<Running, NoPostgres> {
    if !folder.cluster().exists() {
        create(&folder, programs, owner)?;
    }
    await_empty(&folder.cluster())?;
    let password = folder.password()?;
    let mut tries = 0;
    loop {
        tries += 1;
        let port = folder.next_port()?;
        let mut server = launch(&folder, port, programs, owner)?;
        match await_ready(&mut server, &folder) {
            Ok(()) => {
                let description = format!("{programs}, {}", folder.describe());
                let database = if folder.ephemeral { ROLE } else { DATABASE };
                let (postgres, watchdog) = server;
                return Ok(Running {
                    url: url(&password, port, database),
                    description,
                    programs: Some(programs.folder.clone()),
                    data: Some(folder.path().to_owned()),
                    started: Some(Server { postgres, watchdog, folder, _lock: lock }),
                });
            }
            Err(said) => {
                let (mut postgres, mut watchdog) = server;
                for child in [&mut postgres, &mut watchdog] {
                    // errors mean that it is gone already
                    let _ = child.kill();
                    let _ = child.wait();
                }
                if tries < PORT_TRIES && said.contains("Address already in use") {
                    folder.forget_port()?;
                    continue;
                }
                return Err(NoPostgres::Failed { what: format!("starting {programs}"), said });
            }
        }
    }
}

/// Makes the cluster under another name first, so that one that exists is whole.
fn create(folder: &Folder, programs: &Programs, owner: &Owner) -> Result<(), NoPostgres> {
    let unfinished = folder.path().join("cluster.new");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(io_error("remove", &unfinished))?;
    }
    fs::create_dir(&unfinished).map_err(io_error("create", &unfinished))?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o700)).map_err(io_error("close", &unfinished))?;
    owner.give(&unfinished)?;
    // initdb wants the password in a file that its own user can read
    let for_initdb = folder.path().join("password.initdb");
    write_secret(&for_initdb, &folder.new_password()?)?;
    owner.give(&for_initdb)?;
    let mut initdb = owner.command(programs.folder.join("initdb"));
    initdb
        .args(["--encoding=UTF8", "--locale=C", "--no-instructions", "--username", ROLE])
        // Over loopback both are safe. The exchange of scram costs the client thousands of hashes for each
        // connection, which tests, whose clients are not optimised, would pay hundreds of times.
        .arg(if folder.ephemeral { "--auth=password" } else { "--auth=scram-sha-256" })
        .arg(if folder.ephemeral { "--no-sync" } else { "--data-checksums" })
        .arg("--pwfile")
        .arg(&for_initdb)
        .arg("--pgdata")
        .arg(&unfinished);
    let made = finish(&mut initdb, "initdb", "");
    fs::remove_file(&for_initdb).map_err(io_error("remove", &for_initdb))?;
    made?;
    if !folder.ephemeral {
        let mut single = owner.command(programs.folder.join("postgres"));
        single.args(["--single", "-D"]).arg(&unfinished).arg(ROLE);
        finish(&mut single, "creating the database", &format!("CREATE DATABASE {DATABASE}\n"))?;
    }
    fs::rename(&unfinished, folder.cluster()).map_err(io_error("rename", &unfinished))
}

/// Runs a program to its end with the given input.
fn finish(command: &mut Command, what: &str, input: &str) -> Result<(), NoPostgres> {
    let failed = |said: String| NoPostgres::Failed { what: what.to_owned(), said };
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| failed(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|e| failed(e.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Starts the server and its watchdog.
fn launch(folder: &Folder, port: u16, programs: &Programs, owner: &Owner) -> Result<(Child, Child), NoPostgres> {
    let failed = |e: std::io::Error| NoPostgres::Failed { what: format!("starting {programs}"), said: e.to_string() };
    let mut postgres = owner.command(programs.folder.join("postgres"));
    postgres.arg("-D").arg(folder.cluster()).stderr(folder.log_file()?);
    let port = format!("port={port}");
    let mut options = vec![
        port.as_str(),
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "timezone=UTC",
        "log_timezone=UTC",
        "max_connections=300",
    ];
    if folder.ephemeral {
        options.extend(["fsync=off", "synchronous_commit=off", "full_page_writes=off"]);
    }
    for option in options {
        postgres.args(["-c", option]);
    }
    let mut postgres = postgres.spawn().map_err(failed)?;
    let mut watchdog = owner.command("/bin/sh");
    watchdog
        .args(["-c", WATCHDOG, "watchdog", &postgres.id().to_string()])
        .arg(if folder.ephemeral { "QUIT" } else { "INT" })
        .stdin(Stdio::piped());
    if folder.ephemeral {
        watchdog.arg(folder.path());
    }
    match watchdog.spawn() {
        Ok(watchdog) => Ok((postgres, watchdog)),
        Err(e) => {
            // errors mean that it is gone already
            let _ = postgres.kill();
            let _ = postgres.wait();
            Err(failed(e))
        }
    }
}

/// Waits until the server says that it is ready; the error is what it said instead.
fn await_ready((postgres, _): &mut (Child, Child), folder: &Folder) -> Result<(), String> {
    let since = Instant::now();
    loop {
        if is_ready(&folder.cluster(), Some(postgres.id())) {
            return Ok(());
        }
        match postgres.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Err(format!("{status}\n{}", folder.log_tail())),
            Err(e) => return Err(e.to_string()),
        }
        if since.elapsed() > START_LIMIT {
            return Err(format!("not ready after {START_LIMIT:?}\n{}", folder.log_tail()));
        }
        thread::sleep(PAUSE);
    }
}

/// Whether the server of this data says it is ready, in the eighth line of its lock file; the first is its process.
fn is_ready(cluster: &Path, pid: Option<u32>) -> bool {
    let text = fs::read_to_string(cluster.join("postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    let Some(written) = lines.next().and_then(|l| l.trim().parse::<u32>().ok()) else {
        return false;
    };
    lines.nth(6).is_some_and(|status| status.trim() == "ready")
        && pid.map_or_else(|| residents(cluster).contains(&written), |pid| pid == written)
}

/// Waits until no process works in the data any more: the watchdog of a starter that was killed needs a moment.
/// Clears away a lock file that names a process which is not a server of this data, as happens when process numbers
/// are used again after a crash: Postgres would believe it.
fn await_empty(cluster: &Path) -> Result<(), NoPostgres> {
    let since = Instant::now();
    while let Some(pid) = residents(cluster).into_iter().min() {
        if since.elapsed() > LEAVE_LIMIT {
            return Err(NoPostgres::StillRunning { cluster: cluster.to_owned(), pid });
        }
        thread::sleep(PAUSE);
    }
    let lock_file = cluster.join("postmaster.pid");
    let named = fs::read_to_string(&lock_file).ok().and_then(|text| text.lines().next()?.trim().parse::<i32>().ok());
    if named.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
        fs::remove_file(&lock_file).map_err(io_error("remove", &lock_file))?;
    }
    Ok(())
}

/// The processes that work in the data: a server and all its workers have it as their directory.
fn residents(cluster: &Path) -> Vec<u32> {
    let Ok(cluster) = fs::canonicalize(cluster) else {
        return Vec::new();
    };
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == cluster))
        .collect()
}

fn signal(child: &mut Child, signal: Signal) {
    // a number that was waited for may belong to somebody else by now
    if matches!(child.try_wait(), Ok(None))
        && let Ok(pid) = i32::try_from(child.id())
    {
        // an error means that it is gone already
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let since = Instant::now();
    while since.elapsed() < limit {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

fn url(password: &str, port: u16, database: &str) -> Url {
    Url(format!("postgres://{ROLE}:{password}@127.0.0.1:{port}/{database}"))
}
