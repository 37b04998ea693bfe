//! What a person writes beside a decision, for whoever reads it later.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, str::FromStr};

/// A remark: 1 to 2,000 bytes of UTF-8, not all of it white space, without control characters but tabs and line breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(
    value_type = String, min_length = 1, max_length = 2000,
    pattern = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$",
    example = "the node's clock was set by hand that morning"
)]
pub struct Remark(String);

/// Why a text is no remark.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemarkError {
    #[error("is empty: say why")]
    Empty,
    #[error("is {0} bytes long; at most 2000 are allowed")]
    TooLong(usize),
    #[error("contains a control character")]
    Control,
}

impl Remark {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Remark> for String {
    fn from(remark: Remark) -> Self {
        remark.0
    }
}

impl FromStr for Remark {
    type Err = RemarkError;
    fn from_str(s: &str) -> Result<Self, RemarkError> {
        if s.trim().is_empty() {
            return Err(RemarkError::Empty);
        }
        if s.len() > 2000 {
            return Err(RemarkError::TooLong(s.len()));
        }
        if s.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
            return Err(RemarkError::Control);
        }
        Ok(Self(s.to_owned()))
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Remark {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_says_something_that_can_be_stored_and_shown() {
        for good in ["a", "two\nlines\tand a tab", "사유"] {
            assert_eq!(good.parse::<Remark>().unwrap().as_str(), good);
        }
        let long = "a".repeat(2001);
        for bad in ["", " \n", "a\u{0}b", "\u{1b}[31m", long.as_str()] {
            assert!(bad.parse::<Remark>().is_err(), "{bad:?} was accepted");
        }
    }
}
