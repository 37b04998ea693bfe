//! Hands the spool's batches to the server, oldest first, each until it is settled.
//!
//! | answer | what it means for the batch |
//! |---|---|
//! | 2xx | durable: it is deleted |
//! | 409 with `expected` | the server cannot follow the stream: a new stream begins with it |
//! | 409 because another agent speaks for the node | not the batch's fault: tried again, ever more rarely |
//! | 400, 413, 415, 422, other 409 | the batch itself is at fault: it is kept in `refused/` with the answer, and a new stream begins without it |
//! | everything else, or no answer | not the batch's fault (credential, limits, outage): tried again, ever more rarely |

use crate::{
    BATCH_READINGS, Shared,
    client::{Answer, ClientError, ServerClient},
    new_stream,
    spool::{SpoolError, SpooledBatch},
    state::replace,
};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use types::wire::{BatchAck, ReadingBatch};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// The most refused batches kept: whoever refuses everything must not fill the disk. Beyond it a batch waits.
const MAX_REFUSED: usize = 1_000;
/// Compression gains nothing beyond this level at this size.
const ZSTD_LEVEL: i32 = 3;

/// What an answer means for the batch.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Acknowledged(BatchAck),
    Gap { expected: u64 },
    Refused,
    Later { after: Option<Duration> },
}

fn verdict(answer: &Answer) -> Verdict {
    #[derive(serde::Deserialize)]
    struct GapProblem {
        expected: u64,
    }
    match answer.status {
        200..=299 => match serde_json::from_slice(&answer.body) {
            Ok(ack) => Verdict::Acknowledged(ack),
            // whatever answered, it was not the ledger
            Err(_) => Verdict::Later { after: None },
        },
        409 if answer.is_anothers() => Verdict::Later { after: answer.retry_after },
        409 => match serde_json::from_slice::<GapProblem>(&answer.body) {
            Ok(gap) => Verdict::Gap { expected: gap.expected },
            Err(_) => Verdict::Refused,
        },
        400 | 413 | 415 | 422 => Verdict::Refused,
        _ => Verdict::Later { after: answer.retry_after },
    }
}

/// Why the front batch is not settled yet.
#[derive(Debug, thiserror::Error)]
enum Unsettled {
    #[error("the server answered with status {status}: {detail}")]
    Status { status: u16, detail: String, after: Option<Duration> },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("the batch cannot be compressed or set aside: {0}")]
    File(#[from] std::io::Error),
    #[error("{MAX_REFUSED} refused batches wait for somebody to look at them")]
    TooManyRefused,
}

/// Uploads until `stop`.
pub(crate) async fn run(shared: Arc<Shared>, client: ServerClient, stop: CancellationToken) {
    let mut failures = 0_u32;
    loop {
        let wait = if shared.spool().is_empty() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = shared.upload_now.notified() => continue,
            }
        } else {
            tokio::select! {
                () = stop.cancelled() => return,
                result = settle_front(&shared, &client) => match result {
                    Ok(()) => {
                        if failures > 0 {
                            tracing::info!("batches are taken again");
                        }
                        failures = 0;
                        continue;
                    }
                    Err(error) => {
                        if failures == 0 {
                            tracing::warn!(%error, "a batch stays in the spool");
                        } else {
                            tracing::debug!(%error, failures, "a batch stays in the spool");
                        }
                        let wait = retry_after(failures, &error);
                        failures = failures.saturating_add(1);
                        wait
                    }
                },
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Twice as long each time, up to a bound; half of it is chance, so that a fleet does not return in step.
fn retry_after(failures: u32, error: &Unsettled) -> Duration {
    if let Unsettled::Status { after: Some(after), .. } = error {
        return (*after).clamp(FIRST_RETRY, LAST_RETRY);
    }
    let longest = FIRST_RETRY.saturating_mul(1 << failures.min(6)).min(LAST_RETRY);
    longest * rand::random_range(50..=100_u32) / 100
}

/// Sends the oldest batch and does what the answer says.
async fn settle_front(shared: &Shared, client: &ServerClient) -> Result<(), Unsettled> {
    let front = shared.spool().front();
    let batch = match front {
        Ok(Some(batch)) => batch,
        Ok(None) => return Ok(()),
        Err(error @ SpoolError::Damaged(_)) => {
            tracing::error!(%error, "readings are lost: their windows stay uncovered");
            return Ok(shared.spool().restart_stream(new_stream(&shared.clock), true)?);
        }
        Err(error) => return Err(error.into()),
    };
    debug_assert!(batch.readings.len() <= BATCH_READINGS);
    let body = body_of(&batch, shared)?;
    let answer = client.post_zstd("/v1/reading-batches", body).await?;
    match verdict(&answer) {
        Verdict::Acknowledged(ack) if ack.sequence > shared.spool().newest() => {
            // the state folder was set back: the server knows more of this stream than this agent does, and took this
            // batch for an old one
            tracing::warn!(
                at_server = ack.sequence,
                "this spool is older than the server's record of it: a new stream begins"
            );
            shared.spool().restart_stream(new_stream(&shared.clock), false)?;
        }
        Verdict::Acknowledged(ack) => {
            if ack.set_aside > 0 {
                tracing::warn!(rows = ack.set_aside, skew_ms = ack.skew_ms, "the server set rows aside");
            }
            shared.spool().acknowledge(ack.sequence)?;
        }
        Verdict::Gap { expected } => {
            tracing::warn!(
                expected,
                sequence = batch.sequence,
                "the server lacks batches that are gone here: a new stream begins"
            );
            shared.spool().restart_stream(new_stream(&shared.clock), false)?;
        }
        Verdict::Refused => {
            set_aside(&batch, &answer, shared)?;
            shared.spool().restart_stream(new_stream(&shared.clock), true)?;
        }
        Verdict::Later { after } => {
            return Err(Unsettled::Status { status: answer.status, detail: answer.detail(), after });
        }
    }
    Ok(())
}

fn body_of(batch: &SpooledBatch, shared: &Shared) -> Result<Vec<u8>, Unsettled> {
    let json = serde_json::to_vec(&ReadingBatch {
        stream_id: batch.stream_id,
        run_id: Some(shared.run.run_id),
        sequence: batch.sequence,
        sent_at: shared.clock.now(),
        readings: batch.readings.clone(),
    })
    .map_err(ClientError::Json)?;
    Ok(zstd::encode_all(json.as_slice(), ZSTD_LEVEL)?)
}

/// Keeps a refused batch with the server's words, for somebody to look at.
fn set_aside(batch: &SpooledBatch, answer: &Answer, shared: &Shared) -> Result<(), Unsettled> {
    #[derive(serde::Serialize)]
    struct RefusedBatch<'a> {
        status: u16,
        detail: String,
        sequence: u64,
        readings: &'a [types::wire::Reading],
    }
    let folder = shared.state.path("refused");
    std::fs::create_dir_all(&folder)?;
    if std::fs::read_dir(&folder)?.count() >= MAX_REFUSED {
        return Err(Unsettled::TooManyRefused);
    }
    let refused = RefusedBatch {
        status: answer.status,
        detail: answer.detail(),
        sequence: batch.sequence,
        readings: &batch.readings,
    };
    let path = folder.join(format!("{}-{}.json", batch.stream_id, batch.sequence));
    tracing::error!(status = answer.status, detail = refused.detail, path = %path.display(), "the server refused a batch");
    replace(&path, &serde_json::to_vec(&refused).map_err(ClientError::Json)?)?;
    Ok(())
}

#[cfg(test)]
mod tests;
