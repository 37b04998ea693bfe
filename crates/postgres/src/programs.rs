//! Server programs on this machine: `initdb` and `postgres` of one version, side by side.

use crate::owner::Owner;
use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The oldest major version that has everything the schema uses.
pub(crate) const OLDEST_MAJOR: u32 = 15;

/// The programs of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    /// Holds `initdb` and `postgres`.
    pub(crate) folder: PathBuf,
    pub(crate) major: u32,
    /// Such as `15.18`.
    pub(crate) version: String,
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL {} from {}", self.version, self.folder.display())
    }
}

impl Programs {
    /// The programs in a folder; `None` when it has none, the reason when they cannot be used.
    pub(crate) fn in_folder(folder: &Path, owner: &Owner) -> Result<Option<Self>, String> {
        // links such as /usr/local/bin/initdb lead to the folder that has the other programs too
        let Ok(initdb) = fs::canonicalize(folder.join("initdb")) else {
            return Ok(None);
        };
        let Some(folder) = initdb.parent().filter(|f| f.join("postgres").is_file()) else {
            return Ok(None);
        };
        if let Some(closed) = owner.stopped_at(folder) {
            return Err(format!("{}: the user {} may not enter {}", folder.display(), owner.name(), closed.display()));
        }
        let said = owner
            .command(folder.join("postgres"))
            .arg("--version")
            .stdout(Stdio::piped())
            .output()
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let Some((version, major)) = parse_version(&said) else {
            return Err(format!("{}: does not say its version: {said:?}", folder.display()));
        };
        let programs = Self { folder: folder.to_owned(), major, version };
        if major < OLDEST_MAJOR {
            return Err(format!("{programs}: too old"));
        }
        Ok(Some(programs))
    }
}

/// From `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` to `15.18` and 15.
fn parse_version(said: &str) -> Option<(String, u32)> {
    let version = said.split(' ').nth(2)?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version.to_owned(), version[..digits].parse().ok()?))
}

/// See [`crate::Lookup::system`].
pub(crate) fn system_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    folders.extend(debian_folders(Path::new("/usr/lib/postgresql")));
    let configured = Command::new("pg_config").arg("--bindir").output();
    if let Ok(output) = configured
        && output.status.success()
    {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    folders
}

/// `15/bin`, `16/bin`, … under `root`, by falling version.
fn debian_folders(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|version| root.join(version.to_string()).join("bin")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn pretend(folder: &Path, version: &str) {
        fs::create_dir_all(folder).unwrap();
        for ancestor in folder.ancestors().take(3) {
            fs::set_permissions(ancestor, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for name in ["initdb", "postgres"] {
            let file = folder.join(name);
            fs::write(&file, format!("#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn versions_are_read_from_releases_and_betas() {
        assert_eq!(
            parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
            Some(("15.18".to_owned(), 15))
        );
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta2"), Some(("18beta2".to_owned(), 18)));
        assert_eq!(parse_version("cannot run as root"), None);
    }

    #[test]
    fn the_newest_of_debians_folders_comes_first() {
        let root = tempfile::tempdir().unwrap();
        for version in ["9", "15", "16", "not a version"] {
            fs::create_dir_all(root.path().join(version).join("bin")).unwrap();
        }
        let expected: Vec<PathBuf> = ["16", "15", "9"].iter().map(|v| root.path().join(v).join("bin")).collect();
        assert_eq!(debian_folders(root.path()), expected);
    }

    #[test]
    fn a_link_leads_to_the_folder_with_all_programs_and_an_old_version_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let owner = Owner::of_servers();
        pretend(&root.path().join("15/bin"), "15.18");
        pretend(&root.path().join("14/bin"), "14.2");
        let links = root.path().join("links");
        fs::create_dir(&links).unwrap();
        symlink(root.path().join("15/bin/initdb"), links.join("initdb")).unwrap();
        let found = Programs::in_folder(&links, &owner).unwrap().unwrap();
        assert_eq!((found.major, found.version.as_str()), (15, "15.18"));
        assert!(found.folder.ends_with("15/bin"));
        let why = Programs::in_folder(&root.path().join("14/bin"), &owner).unwrap_err();
        assert!(why.ends_with("too old"), "{why}");
        assert_eq!(Programs::in_folder(root.path(), &owner), Ok(None));
    }
}
