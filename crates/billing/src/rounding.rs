//! The only module that rounds.
//!
//! A line's exact amount is the rational *quantity × price ÷ unit*. It is divided and rounded once, here, half away from
//! zero. Nothing wraps and nothing is rounded on the way: products that outgrow 128 bits are divided limb by limb.

use crate::amount::Amount;
use rust_decimal::Decimal;
use types::{BillingUnit, ByteMillis, Currency, Price};

/// The result does not fit: an amount above 2⁶³−1 minor units, or a quantity above 2⁹⁶ millionths of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the amount is too large to be written")]
pub struct TooLarge;

/// Nano-units of a currency in one unit of it; see [`Price`].
const NANOS: u128 = 1_000_000_000;
/// Quantities in billing units are shown with six decimals.
const UNIT_DECIMALS: u32 = 6;

/// What `quantity` costs at `price` for one `unit`, rounded half away from zero to the currency's minor unit.
///
/// # Errors
/// [`TooLarge`] when it does not fit 64 bits of minor units.
pub fn amount(quantity: ByteMillis, price: Price, unit: BillingUnit, currency: Currency) -> Result<Amount, TooLarge> {
    // a price is below 10^24 nano-units and no currency has more than four decimals, so this stays below 10^28
    let per_unit = price.nanos().unsigned_abs() * 10_u128.pow(currency.minor_digits());
    let divisor = unit.byte_millis().unsigned_abs() * NANOS;
    let magnitude = quotient(quantity.0.unsigned_abs(), per_unit, divisor)?;
    let magnitude = i64::try_from(magnitude).map_err(|_| TooLarge)?;
    Ok(Amount::new(currency, if quantity.0 < 0 { -magnitude } else { magnitude }))
}

/// A quantity in billing units with six decimals, for people to read. Nothing is computed from it.
///
/// # Errors
/// [`TooLarge`] when it does not fit a decimal number.
pub fn in_units(quantity: ByteMillis, unit: BillingUnit) -> Result<Decimal, TooLarge> {
    let magnitude = quotient(quantity.0.unsigned_abs(), 10_u128.pow(UNIT_DECIMALS), unit.byte_millis().unsigned_abs())?;
    let magnitude = i128::try_from(magnitude).map_err(|_| TooLarge)?;
    let signed = if quantity.0 < 0 { -magnitude } else { magnitude };
    Decimal::try_from_i128_with_scale(signed, UNIT_DECIMALS).map_err(|_| TooLarge)
}

/// `a` × `b` ÷ `divisor`, rounded half up.
fn quotient(a: u128, b: u128, divisor: u128) -> Result<u128, TooLarge> {
    let (whole, rest) = multiply_divide(a, b, divisor).ok_or(TooLarge)?;
    let up = u128::from(rest >= divisor - rest);
    whole.checked_add(up).ok_or(TooLarge)
}

