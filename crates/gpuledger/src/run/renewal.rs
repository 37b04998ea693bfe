//! Keeps an allocation alive while its command runs.

use crate::{
    allocation::{self, Allocation},
    client::{Client, ClientError},
    output,
};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use types::AllocationId;

/// Between two tries while the server is away, at first.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Renews every so often until the allocation has ended, or has run for its `longest`, and says which. While the server
/// is away the command runs on, and renewal is tried ever less often.
pub(super) async fn keep(client: &Client, id: AllocationId, every: Duration, longest: Option<Duration>) -> String {
    let client = client.with_patience(Duration::ZERO);
    let every = every.max(Duration::from_millis(200));
    let ends = longest.map(|longest| Instant::now() + longest);
    let mut pause = every;
    let mut is_away = false;
    loop {
        let next = Instant::now() + pause;
        if let Some(end) = ends.filter(|end| *end <= next) {
            sleep_until(end).await;
            return "has run for its maximum duration".to_owned();
        }
        sleep_until(next).await;
        match allocation::change(&client, id, "renew").await {
            Ok(_) => {
                if is_away {
                    output::note(format_args!("{id} is renewed again"));
                }
                is_away = false;
                pause = every;
            }
            Err(error) if matches!(error.status(), Some(401 | 403)) => {
                let what = "the node's agent keeps it alive while the command runs";
                output::note(format_args!("{id} cannot be renewed any more; {what}: {error}"));
                return std::future::pending().await;
            }
            Err(error) if matches!(error.status(), Some(404 | 409)) => {
                if let Some(end) = end_of(&client, id, &error).await {
                    return end;
                }
                pause = every;
            }
            Err(error) => {
                if !is_away {
                    output::note(format_args!("{id} cannot be renewed now, the command runs on: {error}"));
                }
                pause = if is_away { (pause * 2).min(every) } else { FIRST_PAUSE.min(every) };
                is_away = true;
            }
        }
    }
}

/// How the allocation ended; `None` while it has not.
async fn end_of(client: &Client, id: AllocationId, refusal: &ClientError) -> Option<String> {
    match allocation::look(client, id, Duration::ZERO).await {
        Ok(value) => {
            let allocation = Allocation::read(&value).ok()?;
            allocation.state.is_final().then(|| format!("is {} ({})", allocation.state, allocation.cause))
        }
        Err(error) if error.status() == Some(404) => Some(format!("is unknown to the server ({refusal})")),
        Err(_) => None,
    }
}
