//! The connections that are open: how many there may be, what each waits for, and which one makes room for another.
//!
//! A newcomer is always let in when some other connection only waits: first one that never sent a request, then one
//! between two requests, then one whose body or whose reading of the answer makes no progress. One whose request is in
//! work is never closed for another, and none of a source that has fewer than the newcomer's.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What connections may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Open at once.
    pub connections: usize,
    /// Open at once from one address, or from one /64 of IPv6.
    pub per_address: usize,
    /// From the opening to the end of the first request's head, the TLS handshake included.
    pub head: Duration,
    /// Between two requests, the next one's head included.
    pub idle: Duration,
    /// Without a byte of a body, on its way in or out.
    pub stall: Duration,
    /// Bytes of a request's head.
    pub head_size: usize,
    /// Header fields of a request.
    pub headers: usize,
    /// Requests at once on one connection of HTTP/2.
    pub streams: u32,
}

impl Default for ConnectionLimits {
    /// As in `config.default.toml`.
    fn default() -> Self {
        Self {
            connections: 4096,
            per_address: 1024,
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(10),
            head_size: 32 << 10,
            headers: 100,
            streams: 100,
        }
    }
}

/// What waits so long may be closed for a newcomer although a request has begun.
const MAKES_NO_PROGRESS: Duration = Duration::from_secs(1);

/// Why a connection was closed by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// For a newcomer.
    Room,
    /// The first head took too long.
    Head,
    /// No request came for a long time.
    Idle,
    /// A body stood still.
    Stalled,
}

impl Closed {
    const fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Head => "head",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
        }
    }
}

/// Why a newcomer is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Every connection has a request in work.
    Connections,
    /// Every connection of its address has.
    Address,
}

impl Refused {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Address => "address",
        }
    }
}

/// What a connection waits for, in the order in which they make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    /// Its first request.
    First,
    /// Another request.
    Next,
    /// The rest of a request's body.
    Body,
    /// That its peer reads an answer.
    Reader,
    /// The server itself.
    Work,
}

/// Where one request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its body is waited for.
    Body,
    /// It is in work.
    Work,
    /// Its answer is being sent.
    Answer,
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    source: IpAddr,
    state: Mutex<State>,
    /// Cancelled when the server closes it.
    pub close: CancellationToken,
    table: Arc<Connections>,
}

#[derive(Debug)]
struct State {
    /// Requests by stage: body, work, answer.
    requests: [u32; 3],
    has_asked: bool,
    /// The last progress.
    since: Instant,
}

impl State {
    const fn waiting(&self) -> Waiting {
        let [bodies, works, answers] = self.requests;
        if works > 0 {
            Waiting::Work
        } else if answers > 0 {
            Waiting::Reader
        } else if bodies > 0 {
            Waiting::Body
        } else if self.has_asked {
            Waiting::Next
        } else {
            Waiting::First
        }
    }
}

/// All open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
    by_source: HashMap<IpAddr, usize>,
}

