//! The folder of one cluster: its data, log, password, port, and the lock of whoever runs it.

use crate::{NoPostgres, owner::Owner};
use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};
use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    net::TcpListener,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Stands in for folders that the server's user cannot reach.
const STAND_IN_ROOT: &str = "/var/lib/gpuledger";
/// Memory is used for an ephemeral cluster only if this much is free, in bytes.
const ROOM_IN_MEMORY: u64 = 2 << 30;
/// A log longer than this is begun anew at the next start, in bytes.
const LOG_LIMIT: u64 = 16 << 20;

/// The folder of one cluster.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Removed at the end, and not safe against loss of power.
    pub(crate) ephemeral: bool,
    /// Why the data is not where it was wanted.
    moved: Option<String>,
}

impl Folder {
    /// The folder for data that stays.
    pub(crate) fn kept(wanted: &Path, owner: &Owner) -> Result<Self, NoPostgres> {
        let wanted = std::path::absolute(wanted).map_err(io_error("find", wanted))?;
        let parent = wanted.parent().unwrap_or(&wanted);
        let (path, moved) = match owner.stopped_at(parent) {
            None => (wanted, None),
            Some(closed) => (
                stand_in(Path::new(STAND_IN_ROOT), &wanted),
                Some(format!(
                    "not in {}: the user {} may not enter {}",
                    wanted.display(),
                    owner.name(),
                    closed.display()
                )),
            ),
        };
        fs::create_dir_all(&path).map_err(io_error("create", &path))?;
        let folder = Self { path, ephemeral: false, moved };
        if owner.stopped_at(&folder.path).is_some() {
            // secrets in it are closed to others one by one
            let mode = fs::metadata(&folder.path).map_err(io_error("read", &folder.path))?.mode();
            fs::set_permissions(&folder.path, fs::Permissions::from_mode((mode & 0o777) | 0o011))
                .map_err(io_error("open up", &folder.path))?;
        }
        Ok(folder)
    }

    /// A new folder for data that does not stay: in memory if there is room.
    pub(crate) fn ephemeral(owner: &Owner) -> Result<Self, NoPostgres> {
        let memory = Path::new("/dev/shm");
        let roomy = statvfs(memory).is_ok_and(|fs| fs.blocks_available() * fs.fragment_size() >= ROOM_IN_MEMORY);
        let candidates = [memory.to_owned(), env::temp_dir(), PathBuf::from("/var/tmp")];
        let mut last = None;
        for parent in &candidates[usize::from(!roomy)..] {
            if owner.stopped_at(parent).is_some() {
                continue;
            }
            let path = parent.join(format!("gpuledger-{}", random_hex(8)?));
            match fs::create_dir(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(io_error("close", &path))?;
                    // its watchdog removes it if this process cannot
                    owner.give(&path)?;
                    return Ok(Self { path, ephemeral: true, moved: None });
                }
                Err(source) => last = Some(NoPostgres::Io { doing: "create", path, source }),
            }
        }
        Err(last.unwrap_or_else(|| NoPostgres::Failed {
            what: "finding a temporary folder".to_owned(),
            said: format!("the user {} may enter none of {candidates:?}", owner.name()),
        }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the data is, for people.
    pub(crate) fn describe(&self) -> String {
        let place = self.path.display();
        match &self.moved {
            None => format!("data in {place}"),
            Some(why) => format!("data in {place} ({why})"),
        }
    }

    /// Postgres' own data directory.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.path.join("cluster")
    }

    /// The major version that wrote the data; `None` when there is none yet.
    pub(crate) fn major_version(&self) -> Result<Option<u32>, NoPostgres> {
        let path = self.cluster().join("PG_VERSION");
        match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(NoPostgres::Io { doing: "read", path, source }),
            Ok(text) => text.trim().parse().map(Some).map_err(|_| NoPostgres::Failed {
                what: format!("reading {}", path.display()),
                said: format!("{text:?} is no version"),
            }),
        }
    }

