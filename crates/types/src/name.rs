//! Names that people give to tenants, projects, pools, plans and nodes.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, str::FromStr};

/// A name: 1 to 200 bytes of UTF-8 without control characters, not beginning or ending in white space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(
    value_type = String, min_length = 1, max_length = 200, example = "vision-lab",
    // no control characters, no marks of direction, and no white space at either end
    pattern = r"^[^\s\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]([^\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]*[^\s\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff])?$"
)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("is empty")]
    Empty,
    #[error("is {0} bytes long; at most 200 are allowed")]
    TooLong(usize),
    #[error("contains a control character")]
    Control,
    #[error("begins or ends with white space")]
    Padded,
}

impl Name {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        if s.is_empty() {
            return Err(NameError::Empty);
        }
        if s.len() > 200 {
            return Err(NameError::TooLong(s.len()));
        }
        if s.chars().any(|c| c.is_control() || is_invisible_direction(c)) {
            return Err(NameError::Control);
        }
        if s.trim() != s {
            return Err(NameError::Padded);
        }
        Ok(Self(s.to_owned()))
    }
}

/// Marks that reorder the text around them can make one name look like another.
const fn is_invisible_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_script_but_nothing_unprintable() {
        for good in ["비전 연구실", "Đường Nguyễn", "=1+1", "a"] {
            assert!(good.parse::<Name>().is_ok(), "{good:?} was refused");
        }
        let long = "a".repeat(201);
        for bad in ["", "a\u{0}b", "a\nb", "\u{1b}[31m", " a", "a ", long.as_str(), "a\u{202e}b", "\u{85}"] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?} was accepted");
        }
    }
}
