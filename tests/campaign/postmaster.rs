//! A Postgres of one run, with full durability, that can be killed as a loss of power would.

use postgres::{Place, Running, Settings};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A private cluster.
#[derive(Debug)]
pub struct Postmaster {
    folder: PathBuf,
    url: String,
    running: Option<Running>,
}

impl Postmaster {
    /// Starts the cluster of a folder on a port, making it where there is none.
    pub async fn start(folder: &Path, port: u16) -> Self {
        fs::create_dir_all(folder).unwrap();
        // the one that is tried first; it stays the same over all restarts, so that servers find it again
        fs::write(folder.join("port"), port.to_string()).unwrap();
        let running = find(folder.to_owned()).await;
        Self { folder: folder.to_owned(), url: running.url().to_owned(), running: Some(running) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Kills every process that works in its data.
    pub async fn kill(&mut self) {
        let Some(running) = self.running.take() else { return };
        let data = self.folder.join("cluster");
        tokio::task::spawn_blocking(move || {
            let data = fs::canonicalize(&data).unwrap();
            let since = Instant::now();
            loop {
                let pids = residents(&data);
                if pids.is_empty() {
                    break;
                }
                assert!(since.elapsed() < Duration::from_secs(10), "{pids:?} cannot be killed");
                // an error means that some are gone already
                let _ = Command::new("kill").arg("-KILL").args(pids).stderr(std::process::Stdio::null()).status();
                thread::sleep(Duration::from_millis(2));
            }
            drop(running);
        })
        .await
        .unwrap();
    }

    /// Starts it again where it was.
    pub async fn start_again(&mut self) {
        if self.running.is_some() {
            return;
        }
        let running = find(self.folder.clone()).await;
        assert_eq!(running.url(), self.url, "Postgres is not where it was");
        self.running = Some(running);
    }

    /// Stops it in good order.
    pub async fn stop(&mut self) {
        let running = self.running.take();
        tokio::task::spawn_blocking(move || drop(running)).await.unwrap();
    }
}

async fn find(folder: PathBuf) -> Running {
    let settings = Settings::new(None, Place::Folder(folder));
    tokio::task::spawn_blocking(move || postgres::find(&settings)).await.unwrap().unwrap()
}

/// The postmaster first, as it is the oldest.
fn residents(data: &Path) -> Vec<String> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data))
        // a zombie that its parent has not reaped is dead already
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")))
        .collect();
    pids.sort_unstable();
    pids.iter().map(u32::to_string).collect()
}
