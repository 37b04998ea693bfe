//! Limits on what fails: logins and checks of credentials, per source and per account. In memory and in real time, because
//! what is limited is the caller's patience and not a fact of the ledger; each server counts for itself.
//!
//! Each limit is a bucket: a failure takes a token, tokens come back at a steady rate, and an empty bucket answers 429 with
//! `Retry-After`. A login takes its tokens before the password is looked at, so that many at once are counted, and gets
//! them back when it is right.
//!
//! Nobody is locked out by what others do: whoever proved themselves from a source lately is bound by no limit on that
//! source or account but the one for both together, and a credential that was good from a source lately is always looked
//! at.

use crate::problem::Problem;
use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap},
};
use ipnet::IpNet;
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A network, or one address, whose word on whom it forwards is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct TrustedProxy(IpNet);

impl TryFrom<String> for TrustedProxy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self).map_err(|_| format!("{text:?} is neither an address nor a network such as 10.0.0.0/8"))
    }
}

/// How many failures at once, and how long until one is forgiven.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    every: Duration,
}

/// One person's account from one source.
const LOGIN: Rate = Rate { burst: 10, every: Duration::from_secs(30) };
/// All accounts from one source: many people may share an address.
const LOGIN_SOURCE: Rate = Rate { burst: 60, every: Duration::from_secs(2) };
/// One account from everywhere: guessing from many sources is slowed down, and nobody waits long.
const LOGIN_ACCOUNT: Rate = Rate { burst: 100, every: Duration::from_secs(1) };
/// Tokens, keys and node credentials from one source: a failure costs the database one question.
const CREDENTIAL: Rate = Rate { burst: 300, every: Duration::from_millis(200) };
/// How long a source stays known for what it proved.
const KNOWN: Duration = Duration::from_secs(86_400);
/// The most entries of each kind that are kept.
const MOST: usize = 20_000;

/// The limits of one server; cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    trusted: Vec<TrustedProxy>,
    /// Entries are kept under a hash with secret keys: neither addresses nor credentials stand in memory.
    hasher: RandomState,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// When a bucket is full again; absent for one that is full.
    full_at: HashMap<u64, Instant>,
    /// When something was last proved.
    proved_at: HashMap<u64, Instant>,
}

/// A login that has taken its tokens.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    guard: &'a Guard,
    pair: u64,
    taken: Vec<(u64, Rate)>,
}

impl Guard {
    /// With nothing counted yet. `trusted` are those whose `X-Forwarded-For` is read.
    #[must_use]
    pub fn new(trusted: Vec<TrustedProxy>) -> Self {
        Self(Arc::new(Inner { trusted, hasher: RandomState::new(), kept: Mutex::default() }))
    }

    /// The address that a request comes from, as far as known: that of the peer, or what the nearest trusted proxies say
    /// of whom they forward.
    pub(crate) fn source(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_canonical())?;
        let mut source = peer;
        let said: Vec<&str> =
            headers.get_all("x-forwarded-for").iter().flat_map(|v| v.to_str().unwrap_or("").split(',')).collect();
        for said in said.into_iter().rev() {
            if !self.trusts(source) {
                break;
            }
            // whatever stands further left is not worth more than what cannot be read
            let Ok(address) = said.trim().parse::<IpAddr>() else { break };
            source = address.to_canonical();
        }
        Some(source)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.trusted.iter().any(|proxy| proxy.0.contains(&address))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // each change replaces whole values, so that what a panic leaves is good
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, kind: &str, what: impl Hash) -> u64 {
        self.0.hasher.hash_one((kind, what))
    }

    /// Lets a login be tried, or says how long to wait.
    pub(crate) fn login(&self, account: &str, source: Option<IpAddr>) -> Result<Attempt<'_>, Problem> {
        self.login_at(account, source, Instant::now()).map_err(limited)
    }

    fn login_at(&self, account: &str, source: Option<IpAddr>, now: Instant) -> Result<Attempt<'_>, Duration> {
        let (account, source) = (account.to_lowercase(), network_of(source));
        let pair = self.key("login", (&account, source));
        let mut kept = self.kept();
        let mut wanted = vec![(pair, LOGIN)];
        if !kept.is_proved(pair, now) {
            wanted.push((self.key("login source", source), LOGIN_SOURCE));
            wanted.push((self.key("login account", &account), LOGIN_ACCOUNT));
        }
        if let Some(wait) = wanted.iter().filter_map(|(key, rate)| kept.wait(*key, *rate, now)).max() {
            return Err(wait);
        }
        for (key, rate) in &wanted {
            kept.take(*key, *rate, now);
        }
        drop(kept);
        Ok(Attempt { guard: self, pair, taken: wanted })
    }

    /// Lets a credential be looked at, or says how long to wait.
    pub(crate) fn credential(&self, credential: &str, source: Option<IpAddr>) -> Result<(), Problem> {
        self.credential_at(credential, source, Instant::now()).map_err(limited)
    }

    fn credential_at(&self, credential: &str, source: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let source = network_of(source);
        let kept = self.kept();
        match kept.wait(self.key("credential source", source), CREDENTIAL, now) {
            Some(wait) if !kept.is_proved(self.key("credential", (credential, source)), now) => Err(wait),
            _ => Ok(()),
        }
    }

    /// Notes how the look at a credential ended.
    pub(crate) fn looked_at(&self, credential: &str, source: Option<IpAddr>, is_good: bool) {
        let (now, source) = (Instant::now(), network_of(source));
        let (pair, source) = (self.key("credential", (credential, source)), self.key("credential source", source));
        let mut kept = self.kept();
        if is_good {
            kept.prove(pair, now);
        } else {
            kept.proved_at.remove(&pair);
            kept.take(source, CREDENTIAL, now);
        }
    }
}

