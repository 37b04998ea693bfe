//! Who owns a cluster's files and runs its server: Postgres refuses to run as root.

use crate::NoPostgres;
use nix::unistd::{Gid, Uid, User};
use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The users that stand in for root, best first.
const STAND_INS: [&str; 2] = ["postgres", "nobody"];

/// Who runs the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The user that this process runs as.
    Ourselves,
    /// An unprivileged user in root's stead.
    StandIn { name: String, uid: u32, gid: u32 },
}

impl Owner {
    /// Who runs servers that this process starts.
    pub(crate) fn of_servers() -> Self {
        if !Uid::effective().is_root() {
            return Self::Ourselves;
        }
        STAND_INS.iter().find_map(|name| User::from_name(name).ok().flatten()).map_or(Self::Ourselves, |user| {
            Self::StandIn { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }
        })
    }

    /// A program to be run as this user: with a clean environment, so that no `PG…` variable of the caller reaches
    /// it, in a process group of its own, and silent unless told otherwise.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Self::StandIn { uid, gid, .. } = self {
            // supplementary groups are dropped along with the user id
            command.uid(*uid).gid(*gid);
        }
        command
    }

    /// Makes a file or folder theirs.
    pub(crate) fn give(&self, path: &Path) -> Result<(), NoPostgres> {
        let Self::StandIn { uid, gid, .. } = self else {
            return Ok(());
        };
        nix::unistd::chown(path, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid))).map_err(|errno| NoPostgres::Io {
            doing: "give to the server's user",
            path: path.to_owned(),
            source: errno.into(),
        })
    }

    /// The outermost existing folder on the way to `path`, itself included, that this user may not enter.
    pub(crate) fn stopped_at(&self, path: &Path) -> Option<PathBuf> {
        let Self::StandIn { uid, gid, .. } = self else {
            return None;
        };
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        way.into_iter()
            .find(|folder| {
                fs::metadata(folder).is_ok_and(|meta| {
                    let search = if meta.uid() == *uid {
                        0o100
                    } else if meta.gid() == *gid {
                        0o010
                    } else {
                        0o001
                    };
                    meta.is_dir() && meta.mode() & search == 0
                })
            })
            .map(Path::to_owned)
    }

    /// How this user is named in a message.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Ourselves => "this user",
            Self::StandIn { name, .. } => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_closed_folder_on_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        let closed = root.path().join("closed");
        fs::create_dir_all(closed.join("data")).unwrap();
        let stranger = Owner::StandIn { name: "stranger".to_owned(), uid: 4_000_000, gid: 4_000_000 };
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(stranger.stopped_at(&closed.join("data/not yet there")), Some(closed.clone()));
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(stranger.stopped_at(&closed.join("data")), None);
        assert_eq!(Owner::Ourselves.stopped_at(&closed), None);
    }
}
