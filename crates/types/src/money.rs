//! Currencies, prices and billing units. Amounts are computed in `billing`; here is what they are computed from.

use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Why a text is no currency, price or unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    #[error("{0:?} is not an ISO 4217 currency code such as USD")]
    Currency(String),
    #[error("{0:?} is not a decimal number")]
    Malformed(String),
    #[error("a price cannot be negative")]
    Negative,
    #[error("a price has at most nine decimals and is below 10^15")]
    OutOfRange,
    #[error("{0:?} is not one of GB-second, GB-hour, GiB-hour")]
    Unit(String),
}

/// An ISO 4217 currency that has minor units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, utoipa::ToSchema)]
#[schema(value_type = String, pattern = "^[A-Z]{3}$", example = "KRW")]
pub struct Currency(iso_currency::Currency);

impl Currency {
    /// Its three-letter code.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.0.code()
    }

    /// Decimals of its minor unit: JPY and KRW 0, USD 2, KWD 3.
    #[must_use]
    pub fn minor_digits(self) -> u32 {
        u32::from(self.0.exponent().unwrap_or(0))
    }

    /// An amount in minor units as a decimal number: 1234 USD cents are `12.34`.
    #[must_use]
    pub fn decimal(self, minor: i64) -> Decimal {
        Decimal::new(minor, self.minor_digits())
    }
}

impl FromStr for Currency {
    type Err = MoneyError;
    fn from_str(s: &str) -> Result<Self, MoneyError> {
        iso_currency::Currency::from_code(s)
            .filter(|c| c.exponent().is_some())
            .map(Self)
            .ok_or_else(|| MoneyError::Currency(s.chars().take(40).collect()))
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A price of one billing unit in nano-units of a currency: never negative, nine decimals, below 10¹⁵ of the currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, utoipa::ToSchema)]
#[schema(value_type = String, pattern = r"^[0-9]{1,15}(\.[0-9]{1,9})?$", example = "0.0125")]
pub struct Price(i128);

impl Price {
    /// Free of charge.
    pub const ZERO: Self = Self(0);

    /// From nano-units of the currency.
    ///
    /// # Errors
    /// When negative, or 10¹⁵ of the currency or more.
    pub fn from_nanos(nanos: i128) -> Result<Self, MoneyError> {
        match nanos {
            n if n < 0 => Err(MoneyError::Negative),
            n if n >= 1_000_000_000_000_000_000_000_000 => Err(MoneyError::OutOfRange),
            n => Ok(Self(n)),
        }
    }

    /// From a decimal number.
    ///
    /// # Errors
    /// When negative, with more than nine decimals, or 10¹⁵ or more.
    pub fn from_decimal(d: Decimal) -> Result<Self, MoneyError> {
        if d.is_sign_negative() && !d.is_zero() {
            return Err(MoneyError::Negative);
        }
        let d = d.normalize();
        if d.scale() > 9 {
            return Err(MoneyError::OutOfRange);
        }
        let nanos = d.mantissa().checked_mul(10_i128.pow(9 - d.scale())).ok_or(MoneyError::OutOfRange)?;
        Self::from_nanos(nanos)
    }

    /// In nano-units of the currency.
    #[must_use]
    pub const fn nanos(self) -> i128 {
        self.0
    }

    /// As a decimal number with nine decimals.
    #[must_use]
    pub fn to_decimal(self) -> Decimal {
        // below 10^24, so inside the 96 bits of a Decimal
        Decimal::from_i128_with_scale(self.0, 9)
    }
}

impl FromStr for Price {
    type Err = MoneyError;
    /// From digits, and after a point at most nine more: no sign, no exponent, nothing between the digits.
    fn from_str(s: &str) -> Result<Self, MoneyError> {
        let malformed = || MoneyError::Malformed(s.chars().take(40).collect());
        let (whole, decimals) = s.split_once('.').unwrap_or((s, "0"));
        let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if are_digits(whole.strip_prefix('-').unwrap_or(whole)) && are_digits(decimals) && whole.starts_with('-') {
            return Err(MoneyError::Negative);
        }
        if !are_digits(whole) || !are_digits(decimals) {
            return Err(malformed());
        }
        if whole.len() > 15 || decimals.len() > 9 {
            return Err(MoneyError::OutOfRange);
        }
        Self::from_decimal(Decimal::from_str_exact(s).map_err(|_| malformed())?)
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_decimal().normalize().fmt(f)
    }
}

/// What a price is the price of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, utoipa::ToSchema)]
pub enum BillingUnit {
    /// 10⁹ bytes for one second.
    #[schema(rename = "GB-second")]
    GbSecond,
    /// 10⁹ bytes for one hour.
    #[schema(rename = "GB-hour")]
    GbHour,
    /// 2³⁰ bytes for one hour.
    #[schema(rename = "GiB-hour")]
    GibHour,
}

impl BillingUnit {
    /// All units, in the order in which they are documented.
    pub const ALL: [Self; 3] = [Self::GbSecond, Self::GbHour, Self::GibHour];

    /// Byte-milliseconds in one unit.
    #[must_use]
    pub const fn byte_millis(self) -> i128 {
        match self {
            Self::GbSecond => 1_000_000_000 * 1_000,
            Self::GbHour => 1_000_000_000 * 3_600_000,
            Self::GibHour => (1 << 30) * 3_600_000,
        }
    }

    /// As screens, exports and invoices name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GbSecond => "GB-second",
            Self::GbHour => "GB-hour",
            Self::GibHour => "GiB-hour",
        }
    }
}

impl fmt::Display for BillingUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BillingUnit {
    type Err = MoneyError;
    fn from_str(s: &str) -> Result<Self, MoneyError> {
        Self::ALL.into_iter().find(|u| u.name() == s).ok_or_else(|| MoneyError::Unit(s.chars().take(40).collect()))
    }
}

macro_rules! serde_as_text {
    ($($t:ty),*) => {$(
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}
serde_as_text!(Currency, Price, BillingUnit);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_units_follow_iso_4217() {
        for (code, digits) in [("JPY", 0), ("KRW", 0), ("USD", 2), ("EUR", 2), ("KWD", 3)] {
            assert_eq!(code.parse::<Currency>().unwrap().minor_digits(), digits, "{code}");
        }
        assert!("usd".parse::<Currency>().is_err());
        assert!("XAU".parse::<Currency>().is_err(), "gold has no minor units");
    }

    #[test]
    fn prices_are_exact_or_refused() {
        assert_eq!("100.00".parse::<Price>().unwrap().nanos(), 100_000_000_000);
        assert_eq!("0.000000001".parse::<Price>().unwrap().nanos(), 1);
        assert_eq!("0.0125".parse::<Price>().unwrap().to_string(), "0.0125");
        for bad in [
            "-0.01",
            "0.0000000001",
            "1000000000000000",
            "NaN",
            "1e5",
            "",
            "1,5",
            "+1",
            ".5",
            "1.",
            "1_000",
            "1.2.3",
            "-",
        ] {
            assert!(bad.parse::<Price>().is_err(), "{bad:?} was accepted");
        }
    }
}
