//! The agent's folder of small files, each replaced as a whole.

use crate::AgentError;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// Keeps any other agent out of the folder for as long as the file is open.
    pub fn lock(&self) -> Result<File, AgentError> {
        let path = self.path("lock");
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Ok(file) => file,
            Err(source) => return Err(AgentError::File { path, source }),
        };
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(AgentError::StateInUse(self.0.clone())),
            Err(TryLockError::Error(source)) => Err(AgentError::File { path, source }),
        }
    }

    /// Opens the folder, made if it is not there.
    pub fn open(path: PathBuf) -> Result<Self, AgentError> {
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(AgentError::File { path, source }),
        }
    }

    /// The path of something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Reads a file; `None` where it is not there or does not make sense, which the caller outlives.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read(self.path(name)).ok()?;
        serde_json::from_slice(&text)
            .inspect_err(|error| tracing::warn!(%error, name, "a file of the agent's state is damaged"))
            .ok()
    }

    /// Replaces a file.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        replace(&self.path(name), &serde_json::to_vec(value)?)
    }
}

/// Replaces a file so that a crash leaves either the old text or the new one, and makes it durable.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = path.with_extension("new");
    let mut file = File::create(&written)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&written, path)?;
    sync_folder_of(path)
}

/// Makes it durable that a file was made, renamed or removed.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
