//! Renews the node's credential, by itself when it has an age and at once when the server says so. The new one is on disk
//! before it is used, and the former one stays good until then: a crash at any point leaves one on disk that is good.

use crate::{
    Shared,
    client::{ClientError, ServerClient},
    state::sync_folder_of,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use types::{Instant, wire::RotatedCredential};

/// Between two looks whether it is time.
const LOOK: Duration = Duration::from_secs(60);
/// After a failure, however often the server asks.
const RETRY: Duration = Duration::from_secs(60);
/// Where the age of the credential is kept.
const FILE: &str = "rotation.json";

/// Since when the present credential is used, as kept on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    rotated_at: Instant,
}

/// Why the credential is not renewed.
#[derive(Debug, thiserror::Error)]
enum NotRotated {
    #[error("the server answered with status {status}: {detail}")]
    Status { status: u16, detail: String },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the answer is no credential: {0}")]
    Answer(#[from] serde_json::Error),
    #[error("{path} cannot be replaced: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Renews the credential in `file` each time it is `every` old, more or less, until `stop`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    client: ServerClient,
    file: PathBuf,
    every: Duration,
    stop: CancellationToken,
) {
    // a fleet that joined on one day does not renew on one day
    let every = every * rand::random_range(90..=110_u32) / 100;
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return,
            () = shared.rotate_now.notified() => true,
            () = tokio::time::sleep(LOOK) => false,
        };
        // a copy that is not heard must not renew what the first uses: that would shut the first one out
        if !shared.heard.load(Ordering::Relaxed) || !(asked || is_due(&shared, every)) {
            continue;
        }
        match rotate(&shared, &client, &file).await {
            Ok(()) => tracing::info!(file = %file.display(), "the node has a new credential"),
            Err(error) => {
                tracing::warn!(%error, "the node's credential is not renewed yet");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

/// Whether the credential is so old. Its age counts from when this is first asked.
fn is_due(shared: &Shared, every: Duration) -> bool {
    let now = shared.clock.now();
    match shared.state.read::<Kept>(FILE) {
        Some(kept) => u128::try_from(now.since(kept.rotated_at)).is_ok_and(|age| age >= every.as_millis()),
        None => {
            keep(shared, now);
            false
        }
    }
}

fn keep(shared: &Shared, rotated_at: Instant) {
    if let Err(error) = shared.state.write(FILE, &Kept { rotated_at }) {
        tracing::warn!(%error, "the age of the credential cannot be written");
    }
}

async fn rotate(shared: &Shared, client: &ServerClient, file: &Path) -> Result<(), NotRotated> {
    let Some(former) = client.credential() else { return Ok(()) };
    let answer = client.post("/v1/node-credential/rotate", &serde_json::json!({})).await?;
    if !answer.is_success() {
        return Err(NotRotated::Status { status: answer.status, detail: answer.detail() });
    }
    let new: RotatedCredential = serde_json::from_slice(&answer.body)?;
    replace_credential(file, &former, &new.credential)
        .map_err(|source| NotRotated::File { path: file.to_owned(), source })?;
    client.set_credential(new.credential);
    keep(shared, shared.clock.now());
    // its first use makes it the node's only one
    shared.report_now.notify_one();
    Ok(())
}

/// Puts another credential in place of `former` in the file of a membership, with the same owner and rights, so that a
/// crash leaves the one or the other. Where somebody wrote yet another one meanwhile, it stays.
fn replace_credential(file: &Path, former: &str, new: &str) -> io::Result<()> {
    let mut membership: Value = serde_json::from_slice(&fs::read(file)?)?;
    match membership.get_mut("credential") {
        Some(Value::String(kept)) if kept == former => new.clone_into(kept),
        _ => return Err(io::Error::other("it holds another credential: the host joined again, start the agent again")),
    }
    let before = fs::metadata(file)?;
    let unfinished = file.with_extension("new");
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut written = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&unfinished)?;
    let made = written.metadata()?;
    if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
        fchown(&written, Some(before.uid()), Some(before.gid()))?;
    }
    written.set_permissions(before.permissions())?;
    written.write_all(&serde_json::to_vec_pretty(&membership)?)?;
    written.sync_all()?;
    fs::rename(&unfinished, file)?;
    sync_folder_of(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_keeps_all_else_and_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credential.json");
        fs::write(&file, r#"{"server_url": "http://s", "credential": "old"}"#).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        // what a crash left
        fs::write(folder.path().join("credential.new"), "half").unwrap();
        replace_credential(&file, "old", "new").unwrap();
        let text: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(text, serde_json::json!({"server_url": "http://s", "credential": "new"}));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_credential_that_somebody_else_wrote_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credential.json");
        let text = r#"{"credential": "joined again"}"#;
        fs::write(&file, text).unwrap();
        assert!(replace_credential(&file, "old", "new").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}
