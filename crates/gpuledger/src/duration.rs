//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `1d`, or joined as `1h30m`, the larger first. A bare
//! number is refused, because nobody can tell whether it means seconds.

use serde::{Deserialize, Deserializer, de};
use std::time::Duration;

/// The longest that is accepted: 366 days.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// Units from the largest to the smallest, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("{0:?} is not a duration such as 500ms, 30s, 5m, 2h, 1d or 1h30m")]
    Malformed(String),
    #[error("{0:?} is longer than 366 days")]
    TooLong(String),
}

/// Reads a duration.
///
/// # Errors
/// [`DurationError`] for anything but whole numbers with units, the larger unit first, up to 366 days together.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let shown = || text.chars().take(40).collect::<String>();
    let malformed = || DurationError::Malformed(shown());
    let too_long = || DurationError::TooLong(shown());
    let mut rest = text;
    let mut millis = 0_u64;
    let mut units = UNITS.as_slice();
    if rest.is_empty() {
        return Err(malformed());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let letters = rest[digits..].find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len() - digits);
        let (count, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        let at = units.iter().position(|(name, _)| *name == unit).ok_or_else(malformed)?;
        if count.is_empty() {
            return Err(malformed());
        }
        let count: u64 = count.parse().map_err(|_| too_long())?;
        millis = count.checked_mul(units[at].1).and_then(|more| millis.checked_add(more)).ok_or_else(too_long)?;
        units = &units[at + 1..];
        rest = &rest[digits + letters..];
    }
    let duration = Duration::from_millis(millis);
    if duration > LONGEST { Err(too_long()) } else { Ok(duration) }
}

/// For `#[serde(deserialize_with = …)]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(d)?).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_can_be_joined_from_the_larger_to_the_smaller() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("0s", 0),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("90m", 5_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_a_duration() {
        for bad in ["", "5", "h", "-1s", "1.5h", "1H", "1 h", "30m1h", "1h1h", "1w", "1s ", "inf", "NaN", "1h30"] {
            assert!(matches!(parse(bad), Err(DurationError::Malformed(_))), "{bad:?}: {:?}", parse(bad));
        }
        for long in ["367d", "99999999999999999999s", "18446744073709551615d"] {
            assert!(matches!(parse(long), Err(DurationError::TooLong(_))), "{long:?}");
        }
    }
}
