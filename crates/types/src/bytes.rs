//! Memory in bytes and its use in byte-milliseconds.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// An amount of memory in bytes.
///
/// As text: `20GiB` is 20·2³⁰, `20GB` is 20·10⁹, `20480MiB`; a bare number is bytes; nothing else is accepted.
/// In JSON it is a number of bytes on output, and a number or such a text on input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, utoipa::ToSchema)]
#[schema(value_type = u64, maximum = 9_223_372_036_854_775_807_u64, example = 21_474_836_480_u64)]
pub struct Bytes(pub u64);

/// An amount of memory as it may be given: a number of bytes, or a text such as `20GiB`.
// what `Bytes` reads; what it writes is a number
#[derive(Debug, Clone, utoipa::ToSchema)]
#[schema(example = "20GiB")]
#[serde(untagged)]
pub enum BytesGiven {
    /// In bytes.
    Number(Bytes),
    /// With a unit, or without one in bytes; at most 2⁶³−1 bytes.
    Text(BytesText),
}

/// A whole number of bytes, or a whole number and a unit: at most 2⁶³−1 bytes in all.
#[derive(Debug, Clone, utoipa::ToSchema)]
#[schema(value_type = String, max_length = 24, pattern = "^[0-9]{1,19}( ?(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB))?$", example = "20GiB")]
pub struct BytesText(pub String);

/// Why a text is no amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    #[error("is empty: give a whole number with a unit, such as 20GiB")]
    Empty,
    #[error("{0:?} is not a whole number of bytes, or a whole number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
    Malformed(String),
    #[error("{0:?} is more than 2^63-1 bytes")]
    TooLarge(String),
}

/// Digits of 2⁶³−1.
const MOST_DIGITS: usize = 19;
/// Digits, a space and a unit.
const LONGEST_TEXT: usize = MOST_DIGITS + 5;

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The most that is accepted anywhere: it fits a signed 64-bit column.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The sum, or [`Bytes::MAX`] where it would be more.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0).min(Self::MAX.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The product, or [`Bytes::MAX`] where it would be more.
    #[must_use]
    pub fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n).min(Self::MAX.0))
    }

    /// Held for `millis` milliseconds. Negative durations count as none.
    #[must_use]
    pub fn over_millis(self, millis: i64) -> ByteMillis {
        ByteMillis(i128::from(self.0) * i128::from(millis.max(0)))
    }

    /// As a signed 64-bit column holds it.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// From a signed 64-bit column; a negative value reads as nothing.
    #[must_use]
    pub fn from_i64(n: i64) -> Self {
        Self(u64::try_from(n).unwrap_or(0))
    }
}

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        if text.is_empty() {
            return Err(BytesError::Empty);
        }
        let malformed = || BytesError::Malformed(text.chars().take(40).collect());
        if text.len() > LONGEST_TEXT {
            return Err(malformed());
        }
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        if digits.is_empty() {
            return Err(malformed());
        }
        let factor = match unit {
            "" if digits_end == text.len() => 1,
            _ => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?.1,
        };
        let too_large = || BytesError::TooLarge(text.chars().take(40).collect());
        if digits.len() > MOST_DIGITS {
            return Err(too_large());
        }
        let count: u64 = digits.parse().map_err(|_| too_large())?;
        let bytes = count.checked_mul(factor).ok_or_else(too_large)?;
        if bytes > Self::MAX.0 { Err(too_large()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that divides the amount exactly, so that the text parses back to the same amount.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of bytes, or a text such as \"20GiB\"")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Bytes, E> {
                if n > Bytes::MAX.0 {
                    return Err(E::custom(BytesError::TooLarge(n.to_string())));
                }
                Ok(Bytes(n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Bytes, E> {
                u64::try_from(n).map(Bytes).map_err(|_| E::custom(BytesError::Malformed(n.to_string())))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// Bytes times milliseconds. Never negative in a stored fact; differences may be.
///
/// In JSON it is a decimal string, because it outgrows 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, utoipa::ToSchema)]
#[schema(value_type = String, pattern = "^-?[0-9]{1,28}$", example = "77309411328000")]
pub struct ByteMillis(pub i128);

/// The text is no whole number of byte-milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a whole number of at most 28 digits")]
pub struct ByteMillisError(String);

impl ByteMillis {
    /// Nothing.
    pub const ZERO: Self = Self(0);
}

impl std::ops::Add for ByteMillis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::ops::Sub for ByteMillis {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::AddAssign for ByteMillis {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl std::iter::Sum for ByteMillis {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|b| b.0).sum())
    }
}

impl fmt::Display for ByteMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ByteMillis {
    type Err = ByteMillisError;
    /// At most 28 digits, as columns hold them.
    fn from_str(s: &str) -> Result<Self, ByteMillisError> {
        let digits = s.strip_prefix('-').unwrap_or(s);
        let well_formed = (1..=28).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        let value = if well_formed { s.parse().ok() } else { None };
        value.map(Self).ok_or_else(|| ByteMillisError(s.chars().take(40).collect()))
    }
}

impl Serialize for ByteMillis {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteMillis {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_mean_what_the_design_says() {
        let read = |s: &str| s.parse::<Bytes>();
        assert_eq!(read("20GiB"), Ok(Bytes(21_474_836_480)));
        assert_eq!(read("20GB"), Ok(Bytes(20_000_000_000)));
        assert_eq!(read("20480MiB"), Ok(Bytes::gib(20)));
        assert_eq!(read("16376 MiB"), Ok(Bytes(17_171_480_576)));
        assert_eq!(read("7"), Ok(Bytes(7)));
        for bad in [
            "",
            "NaN",
            "-1",
            "-1GiB",
            "1.5GiB",
            "20G",
            "20gib",
            "GiB",
            "1e9",
            "inf",
            "20GiB ",
            " 20GiB",
            "0x10",
            "9 ",
            "00000000000000000001",
            "20  GiB",
            "9223372036854775808B",
        ] {
            assert!(read(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(matches!(read("99999999999TiB"), Err(BytesError::TooLarge(_))));
    }

    #[test]
    fn byte_milliseconds_fit_their_columns() {
        let most = "9".repeat(28);
        for good in ["0", "-1", most.as_str()] {
            assert_eq!(good.parse::<ByteMillis>().unwrap().to_string(), good);
        }
        let more = "1".repeat(29);
        for bad in ["", "-", "+1", "1.0", "1e3", " 1", more.as_str(), "NaN"] {
            assert!(bad.parse::<ByteMillis>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn json_takes_numbers_and_texts_but_no_fractions() {
        assert_eq!(serde_json::from_str::<Bytes>("5").unwrap(), Bytes(5));
        assert_eq!(serde_json::from_str::<Bytes>("\"5GiB\"").unwrap(), Bytes::gib(5));
        for bad in ["-5", "5.5", "\"NaN\"", "null", "true", "1e3", "18446744073709551615"] {
            assert!(serde_json::from_str::<Bytes>(bad).is_err(), "{bad} was accepted");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(n in 0..=Bytes::MAX.0) {
            prop_assert_eq!(Bytes(n).to_string().parse::<Bytes>(), Ok(Bytes(n)));
        }
    }
}
