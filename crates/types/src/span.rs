//! Instants of whole milliseconds and half-open spans between them.
//!
//! A millisecond is the ledger's grain of time: bytes × milliseconds are whole numbers, so every sum is exact.

use crate::bytes::{ByteMillis, Bytes};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// A UTC instant in whole milliseconds since 1970, between the years 1970 and 9999. As text: RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, utoipa::ToSchema)]
#[schema(
    value_type = String, format = DateTime, example = "2026-11-01T00:00:00Z",
    pattern = r"^(19[7-9][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)]
pub struct Instant(i64);

/// Why a text or number is no instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstantError {
    #[error("{0:?} is not an RFC 3339 instant such as 2026-11-01T00:00:00Z")]
    Malformed(String),
    #[error("the instant lies outside the years 1970 to 9999")]
    OutOfRange,
}

/// 9999-12-30T00:00:00Z, so that the local date still exists in every zone.
const LAST_MILLIS: i64 = 253_402_128_000_000;

impl Instant {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// The last instant that is accepted.
    pub const LAST: Self = Self(LAST_MILLIS);

    /// From milliseconds since 1970.
    ///
    /// # Errors
    /// [`InstantError::OutOfRange`] before 1970 or after 9999.
    pub const fn from_millis(millis: i64) -> Result<Self, InstantError> {
        if millis < 0 || millis > LAST_MILLIS { Err(InstantError::OutOfRange) } else { Ok(Self(millis)) }
    }

    /// From microseconds since 1970, cut down to the millisecond, as a database column gives them.
    ///
    /// # Errors
    /// [`InstantError::OutOfRange`] before 1970 or after 9999.
    pub const fn from_micros(micros: i64) -> Result<Self, InstantError> {
        Self::from_millis(micros.div_euclid(1000))
    }

    /// From a time-zone library's instant, cut down to the millisecond.
    ///
    /// # Errors
    /// [`InstantError::OutOfRange`] before 1970 or after 9999.
    pub fn from_jiff(t: jiff::Timestamp) -> Result<Self, InstantError> {
        Self::from_millis(t.as_millisecond())
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The same instant for a time-zone library.
    #[must_use]
    pub fn to_jiff(self) -> jiff::Timestamp {
        // the range of Instant is inside that of jiff::Timestamp
        jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// Later by `millis` (earlier where negative), kept inside the accepted range.
    #[must_use]
    pub fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis).clamp(0, LAST_MILLIS))
    }

    /// Later by `seconds`.
    #[must_use]
    pub fn plus_secs(self, seconds: i64) -> Self {
        self.plus_millis(seconds.saturating_mul(1000))
    }

    /// Milliseconds from `earlier` to here; negative when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// The start of the UTC hour that this instant lies in.
    #[must_use]
    pub const fn hour_start(self) -> Self {
        Self(self.0 - self.0 % 3_600_000)
    }

    /// The start of the UTC minute that this instant lies in.
    #[must_use]
    pub const fn minute_start(self) -> Self {
        Self(self.0 - self.0 % 60_000)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_jiff().fmt(f)
    }
}

impl FromStr for Instant {
    type Err = InstantError;
    fn from_str(s: &str) -> Result<Self, InstantError> {
        let malformed = || InstantError::Malformed(s.chars().take(40).collect());
        if !is_rfc_3339(s.as_bytes()) {
            return Err(malformed());
        }
        Self::from_jiff(s.parse().map_err(|_| malformed())?)
    }
}

/// Whether a text has the form of RFC 3339, with at most nine decimals. The time-zone library takes more: names of
/// zones, other calendars, fewer digits.
fn is_rfc_3339(text: &[u8]) -> bool {
    let has_form = |text: &[u8], form: &[u8]| {
        text.len() == form.len()
            && text.iter().zip(form).all(|(b, f)| if *f == b'0' { b.is_ascii_digit() } else { b == f })
    };
    let Some((date, rest)) = text.split_at_checked(10) else { return false };
    let Some((time, rest)) = rest.split_at_checked(9) else { return false };
    let rest = match rest.strip_prefix(b".") {
        Some(decimals) => {
            let digits = decimals.iter().take_while(|b| b.is_ascii_digit()).count();
            if digits == 0 || digits > 9 {
                return false;
            }
            decimals.get(digits..).unwrap_or_default()
        }
        None => rest,
    };
    has_form(date, b"0000-00-00")
        && matches!(time.first(), Some(b'T' | b't' | b' '))
        && has_form(time.get(1..).unwrap_or_default(), b"00:00:00")
        && (matches!(rest, b"Z" | b"z") || has_form(rest, b"+00:00") || has_form(rest, b"-00:00"))
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// A half-open span of time: its start belongs to it, its end does not. Never negative; may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Span {
    start: Instant,
    end: Instant,
}