/// A mutex whose holder never panics half-way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom the limit per address counts: one host of IPv6 has a whole /64.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    /// Lets a newcomer in, if need be by closing another connection.
    ///
    /// # Errors
    /// There is no room, and nothing that only waits.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<Arc<Connection>, Refused> {
        let source = source(address);
        let mut open = lock(&self.open);
        if open.of(source) >= self.limits.per_address {
            self.make_room(&mut open, now, |own, _| own.source == source).ok_or(Refused::Address)?;
        }
        if open.connections.len() >= self.limits.connections {
            // whoever has many takes no place from whoever has few
            let own = open.of(source);
            self.make_room(&mut open, now, |_, its| its >= own).ok_or(Refused::Connections)?;
        }
        let number = open.next;
        open.next += 1;
        let connection = Arc::new(Connection {
            number,
            source,
            state: Mutex::new(State { requests: [0; 3], has_asked: false, since: now }),
            close: CancellationToken::new(),
            table: Arc::clone(self),
        });
        open.connections.insert(number, Arc::clone(&connection));
        *open.by_source.entry(source).or_default() += 1;
        metrics::gauge!("gpuledger_http_connections").set(u32::try_from(open.connections.len()).unwrap_or(u32::MAX));
        Ok(connection)
    }

    /// Closes the one that can best be spared, of all those that may go: by what it waits for, then of the source that has
    /// the most. `among` is told each connection and how many its source has.
    fn make_room(&self, open: &mut Open, now: Instant, among: impl Fn(&Connection, usize) -> bool) -> Option<()> {
        let spared = open
            .connections
            .values()
            .map(|connection| (connection, open.of(connection.source)))
            .filter(|(connection, its)| among(connection, *its))
            .filter_map(|(connection, its)| {
                let state = lock(&connection.state);
                let waiting = state.waiting();
                let can_go = match waiting {
                    Waiting::First | Waiting::Next => true,
                    Waiting::Body | Waiting::Reader => now.duration_since(state.since) >= MAKES_NO_PROGRESS,
                    Waiting::Work => false,
                };
                can_go.then_some((waiting, Reverse(its), state.since, connection.number))
            })
            .min()?;
        close(open, spared.3, Closed::Room);
        Some(())
    }

    /// Closes what waits for too long.
    pub(crate) fn close_overdue(&self, now: Instant) {
        let mut open = lock(&self.open);
        let overdue: Vec<(u64, Closed)> = open
            .connections
            .values()
            .filter_map(|connection| {
                let state = lock(&connection.state);
                let (patience, why) = match state.waiting() {
                    Waiting::First => (self.limits.head, Closed::Head),
                    Waiting::Next => (self.limits.idle, Closed::Idle),
                    // whoever reads a body gives up first, with an answer
                    Waiting::Body => (self.limits.stall + MAKES_NO_PROGRESS, Closed::Stalled),
                    Waiting::Reader => (self.limits.stall, Closed::Stalled),
                    Waiting::Work => return None,
                };
                (now.duration_since(state.since) > patience).then_some((connection.number, why))
            })
            .collect();
        for (number, why) in overdue {
            close(&mut open, number, why);
        }
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        lock(&self.open).connections.len()
    }
}

/// Tells a connection to close, and counts it no longer: it ends within a second.
fn close(open: &mut Open, number: u64, why: Closed) {
    if let Some(connection) = open.remove(number) {
        metrics::counter!("gpuledger_http_connections_closed_total", "reason" => why.name()).increment(1);
        connection.close.cancel();
    }
}

impl Open {
    /// How many connections a source has.
    fn of(&self, source: IpAddr) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.connections.remove(&number)?;
        if let Some(count) = self.by_source.get_mut(&connection.source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&connection.source);
            }
        }
        metrics::gauge!("gpuledger_http_connections").set(u32::try_from(self.connections.len()).unwrap_or(u32::MAX));
        Some(connection)
    }
}

impl Connection {
    /// It is closed, by whomever.
    pub(crate) fn ended(&self) {
        lock(&self.table.open).remove(self.number);
    }

    /// Whether the head of a request ever came.
    pub(crate) fn has_asked(&self) -> bool {
        lock(&self.state).has_asked
    }

    /// A request's head has come.
    pub(crate) fn begin(self: &Arc<Self>) -> Arc<Request> {
        let mut state = lock(&self.state);
        state.has_asked = true;
        state.since = Instant::now();
        state.requests[Stage::Work as usize] += 1;
        drop(state);
        Arc::new(Request { connection: Arc::clone(self), stage: Mutex::new(Stage::Work) })
    }
}

/// One request of a connection, until its answer is sent.
#[derive(Debug)]
pub(crate) struct Request {
    connection: Arc<Connection>,
    stage: Mutex<Stage>,
}

impl Request {
    /// It stands elsewhere now, and made progress.
    pub(crate) fn is_at(&self, stage: Stage) {
        let mut before = lock(&self.stage);
        let mut state = lock(&self.connection.state);
        state.requests[*before as usize] -= 1;
        state.requests[stage as usize] += 1;
        state.since = Instant::now();
        *before = stage;
    }

    /// It waits for its body, without progress.
    pub(crate) fn waits_for_body(&self) {
        let mut before = lock(&self.stage);
        if *before == Stage::Work {
            let mut state = lock(&self.connection.state);
            state.requests[Stage::Work as usize] -= 1;
            state.requests[Stage::Body as usize] += 1;
            *before = Stage::Body;
        }
    }

