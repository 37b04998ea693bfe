//! What a line, a total or a payment comes to.

use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};
use types::Currency;

/// An amount of money in whole minor units of a currency. In JSON and as text it is a decimal number with as many
/// decimals as the currency has: `12.30` dollars, `100` yen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, utoipa::ToSchema)]
#[schema(value_type = String, example = "12.30")]
pub struct Amount(Scaled);

/// Minor units, and how many decimals they make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Scaled {
    minor: i64,
    digits: u32,
}

/// The text is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount such as 12.30")]
pub struct AmountError(String);

impl Amount {
    /// `minor` minor units (cents of a dollar, whole yen) of `currency`.
    #[must_use]
    pub fn new(currency: Currency, minor: i64) -> Self {
        Self(Scaled { minor, digits: currency.minor_digits() })
    }

    /// In minor units.
    #[must_use]
    pub const fn minor(self) -> i64 {
        self.0.minor
    }

    /// As a decimal number with the currency's decimals.
    #[must_use]
    pub fn to_decimal(self) -> Decimal {
        Decimal::new(self.0.minor, self.0.digits)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_decimal().fmt(f)
    }
}

impl FromStr for Amount {
    type Err = AmountError;
    fn from_str(s: &str) -> Result<Self, AmountError> {
        let error = || AmountError(s.chars().take(40).collect());
        let decimal = Decimal::from_str_exact(s).map_err(|_| error())?;
        let amount =
            Self(Scaled { minor: i64::try_from(decimal.mantissa()).map_err(|_| error())?, digits: decimal.scale() });
        // one amount has one text, or equal documents could have unequal digests
        if amount.to_string() == s { Ok(amount) } else { Err(error()) }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::currency;

    /// Public report 20 (InvoicePlane 1677): ¥100 is 100 minor units, not 10,000.
    #[test]
    fn report_20_yen_have_no_minor_units() {
        assert_eq!("100".parse::<Amount>(), Ok(Amount::new(currency("JPY"), 100)));
        assert_eq!(Amount::new(currency("JPY"), 100).to_string(), "100");
    }

    #[test]
    fn texts_name_the_decimals_of_the_currency() {
        for (code, minor, text) in [
            ("USD", 1230, "12.30"),
            ("USD", -500, "-5.00"),
            ("USD", 0, "0.00"),
            ("KRW", 1_300_000, "1300000"),
            ("KWD", 1, "0.001"),
            ("USD", i64::MAX, "92233720368547758.07"),
            ("USD", i64::MIN, "-92233720368547758.08"),
        ] {
            let amount = Amount::new(currency(code), minor);
            assert_eq!(amount.to_string(), text);
            assert_eq!(text.parse(), Ok(amount));
        }
        for bad in ["", "+1.00", "1e2", "-0.00", "01.00", "1.00 ", ".50", "92233720368547758.08"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad:?} was accepted");
        }
    }
}
