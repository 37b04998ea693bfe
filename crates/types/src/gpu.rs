//! How cards are named.

use crate::name::{Name, NameError};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, str::FromStr};

/// A card's model as its driver names it, such as `NVIDIA H100 80GB HBM3`; compared exactly.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(
    value_type = String, min_length = 1, max_length = 200, example = "NVIDIA H100 80GB HBM3",
    // as a name's
    pattern = r"^[^\s\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]([^\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]*[^\s\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff])?$"
)]
pub struct GpuModel(Name);

impl GpuModel {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<Name> for GpuModel {
    fn from(name: Name) -> Self {
        Self(name)
    }
}

impl FromStr for GpuModel {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        s.parse().map(Self)
    }
}

impl fmt::Display for GpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A card's own name, `GPU-` and a UUID, as the driver reports it. Indexes and bus addresses change at boot; this does not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(
    value_type = String, example = "GPU-8c5f0a6e-2b1d-4d39-9a7b-0c1f4be0a001",
    pattern = "^GPU-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
)]
pub struct GpuUuid(String);

/// The text is no card's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GPU's UUID: GPU- followed by a UUID")]
pub struct GpuUuidError(String);

impl GpuUuid {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GpuUuid {
    type Err = GpuUuidError;
    fn from_str(s: &str) -> Result<Self, GpuUuidError> {
        let error = || GpuUuidError(s.chars().take(60).collect());
        let rest = s.strip_prefix("GPU-").ok_or_else(error)?;
        let uuid = crate::id::hyphenated(rest).ok_or_else(error)?;
        Ok(Self(format!("GPU-{}", uuid.hyphenated())))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for GpuUuid {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}
