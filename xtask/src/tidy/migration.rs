//! Merged migrations never change: `migrations/CHECKSUMS` has the digest of each, as `sha256sum` writes them.

use super::repository::Repository;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Digests by file name.
type Digests = BTreeMap<String, String>;

pub fn changed(repository: &Repository) -> Vec<String> {
    let (frozen, present) = match (frozen(&repository.root), present(&repository.root)) {
        (Ok(frozen), Ok(present)) => (frozen, present),
        (Err(message), _) | (_, Err(message)) => return vec![message],
    };
    let mut broken = Vec::new();
    for (name, digest) in &frozen {
        match present.get(name) {
            None => broken.push(format!("migrations/{name} is gone")),
            Some(now) if now != digest => broken.push(format!("migrations/{name} has changed")),
            Some(_) => {}
        }
    }
    let new = present.keys().filter(|name| !frozen.contains_key(*name));
    broken.extend(new.map(|name| format!("migrations/{name} is not in migrations/CHECKSUMS")));
    broken
}

/// Adds what is new, changes nothing that is there, and names what it added.
pub fn bless(root: &Path) -> Result<Vec<String>, String> {
    let mut frozen = frozen(root)?;
    let mut added = Vec::new();
    for (name, digest) in present(root)? {
        frozen.entry(name).or_insert_with_key(|name| {
            added.push(name.clone());
            digest
        });
    }
    let text: String = frozen.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
    fs::write(checksums(root), text).map_err(|e| e.to_string())?;
    Ok(added)
}

fn checksums(root: &Path) -> PathBuf {
    root.join("migrations/CHECKSUMS")
}

fn frozen(root: &Path) -> Result<Digests, String> {
    let text = fs::read_to_string(checksums(root)).unwrap_or_default();
    text.lines()
        .map(|line| match line.split_once("  ") {
            Some((digest, name)) => Ok((name.to_owned(), digest.to_owned())),
            None => Err(format!("migrations/CHECKSUMS has the line {line:?}")),
        })
        .collect()
}

fn present(root: &Path) -> Result<Digests, String> {
    let folder = root.join("migrations");
    let mut digests = Digests::new();
    for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".sql") {
            let text = fs::read(entry.path()).map_err(|e| format!("{name}: {e}"))?;
            digests.insert(name, hex::encode(Sha256::digest(text)));
        }
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_migration_may_not_change_or_go_and_blessing_does_not_hide_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("migrations");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("0001_a.sql"), "select 1").unwrap();
        let repository = Repository { root: root.path().to_owned(), packages: Vec::new() };
        assert_eq!(changed(&repository), ["migrations/0001_a.sql is not in migrations/CHECKSUMS"]);
        assert_eq!(bless(root.path()).unwrap(), ["0001_a.sql"]);
        assert!(changed(&repository).is_empty());

        fs::write(folder.join("0001_a.sql"), "select 2").unwrap();
        assert!(bless(root.path()).unwrap().is_empty());
        assert_eq!(changed(&repository), ["migrations/0001_a.sql has changed"]);
        fs::remove_file(folder.join("0001_a.sql")).unwrap();
        assert_eq!(changed(&repository), ["migrations/0001_a.sql is gone"]);
    }
}