    /// The file whose lock says who runs the cluster.
    pub(crate) fn lock_file(&self) -> Result<File, NoPostgres> {
        let path = self.path.join("lock");
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("open", &path))
    }

    /// The end of the server's log is added to.
    pub(crate) fn log_file(&self) -> Result<File, NoPostgres> {
        let path = self.log_path();
        let long = fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_LIMIT);
        if long {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(io_error("open", &path))
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The last lines of the log, for an error.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join("\n")
    }

    pub(crate) fn password(&self) -> Result<String, NoPostgres> {
        let path = self.path.join("password");
        fs::read_to_string(&path).map_err(io_error("read", &path))
    }

    /// A new password, readable by us alone.
    pub(crate) fn new_password(&self) -> Result<String, NoPostgres> {
        let password = random_hex(24)?;
        write_secret(&self.path.join("password"), &password)?;
        Ok(password)
    }

    /// The port that was used last, if there is one.
    pub(crate) fn last_port(&self) -> Option<u16> {
        fs::read_to_string(self.path.join("port")).ok()?.trim().parse().ok()
    }

    /// The port of the next start: the last one if it is free, so that URLs that people noted down stay right.
    pub(crate) fn next_port(&self) -> Result<u16, NoPostgres> {
        let path = self.path.join("port");
        let last = self.last_port().and_then(|port| TcpListener::bind(("127.0.0.1", port)).ok());
        let listener = match last {
            Some(listener) => listener,
            None => TcpListener::bind(("127.0.0.1", 0)).map_err(io_error("find a port for", &path))?,
        };
        let port = listener.local_addr().map_err(io_error("find a port for", &path))?.port();
        fs::write(&path, port.to_string()).map_err(io_error("write", &path))?;
        Ok(port)
    }

    /// The last port turned out to be taken.
    pub(crate) fn forget_port(&self) -> Result<(), NoPostgres> {
        let path = self.path.join("port");
        fs::remove_file(&path).map_err(io_error("remove", &path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ephemeral {
            // what cannot be removed is a leftover in a folder for temporary files
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Writes a file that only this process' user can read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), NoPostgres> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("write", path))?;
    file.write_all(text.as_bytes()).map_err(io_error("write", path))
}

/// Always the same folder for the same wanted one.
fn stand_in(root: &Path, wanted: &Path) -> PathBuf {
    let digest = hex::encode(Sha256::digest(wanted.as_os_str().as_encoded_bytes()));
    root.join(&digest[..12])
}

fn random_hex(bytes: usize) -> Result<String, NoPostgres> {
    let source = Path::new("/dev/urandom");
    let mut buffer = vec![0; bytes];
    File::open(source).and_then(|mut file| file.read_exact(&mut buffer)).map_err(io_error("read", source))?;
    Ok(hex::encode(buffer))
}

pub(crate) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NoPostgres {
    let path = path.to_owned();
    move |source| NoPostgres::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_is_the_same_each_time_and_differs_by_folder() {
        let root = Path::new("/var/lib/gpuledger");
        let one = stand_in(root, Path::new("/root/a/data"));
        assert_eq!(one, stand_in(root, Path::new("/root/a/data")));
        assert_ne!(one, stand_in(root, Path::new("/root/b/data")));
        assert!(one.starts_with(root));
    }

    #[test]
    fn a_folder_out_of_reach_is_stood_in_for_and_the_reason_said() {
        let closed = tempfile::tempdir().unwrap();
        fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let owner = Owner::of_servers();
        let wanted = closed.path().join("data");
        let folder = Folder::kept(&wanted, &owner).unwrap();
        match owner {
            Owner::Ourselves => assert_eq!(folder.path(), wanted),
            Owner::StandIn { .. } => {
                assert_eq!(folder.path(), stand_in(Path::new(STAND_IN_ROOT), &wanted));
                assert!(folder.describe().contains("may not enter"), "{}", folder.describe());
                fs::remove_dir(folder.path()).unwrap();
            }
        }
    }

    #[test]
    fn a_port_is_kept_while_it_is_free() {
        let folder = Folder::ephemeral(&Owner::of_servers()).unwrap();
        let port = folder.next_port().unwrap();
        assert_eq!(folder.next_port().unwrap(), port);
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_ne!(folder.next_port().unwrap(), port);
    }
}