impl Attempt<'_> {
    /// Gives the tokens back: it was right, or nothing was found out.
    pub fn undo(self, is_right: bool) {
        let mut kept = self.guard.kept();
        if is_right {
            kept.prove(self.pair, Instant::now());
        }
        for (key, rate) in &self.taken {
            kept.give_back(*key, *rate);
        }
    }
}

impl Kept {
    /// How long until the bucket has a token; nothing where it has one.
    fn wait(&self, key: u64, rate: Rate, now: Instant) -> Option<Duration> {
        let missing = self.full_at.get(&key)?.saturating_duration_since(now);
        (missing + rate.every).checked_sub(rate.every * rate.burst).filter(|wait| !wait.is_zero())
    }

    fn take(&mut self, key: u64, rate: Rate, now: Instant) {
        if self.full_at.len() >= MOST && !self.full_at.contains_key(&key) {
            self.full_at.retain(|_, full_at| *full_at > now);
            drop_first(&mut self.full_at);
        }
        let full_at = self.full_at.get(&key).copied().unwrap_or(now).max(now);
        self.full_at.insert(key, (full_at + rate.every).min(now + rate.every * rate.burst));
    }

    fn give_back(&mut self, key: u64, rate: Rate) {
        if let Some(full_at) = self.full_at.get_mut(&key) {
            *full_at = full_at.checked_sub(rate.every).unwrap_or(*full_at);
        }
    }

    fn is_proved(&self, key: u64, now: Instant) -> bool {
        self.proved_at.get(&key).is_some_and(|at| now.saturating_duration_since(*at) < KNOWN)
    }

    fn prove(&mut self, key: u64, now: Instant) {
        if self.proved_at.len() >= MOST && !self.proved_at.contains_key(&key) {
            drop_first(&mut self.proved_at);
        }
        self.proved_at.insert(key, now);
    }
}

/// Drops the earliest quarter where there are too many: the fullest buckets, or what was proved longest ago.
fn drop_first(entries: &mut HashMap<u64, Instant>) {
    if entries.len() < MOST {
        return;
    }
    let mut times: Vec<Instant> = entries.values().copied().collect();
    let quarter = times.len() / 4;
    let (_, &mut edge, _) = times.select_nth_unstable(quarter);
    entries.retain(|_, at| *at > edge);
}

/// Whoever has an IPv6 address has its /64.
fn network_of(source: Option<IpAddr>) -> Option<IpAddr> {
    source.map(|address| match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    })
}