impl Span {
    /// From `start` until `end`; `None` when `end` lies before `start`.
    #[must_use]
    pub fn new(start: Instant, end: Instant) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// From `start` until `end`, or empty at `start` when `end` lies before it.
    #[must_use]
    pub fn clamped(start: Instant, end: Instant) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Its first instant.
    #[must_use]
    pub const fn start(&self) -> Instant {
        self.start
    }

    /// The first instant after it.
    #[must_use]
    pub const fn end(&self) -> Instant {
        self.end
    }

    /// Its length in milliseconds.
    #[must_use]
    pub const fn millis(&self) -> i64 {
        self.end.0 - self.start.0
    }

    /// Whether it has no length.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 == self.start.0
    }

    /// Whether the instant lies in it.
    #[must_use]
    pub fn contains(&self, t: Instant) -> bool {
        self.start <= t && t < self.end
    }

    /// What it shares with another span; `None` when that has no length.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// `bytes` held all through it.
    #[must_use]
    pub fn of(&self, bytes: Bytes) -> ByteMillis {
        bytes.over_millis(self.millis())
    }

    /// The span cut at each of the instants that lies inside it; the pieces are in order and none is empty.
    #[must_use]
    pub fn cut_at(&self, edges: impl IntoIterator<Item = Instant>) -> Vec<Self> {
        let mut cuts: Vec<Instant> = edges.into_iter().filter(|e| *e > self.start && *e < self.end).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::with_capacity(cuts.len() + 1);
        let mut from = self.start;
        for edge in cuts.into_iter().chain([self.end]) {
            if from < edge {
                pieces.push(Self { start: from, end: edge });
            }
            from = edge;
        }
        pieces
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_join_to_the_whole(start in 0i64..1000, len in 0i64..1000, cuts in proptest::collection::vec(0i64..2000, 0..8)) {
            let span = Span::clamped(Instant(start), Instant(start + len));
            let pieces = span.cut_at(cuts.into_iter().map(Instant));
            prop_assert_eq!(pieces.iter().map(Span::millis).sum::<i64>(), len);
            prop_assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
            prop_assert!(pieces.iter().all(|p| !p.is_empty()));
        }
    }

    #[test]
    fn instants_refuse_what_has_no_date() {
        assert!("2026-02-30T00:00:00Z".parse::<Instant>().is_err());
        assert!("-000001-01-01T00:00:00Z".parse::<Instant>().is_err());
        for good in ["2026-11-01T00:00:00z", "2026-11-01 00:00:00+09:00", "2026-11-01t00:00:00.123456789-01:58"] {
            assert!(good.parse::<Instant>().is_ok(), "{good} was refused");
        }
        for bad in [
            "2026-11-01T00:00:00Z[UTC]",
            "2026-11-01T00:00:00+09:00[Asia/Seoul]",
            "2026-11-01T00:00Z",
            "20261101T000000Z",
            "+002026-11-01T00:00:00Z",
            "2026-W44-7T00:00:00Z",
            "2026-11-01T00:00:00.Z",
            "2026-11-01T00:00:00.1234567890Z",
            "2026-11-01T00:00:00,1Z",
            "2026-11-01T00:00:00+09",
            "2026-11-01T00:00:00",
            "2026-11-01",
            "",
        ] {
            assert!(bad.parse::<Instant>().is_err(), "{bad} was accepted");
        }
        assert_eq!("2026-11-01T00:00:00.0019Z".parse::<Instant>().unwrap().as_millis() % 1000, 1);
    }
}