    /// A part of its body came.
    pub(crate) fn body_came(&self) {
        let waits = *lock(&self.stage) != Stage::Answer;
        if waits {
            self.is_at(Stage::Work);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let stage = *lock(&self.stage);
        let mut state = lock(&self.connection.state);
        state.requests[stage as usize] -= 1;
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn connections(connections: usize, per_address: usize) -> Arc<Connections> {
        Connections::new(ConnectionLimits {
            connections,
            per_address,
            idle: 60 * SECOND,
            ..ConnectionLimits::default()
        })
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_closed(connection: &Connection) -> bool {
        connection.close.is_cancelled()
    }

    #[test]
    fn one_that_never_asked_makes_room_first_then_one_between_requests() {
        let all = connections(3, 3);
        let now = Instant::now();
        let [idle, fresh, busy] = [1, 2, 3].map(|last| all.admit(address(last), now).unwrap());
        drop(idle.begin());
        let working = busy.begin();
        let newcomer = all.admit(address(4), now + SECOND).unwrap();
        assert!(is_closed(&fresh) && !is_closed(&idle) && !is_closed(&busy));
        drop(newcomer.begin());
        let _second = all.admit(address(5), now + 2 * SECOND).unwrap().begin();
        assert!(is_closed(&idle) && !is_closed(&newcomer), "the one that is idle for longest goes first");
        let _third = all.admit(address(6), now + 3 * SECOND).unwrap().begin();
        assert!(is_closed(&newcomer));
        assert_eq!(all.admit(address(7), now + 4 * SECOND).unwrap_err(), Refused::Connections);
        drop(working);
        assert!(all.admit(address(7), now + 4 * SECOND).is_ok());
    }

    #[test]
    fn an_address_gets_no_more_than_its_share() {
        let all = connections(100, 2);
        let now = Instant::now();
        let first = all.admit(address(1), now).unwrap();
        let other = all.admit(address(2), now).unwrap();
        let _busy = all.admit(address(1), now).unwrap().begin();
        let _third = all.admit(address(1), now).unwrap().begin();
        assert!(is_closed(&first) && !is_closed(&other), "only its own connections make room for it");
        assert_eq!(all.admit(address(1), now).unwrap_err(), Refused::Address);
        let v6 = |text: &str| source(text.parse().unwrap());
        assert_eq!(v6("2001:db8:1:2::1"), v6("2001:db8:1:2:ffff::"));
        assert_ne!(v6("2001:db8:1:2::1"), v6("2001:db8:1:3::1"));
        assert_eq!(v6("::ffff:10.0.0.1"), address(1));
    }

    #[test]
    fn a_body_that_stands_still_makes_room_and_ends_by_itself() {
        let all = connections(1, 1);
        let now = Instant::now();
        let slow = all.admit(address(1), now).unwrap();
        let request = slow.begin();
        request.waits_for_body();
        assert_eq!(all.admit(address(2), now).unwrap_err(), Refused::Connections, "it may yet come");
        assert!(all.admit(address(2), now + 2 * SECOND).is_ok());
        assert!(is_closed(&slow));

        let all = connections(1, 1);
        let slow = all.admit(address(1), now).unwrap();
        let request = slow.begin();
        request.waits_for_body();
        lock(&slow.state).since -= 9 * SECOND;
        request.body_came();
        request.waits_for_body();
        all.close_overdue(now + 3 * SECOND);
        assert!(!is_closed(&slow), "nine seconds ago it stood still");
        request.is_at(Stage::Work);
        all.close_overdue(now + 3600 * SECOND);
        assert!(!is_closed(&slow), "what is in work is not cut off");
        request.is_at(Stage::Answer);
        all.close_overdue(now + 3600 * SECOND);
        assert!(is_closed(&slow));
        slow.ended();
        assert_eq!(all.len(), 0);
        assert!(lock(&all.open).by_source.is_empty());
    }

    #[test]
    fn heads_and_idle_connections_have_their_time() {
        let all = connections(9, 9);
        let now = Instant::now();
        let (fresh, idle) = (all.admit(address(1), now).unwrap(), all.admit(address(1), now).unwrap());
        drop(idle.begin());
        all.close_overdue(now + 10 * SECOND);
        assert_eq!(all.len(), 2);
        all.close_overdue(now + 11 * SECOND);
        assert!(is_closed(&fresh) && !is_closed(&idle));
        all.close_overdue(now + 61 * SECOND);
        assert!(is_closed(&idle));
    }
}