/// The whole quotient and the remainder of `a` × `b` ÷ `divisor`; `None` when the quotient outgrows 128 bits.
///
/// `divisor` must be positive and below 2⁹⁵. With a = q·divisor + r the quotient is q·b + (r·b ÷ divisor); r·b is taken
/// in limbs of 32 bits of `b`, the highest first, carrying the remainder as in division by hand.
fn multiply_divide(a: u128, b: u128, divisor: u128) -> Option<(u128, u128)> {
    debug_assert!(divisor > 0 && divisor < 1 << 95);
    let (q, r) = (a / divisor, a % divisor);
    let (mut whole, mut rest) = (0_u128, 0_u128);
    for shift in [96, 64, 32, 0] {
        let limb = (b >> shift) & 0xffff_ffff;
        // both terms are below 2^95 × 2^32
        let part = (rest << 32) + r * limb;
        whole = whole.checked_mul(1 << 32)?.checked_add(part / divisor)?;
        rest = part % divisor;
    }
    Some((q.checked_mul(b)?.checked_add(whole)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{currency, gb_seconds, price};
    use proptest::prelude::*;

    const S: BillingUnit = BillingUnit::GbSecond;

    fn cost(quantity: ByteMillis, per_unit: &str, unit: BillingUnit, code: &str) -> String {
        amount(quantity, price(per_unit), unit, currency(code)).unwrap().to_string()
    }

    /// Public report 14 (Kill Bill 1124): 55 × 0.067 = 3.685 is 3.69.
    #[test]
    fn report_14_half_goes_away_from_zero() {
        assert_eq!(cost(gb_seconds(55), "0.067", S, "USD"), "3.69");
        assert_eq!(cost(gb_seconds(-55), "0.067", S, "USD"), "-3.69");
    }

    /// Public report 17 (Lago 4642): 14.29 × 1.24 = 17.7196 is 17.72, not 17.71.
    #[test]
    fn report_17_rounds_and_does_not_truncate() {
        assert_eq!(cost(ByteMillis(1_240_000_000_000), "14.29", S, "EUR"), "17.72");
    }

    /// Public report 20 (InvoicePlane 1677): 100 yen are 100.
    #[test]
    fn report_20_currencies_keep_their_own_decimals() {
        assert_eq!(cost(gb_seconds(1), "100", S, "JPY"), "100");
        assert_eq!(cost(gb_seconds(1), "0.5", S, "KRW"), "1");
        assert_eq!(cost(gb_seconds(1), "0.499999999", S, "KRW"), "0");
        assert_eq!(cost(gb_seconds(1), "0.0005", S, "KWD"), "0.001");
        assert_eq!(cost(gb_seconds(1), "0.0005", S, "USD"), "0.00");
    }

    /// Public report 22 (Kill Bill 1896): 1,300,000 won, and 8 × 141 GB over 31 days = 3,021,235,200 GB-s, both fit.
    #[test]
    fn report_22_large_amounts_and_quantities_fit() {
        assert_eq!(cost(gb_seconds(1), "1300000", S, "KRW"), "1300000");
        let month = ByteMillis(8 * 141_000_000_000 * 31 * 86_400_000);
        assert_eq!(in_units(month, S).unwrap().to_string(), "3021235200.000000");
        assert_eq!(cost(month, "1", S, "USD"), "3021235200.00");
    }

    /// Public report 23 (Kill Bill 1325): 2,147,483,648 units are exact.
    #[test]
    fn report_23_units_outgrow_31_bits() {
        assert_eq!(cost(gb_seconds(2_147_483_648), "0.01", S, "USD"), "21474836.48");
    }

    /// Public report 24 (ClickHouse 95730): 2,470 × 0.001 = 2.47, where wide decimals overflowed to a negative number.
    #[test]
    fn report_24_wide_products_do_not_wrap() {
        assert_eq!(cost(gb_seconds(2_470), "0.001", S, "USD"), "2.47");
    }

    /// Public report 26 (CloudKitty): a price of 100.00 and above is accepted and exact.
    #[test]
    fn report_26_prices_have_more_than_two_whole_digits() {
        assert_eq!(cost(gb_seconds(3), "100.00", S, "USD"), "300.00");
        assert_eq!(cost(gb_seconds(1), "999999999999999.99", S, "USD"), "999999999999999.99");
    }

    #[test]
    fn units_are_told_apart() {
        let gib_hour = ByteMillis((1 << 30) * 3_600_000);
        assert_eq!(cost(gib_hour, "1", BillingUnit::GibHour, "USD"), "1.00");
        assert_eq!(cost(gib_hour, "1", BillingUnit::GbHour, "USD"), "1.07");
        assert_eq!(cost(gib_hour, "1", S, "USD"), "3865.47");
        assert_eq!(in_units(gib_hour, BillingUnit::GbHour).unwrap().to_string(), "1.073742");
        assert_eq!(in_units(ByteMillis(-1), S).unwrap().to_string(), "0.000000");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let usd = currency("USD");
        let dearest = price("999999999999999.999999999");
        for quantity in [ByteMillis(i128::MAX), ByteMillis(10_i128.pow(28)), ByteMillis(i128::MIN)] {
            assert_eq!(amount(quantity, dearest, S, usd), Err(TooLarge));
        }
        // the largest stored quantity at a small price is fine
        assert_eq!(cost(ByteMillis(10_i128.pow(28)), "0.000000001", S, "USD"), "10000000.00");
    }

    /// Schoolbook product in limbs of 16 bits, lowest first.
    fn product(a: u128, b: u128) -> Vec<u32> {
        let limbs = |n: u128| (0..8).map(move |i| (n >> (16 * i)) & 0xffff);
        let mut sum = vec![0_u128; 17];
        for (i, x) in limbs(a).enumerate() {
            for (j, y) in limbs(b).enumerate() {
                sum[i + j] += x * y;
            }
        }
        for i in 0..16 {
            sum[i + 1] += sum[i] >> 16;
            sum[i] &= 0xffff;
        }
        sum.into_iter().map(|n| u32::try_from(n).unwrap()).collect()
    }

    fn plus(mut a: Vec<u32>, b: u128) -> Vec<u32> {
        for (i, limb) in a.iter_mut().take(8).enumerate() {
            *limb += u32::try_from((b >> (16 * i)) & 0xffff).unwrap();
        }
        for i in 0..16 {
            a[i + 1] += a[i] >> 16;
            a[i] &= 0xffff;
        }
        a
    }

    proptest! {
        #[test]
        fn wide_division_is_exact(a in any::<u128>(), a_shift in 0u32..128, b in any::<u128>(), b_shift in 0u32..128, d in 1_u128..1 << 95, d_shift in 0u32..95) {
            let (a, b, d) = (a >> a_shift, b >> b_shift, (d >> d_shift).max(1));
            match multiply_divide(a, b, d) {
                Some((whole, rest)) => {
                    prop_assert!(rest < d);
                    prop_assert_eq!(plus(product(whole, d), rest), product(a, b));
                }
                // only a quotient of more than 128 bits is refused
                None => {
                    let least = plus(product(u128::MAX, d), d);
                    let exact = product(a, b);
                    prop_assert!(exact.iter().rev().ge(least.iter().rev()));
                }
            }
        }

        #[test]
        fn amounts_are_the_nearest(quantity in -1_000_000_000_000_000_000_i128..1_000_000_000_000_000_000, nanos in 0_i128..1_000_000_000_000, unit in 0_usize..3, code in prop::sample::select(vec!["JPY", "USD", "KWD"])) {
            let (unit, money) = (BillingUnit::ALL[unit], currency(code));
            // naive: the rational over one denominator in 128 bits
            let top = quantity * nanos * 10_i128.pow(money.minor_digits());
            let bottom = unit.byte_millis() * 1_000_000_000;
            let minor = i128::from(amount(ByteMillis(quantity), Price::from_nanos(nanos).unwrap(), unit, money).unwrap().minor());
            let error = (minor * bottom - top).abs();
            prop_assert!(2 * error <= bottom);
            if 2 * error == bottom {
                prop_assert!(minor.abs() * bottom > top.abs());
            }
        }
    }
}
