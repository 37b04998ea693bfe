//! Many clients at once, each with its own requests in order.

use crate::{Outcome, client::Connection};
use std::{
    borrow::Cow,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// What the clients found.
#[derive(Debug, Default)]
pub struct Load {
    /// From the first request to the last answer.
    pub took: Duration,
    /// Of each request.
    pub latencies: Vec<Duration>,
    /// Of each client and request: the bodies, where they were asked for.
    pub bodies: Vec<Vec<Vec<u8>>>,
}

/// One client's requests in order.
pub type Script = Vec<Vec<u8>>;

/// A request that is whole already.
#[expect(clippy::ptr_arg, reason = "it is used where another kind of request has its own type")]
pub fn whole(request: &Vec<u8>) -> Cow<'_, [u8]> {
    Cow::Borrowed(request)
}

/// Sends each client's requests over its own connection, the next when the last is answered. `wire` gives a request its
/// last touch before it is sent. Every answer must have this status.
pub async fn run<T: Send + Sync + 'static>(
    address: SocketAddr,
    scripts: Vec<Vec<T>>,
    wire: fn(&T) -> Cow<'_, [u8]>,
    status: u16,
    keep_bodies: bool,
) -> Outcome<Load> {
    let mut connections = Vec::with_capacity(scripts.len());
    for _ in &scripts {
        connections.push(Connection::open(address).await?);
    }
    let since = Instant::now();
    let mut clients = JoinSet::new();
    for (number, (script, mut connection)) in scripts.into_iter().zip(connections).enumerate() {
        clients.spawn(async move {
            let mut latencies = Vec::with_capacity(script.len());
            let mut bodies = Vec::new();
            for request in &script {
                let request = wire(request);
                let sent = Instant::now();
                let answer = connection.send(&request).await?;
                latencies.push(sent.elapsed());
                answer.expect(status)?;
                if keep_bodies {
                    bodies.push(answer.body.to_vec());
                }
            }
            Ok::<_, String>((number, latencies, bodies))
        });
    }
    let mut load = Load { bodies: vec![Vec::new(); clients.len()], ..Load::default() };
    while let Some(client) = clients.join_next().await {
        let (number, latencies, bodies) = client.map_err(|e| e.to_string())??;
        load.latencies.extend(latencies);
        load.bodies[number] = bodies;
    }
    load.took = since.elapsed();
    Ok(load)
}

impl Load {
    /// Adds another run's.
    pub fn add(&mut self, other: Self) {
        self.took += other.took;
        self.latencies.extend(other.latencies);
    }

    /// Requests per second.
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// The latency that so many in a hundred requests do not exceed, in milliseconds.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        self.latencies.sort_unstable();
        let at = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(at).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_latency_that_was_seen() {
        let latencies = (1..=100).rev().map(Duration::from_millis).collect();
        let mut load = Load { took: Duration::from_secs(2), latencies, bodies: Vec::new() };
        assert_eq!([1, 50, 99, 100].map(|percent| load.percentile(percent)), [1.0, 50.0, 99.0, 100.0]);
        assert!((load.per_second() - 50.0).abs() < f64::EPSILON);
    }
}
