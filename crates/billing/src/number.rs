//! The numbers that issued invoices carry.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// An invoice's number: its series and its place there, from 1 without gaps; as text `GL-000001`. Numbers of one series
/// sort as text up to the millionth.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvoiceNumber {
    series: String,
    serial: u64,
}

/// Why something is no invoice number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    #[error("{0:?} is no series: 1 to 20 of A-Z and 0-9, a letter first")]
    Series(String),
    #[error("numbers of a series begin with 1")]
    Zero,
    #[error("{0:?} is not an invoice number such as GL-000001")]
    Malformed(String),
}

impl InvoiceNumber {
    /// The `serial`th number of a series. The series is 1 to 20 of A-Z and 0-9, a letter first, so that no text can be
    /// read as two numbers and none can be mistaken for a formula.
    ///
    /// # Errors
    /// A malformed series, or a serial of 0.
    pub fn new(series: &str, serial: u64) -> Result<Self, NumberError> {
        let well_formed = (1..=20).contains(&series.len())
            && series.starts_with(|c: char| c.is_ascii_uppercase())
            && series.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
        if !well_formed {
            return Err(NumberError::Series(series.chars().take(40).collect()));
        }
        if serial == 0 {
            return Err(NumberError::Zero);
        }
        Ok(Self { series: series.to_owned(), serial })
    }

    /// The series.
    #[must_use]
    pub fn series(&self) -> &str {
        &self.series
    }

    /// The place in the series, from 1.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }
}

impl fmt::Display for InvoiceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:06}", self.series, self.serial)
    }
}

impl FromStr for InvoiceNumber {
    type Err = NumberError;
    fn from_str(s: &str) -> Result<Self, NumberError> {
        let error = || NumberError::Malformed(s.chars().take(40).collect());
        let (series, serial) = s.split_once('-').ok_or_else(error)?;
        let number = Self::new(series, serial.parse().map_err(|_| error())?)?;
        if number.to_string() == s { Ok(number) } else { Err(error()) }
    }
}

impl Serialize for InvoiceNumber {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InvoiceNumber {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_text() {
        for (serial, text) in [(1, "GL-000001"), (999_999, "GL-999999"), (1_000_000, "GL-1000000")] {
            let number = InvoiceNumber::new("GL", serial).unwrap();
            assert_eq!(number.to_string(), text);
            assert_eq!(text.parse(), Ok(number));
        }
        for bad in [
            "GL-1",
            "GL-0000001",
            "GL-000000",
            "gl-000001",
            "-000001",
            "GL000001",
            "GL-+00001",
            "GL-A-000001",
            "=1-000001",
            "1G-000001",
            "",
        ] {
            assert!(bad.parse::<InvoiceNumber>().is_err(), "{bad:?} was accepted");
        }
    }
}