fn limited(wait: Duration) -> Problem {
    metrics::counter!("gpuledger_limited_total").increment(1);
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    Problem::too_many_failures(seconds.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn guard(trusted: &[&str]) -> Guard {
        Guard::new(trusted.iter().map(|text| TrustedProxy::try_from((*text).to_owned()).unwrap()).collect())
    }

    fn tries(guard: &Guard, account: &str, source: Option<IpAddr>, now: Instant, most: usize) -> usize {
        (0..most).take_while(|_| guard.login_at(account, source, now).is_ok()).count()
    }

    #[test]
    fn guesses_at_one_account_from_one_source_end_and_begin_again_slowly() {
        let (guard, now) = (guard(&[]), Instant::now());
        assert_eq!(tries(&guard, "a@b", from("192.0.2.1"), now, 100), 10);
        assert_eq!(tries(&guard, "A@B", from("192.0.2.1"), now, 100), 0, "case makes no other account");
        let wait = guard.login_at("a@b", from("192.0.2.1"), now).unwrap_err();
        assert_eq!(wait, LOGIN.every);
        assert_eq!(tries(&guard, "a@b", from("192.0.2.1"), now + wait, 100), 1);
        // what is asked meanwhile makes nobody wait longer
        assert_eq!(tries(&guard, "a@b", from("192.0.2.1"), now + wait * 2, 100), 1);
        assert_eq!(tries(&guard, "a@b", from("192.0.2.2"), now, 100), 10);
    }

    #[test]
    fn one_source_does_not_try_one_account_after_the_other() {
        let (guard, now) = (guard(&[]), Instant::now());
        let from_one = |source| (0..20).map(|n| tries(&guard, &n.to_string(), from(source), now, 100)).sum::<usize>();
        assert_eq!(from_one("192.0.2.1"), 60);
        assert_eq!(from_one("192.0.2.2"), 60);
    }

    #[test]
    fn right_ones_are_not_counted_also_when_many_come_at_once() {
        let (guard, now) = (guard(&[]), Instant::now());
        for _ in 0..1000 {
            guard.login_at("a@b", from("192.0.2.1"), now).unwrap().undo(true);
        }
        let attempts: Vec<_> = (0..11).map(|_| guard.login_at("a@b", from("192.0.2.1"), now)).collect();
        assert_eq!(attempts.iter().filter(|attempt| attempt.is_ok()).count(), 10, "each takes its token before");
        attempts.into_iter().flatten().for_each(|attempt| attempt.undo(true));
        assert!(guard.login_at("a@b", from("192.0.2.1"), now).is_ok());
    }

    #[test]
    fn whoever_attacks_an_account_does_not_lock_its_owner_out() {
        let (guard, now) = (guard(&[]), Instant::now());
        guard.login_at("a@b", from("192.0.2.1"), now).unwrap().undo(true);
        let mut let_through = 0;
        for n in 0..50_u8 {
            let_through += tries(&guard, "a@b", from(&format!("198.51.100.{n}")), now, 100);
        }
        assert_eq!(let_through, 100, "all sources together");
        assert!(guard.login_at("a@b", from("192.0.2.1"), now).is_ok(), "from where the owner logged in before");
        let wait = guard.login_at("a@b", from("203.0.113.1"), now).unwrap_err();
        assert_eq!(wait, Duration::from_secs(1), "from elsewhere the owner waits a moment");
    }

    #[test]
    fn bad_credentials_stop_their_source_but_for_what_was_good_there() {
        let (guard, now, here) = (guard(&[]), Instant::now(), from("192.0.2.1"));
        guard.looked_at("good", here, true);
        for n in 0..400 {
            guard.looked_at(&format!("bad {n}"), here, false);
        }
        assert!(guard.credential_at("bad", here, now).is_err());
        assert!(guard.credential_at("good", here, now).is_ok());
        assert!(guard.credential_at("good", from("192.0.2.2"), now).is_ok());
        let soon = now + Duration::from_secs(10);
        assert!(
            guard.credential_at("bad", here, soon).is_ok(),
            "whatever came above the limit makes nobody wait longer"
        );
        guard.looked_at("good", here, false);
        assert!(guard.credential_at("good", here, now).is_err(), "it is good no more");
    }

    #[test]
    fn a_flood_of_sources_takes_bounded_memory_and_forgives_the_least_first() {
        let (guard, now) = (guard(&[]), Instant::now());
        assert_eq!(tries(&guard, "a@b", from("192.0.2.1"), now, 100), 10);
        for n in 0..30_000_u32 {
            drop(guard.login_at(&n.to_string(), Some(Ipv6Addr::from_bits(u128::from(n) << 64).into()), now));
            guard.looked_at(&n.to_string(), Some(IpAddr::from(n.to_be_bytes())), true);
        }
        assert!(guard.kept().full_at.len() <= MOST && guard.kept().proved_at.len() <= MOST);
        assert_eq!(tries(&guard, "a@b", from("192.0.2.1"), now, 100), 0);
    }

    #[test]
    fn an_ipv6_source_is_its_network() {
        assert_eq!(network_of(from("2001:db8:1:2:3:4:5:6")), from("2001:db8:1:2::"));
        assert_eq!(network_of(from("192.0.2.7")), from("192.0.2.7"));
    }

    #[test]
    fn only_trusted_proxies_say_whom_they_forward() {
        let source = |trusted: &[&str], peer: &str, said: &[&str]| {
            let mut extensions = Extensions::new();
            extensions.insert(ConnectInfo(SocketAddr::new(peer.parse().unwrap(), 1)));
            let mut headers = HeaderMap::new();
            for line in said {
                headers.append("x-forwarded-for", HeaderValue::from_str(line).unwrap());
            }
            guard(trusted).source(&extensions, &headers).unwrap().to_string()
        };
        assert_eq!(source(&[], "192.0.2.1", &["203.0.113.9"]), "192.0.2.1");
        assert_eq!(source(&["10.0.0.0/8"], "192.0.2.1", &["203.0.113.9"]), "192.0.2.1");
        assert_eq!(source(&["10.0.0.0/8"], "10.1.1.1", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(source(&["10.0.0.0/8"], "::ffff:10.1.1.1", &["203.0.113.9"]), "203.0.113.9");
        // what the client itself claims stands left of what the proxy says
        assert_eq!(source(&["10.0.0.0/8"], "10.1.1.1", &["1.1.1.1, 203.0.113.9"]), "203.0.113.9");
        assert_eq!(source(&["10.0.0.0/8"], "10.1.1.1", &["1.1.1.1", "203.0.113.9, 10.2.2.2"]), "203.0.113.9");
        assert_eq!(source(&["10.1.1.1"], "10.1.1.1", &["203.0.113.9, rubbish"]), "10.1.1.1");
        assert_eq!(source(&["::1"], "::1", &[]), "::1");
        for bad in ["", "10.0.0.0/33", "proxy.example"] {
            assert!(TrustedProxy::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
