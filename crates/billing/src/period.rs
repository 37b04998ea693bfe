//! Billing periods: calendar months in a tenant's time zone. The zone decides where a month begins and nothing else.

use jiff::{
    civil::{Date, date},
    tz::{TimeZone, TimeZoneDatabase},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};
use types::{Instant, Span};

/// A time zone by its IANA name, such as `Asia/Seoul`, from the table that is compiled in, so that every host cuts
/// months at the same instants.
#[derive(Debug, Clone, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = String, max_length = 60, pattern = "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", example = "Asia/Seoul")]
pub struct Zone(TimeZone);

/// The text names no time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the IANA name of a time zone, such as Asia/Seoul")]
pub struct ZoneError(String);

impl Zone {
    /// Its IANA name.
    #[must_use]
    pub fn name(&self) -> &str {
        // a zone is only made from a name of the table
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The first instant of a month, kept inside the range of instants. Where clocks jump over midnight it is the first
    /// instant after the jump; where midnight comes twice, the first.
    fn month_start(&self, first_day: Date) -> Instant {
        let start = self.0.to_timestamp(first_day.at(0, 0, 0, 0)).map(jiff::Timestamp::as_millisecond);
        // only a date at the end of year 9999 has no instant
        Instant::EPOCH.plus_millis(start.unwrap_or(i64::MAX))
    }
}

impl FromStr for Zone {
    type Err = ZoneError;
    fn from_str(s: &str) -> Result<Self, ZoneError> {
        TimeZoneDatabase::bundled()
            .get(s)
            .ok()
            // the table ignores case; one zone has one text here
            .filter(|tz| !tz.is_unknown() && tz.iana_name() == Some(s))
            .map(Self)
            .ok_or_else(|| ZoneError(s.chars().take(60).collect()))
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// A calendar month in a zone. Labels sort as text in the order of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// Year and month, such as `2026-11`.
    #[schema(example = "2026-11")]
    pub label: String,
    /// From the month's first instant in the zone to the next month's.
    pub span: Span,
}

/// The text names no month.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a month such as 2026-11, between 1970-01 and 9999-12")]
pub struct PeriodError(String);

impl Period {
    fn starting(first_day: Date, zone: &Zone) -> Self {
        let next = first_day.last_of_month().tomorrow().map_or(Instant::LAST, |day| zone.month_start(day));
        Self { label: first_day.strftime("%Y-%m").to_string(), span: Span::clamped(zone.month_start(first_day), next) }
    }

    /// The month after it, in the zone it was made in; at the end of time, itself.
    #[must_use]
    pub fn next(&self, zone: &Zone) -> Self {
        if self.span.end() == Instant::LAST {
            return self.clone();
        }
        month_of(self.span.end(), zone)
    }

    /// The month before it, in the zone it was made in; at the beginning of time, itself.
    #[must_use]
    pub fn previous(&self, zone: &Zone) -> Self {
        month_of(self.span.start().plus_millis(-1), zone)
    }
}

/// The month that an instant lies in, by the local calendar.
#[must_use]
pub fn month_of(at: Instant, zone: &Zone) -> Period {
    let first_day = zone.0.to_datetime(at.to_jiff()).date().first_of_month();
    let period = Period::starting(first_day, zone);
    if at < period.span.end() {
        return period;
    }
    // Clocks were put back over midnight, so the old month's date shows again after the new month began.
    first_day.last_of_month().tomorrow().map_or(period, |day| Period::starting(day, zone))
}

/// The month of a label such as `2026-11`.
///
/// # Errors
/// Anything but four digits, a hyphen and 01 to 12, and months outside the range of instants.
pub fn month(label: &str, zone: &Zone) -> Result<Period, PeriodError> {
    let error = || PeriodError(label.chars().take(20).collect());
    let well_formed = label.len() == 7
        && label.bytes().enumerate().all(|(i, b)| match i {
            4 => b == b'-',
            _ => b.is_ascii_digit(),
        });
    if !well_formed {
        return Err(error());
    }
    let year = label[..4].parse().map_err(|_| error())?;
    let month = label[5..].parse().map_err(|_| error())?;
    let first_day = Date::new(year, month, 1).map_err(|_| error())?;
    if first_day < date(1970, 1, 1) {
        return Err(error());
    }
    Ok(Period::starting(first_day, zone))
}

/// The month edges strictly inside a span, in order.
#[must_use]
pub fn edges(span: Span, zone: &Zone) -> Vec<Instant> {
    let mut edges = Vec::new();
    let mut period = month_of(span.start(), zone);
    while period.span.end() < span.end() {
        edges.push(period.span.end());
        period = period.next(zone);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, span, zone};
    use proptest::prelude::*;

    fn starts(zone_name: &str, label: &str) -> String {
        month(label, &zone(zone_name)).unwrap().span.start().to_string()
    }

    /// Public report 1 (Kill Bill 1934): local midnight of 1 April in US-Eastern is 04:00Z whatever the offset was when
    /// the tenant came, and a fact at that instant is no longer March's.
    #[test]
    fn report_1_a_zone_is_no_fixed_offset() {
        let new_york = zone("America/New_York");
        assert_eq!(starts("America/New_York", "2026-03"), "2026-03-01T05:00:00Z");
        assert_eq!(starts("America/New_York", "2026-04"), "2026-04-01T04:00:00Z");
        assert_eq!(month_of(at("2026-04-01T04:00:00Z"), &new_york).label, "2026-04");
        assert_eq!(month_of(at("2026-04-01T03:59:59.999Z"), &new_york).label, "2026-03");
    }

    /// Public report 3 (Lago 879): an hourly run over local midnight in UTC+9 names each month once.
    #[test]
    fn report_3_hourly_runs_over_midnight_see_one_change() {
        let seoul = zone("Asia/Seoul");
        let mut labels: Vec<_> =
            (0..48).map(|hour| month_of(at("2026-10-30T15:30:00Z").plus_secs(hour * 3600), &seoul).label).collect();
        labels.dedup();
        assert_eq!(labels, ["2026-10", "2026-11"]);
    }

    /// Public report 4 (OpenMeter 3313): January 2025 in Budapest starts at 2024-12-31T23:00Z.
    #[test]
    fn report_4_months_start_at_local_midnight() {
        assert_eq!(starts("Europe/Budapest", "2025-01"), "2024-12-31T23:00:00Z");
        assert_eq!(starts("Asia/Kolkata", "2026-11"), "2026-10-31T18:30:00Z");
    }

    /// Public report 5 (Kill Bill 127): after the last of January come the last of February, March and April.
    #[test]
    fn report_5_months_follow_each_other_whatever_their_length() {
        let utc = zone("UTC");
        let mut period = month("2017-01", &utc).unwrap();
        let mut last_days = Vec::new();
        for _ in 0..4 {
            last_days.push(period.span.end().plus_millis(-1).to_string()[..10].to_owned());
            period = period.next(&utc);
        }
        assert_eq!(last_days, ["2017-01-31", "2017-02-28", "2017-03-31", "2017-04-30"]);
    }

    /// Public report 7 (Kill Bill 743): 30 days after 2017-03-01T23:30 in Los Angeles it is 31 March there, and April
    /// nowhere but in UTC.
    #[test]
    fn report_7_the_local_date_decides() {
        let end = at("2017-04-01T06:30:00Z");
        assert_eq!(month_of(end, &zone("America/Los_Angeles")).label, "2017-03");
        assert_eq!(month_of(end, &zone("UTC")).label, "2017-04");
    }

    /// Public report 8 (BCApps 5718): February has 28 or 29 days, not 31; a month with a change of clocks has an hour
    /// less or more.
    #[test]
    fn report_8_months_have_their_own_length() {
        let hours = |z, label| month(label, &zone(z)).unwrap().span.millis() / 3_600_000;
        assert_eq!(hours("UTC", "2025-02"), 28 * 24);
        assert_eq!(hours("UTC", "2020-02"), 29 * 24);
        assert_eq!(hours("America/New_York", "2026-03"), 743);
        assert_eq!(hours("America/New_York", "2026-11"), 721);
    }

    #[test]
    fn midnight_that_comes_twice_or_never_has_one_edge() {
        // St John's put its clocks back from 00:01 on 1 November 2009, and saw October again for 59 minutes
        let st_johns = zone("America/St_Johns");
        let november = month("2009-11", &st_johns).unwrap();
        assert_eq!(november.span.start(), at("2009-11-01T02:30:00Z"));
        assert_eq!(month_of(at("2009-11-01T03:00:00Z"), &st_johns), november);
        // Beirut's clocks jump from 00:00 to 01:00; in 1984 on 1 May
        assert_eq!(starts("Asia/Beirut", "1984-05"), "1984-04-30T22:00:00Z");
    }

    #[test]
    fn labels_are_strict() {
        for bad in [
            "",
            "2026-13",
            "2026-00",
            "2026-1",
            "2026-011",
            "26-01",
            "1969-12",
            "+026-01",
            "2026/01",
            "2026-1a",
            "２026-01",
            "0000-00",
        ] {
            assert!(month(bad, &zone("UTC")).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn zones_are_named_exactly() {
        for good in ["Asia/Seoul", "UTC", "Etc/UTC", "America/Argentina/Buenos_Aires"] {
            assert_eq!(zone(good).to_string(), good);
        }
        for bad in
            ["", "Asia/Nowhere", "asia/seoul", "Etc/Unknown", "+09:00", "EST5EDT,M3.2.0,M11.1.0", "../etc/passwd"]
        {
            assert!(bad.parse::<Zone>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!(serde_json::from_str::<Zone>("\"Asia/Seoul\"").unwrap(), zone("Asia/Seoul"));
    }

    #[test]
    fn time_has_a_beginning_and_an_end() {
        let new_york = zone("America/New_York");
        let first = month_of(Instant::EPOCH, &new_york);
        assert_eq!((first.label.as_str(), first.span.end()), ("1969-12", at("1970-01-01T05:00:00Z")));
        assert_eq!(first.previous(&new_york), first);
        for name in ["America/New_York", "Pacific/Kiritimati"] {
            let last = month_of(at("9999-12-30T00:00:00Z"), &zone(name));
            assert_eq!(last.label, "9999-12");
            assert_eq!(last.next(&zone(name)), last);
        }
    }

    #[test]
    fn edges_lie_strictly_inside() {
        let seoul = zone("Asia/Seoul");
        let whole = span("2026-10-31T15:00:00Z", "2026-11-30T15:00:00Z");
        assert!(edges(whole, &seoul).is_empty());
        assert_eq!(
            edges(span("2026-10-31T14:59:59.999Z", "2026-12-31T15:00:00.001Z"), &seoul),
            ["2026-10-31T15:00:00Z", "2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z"].map(at)
        );
    }

    /// In every zone of the table and in every year of its changes, months join without gap or overlap.
    #[test]
    fn months_of_every_zone_tile_time() {
        for name in TimeZoneDatabase::bundled().available() {
            let Ok(zone) = name.as_str().parse::<Zone>() else {
                continue;
            };
            let mut period = month_of(at("1970-02-01T00:00:00Z"), &zone);
            for _ in 0..12 * 80 {
                assert_eq!(month(&period.label, &zone).unwrap(), period, "{zone}");
                let next = period.next(&zone);
                assert_eq!(next.span.start(), period.span.end(), "{zone} {}", period.label);
                assert!(next.label > period.label && !next.span.is_empty(), "{zone} {}", next.label);
                period = next;
            }
            let span = span("1970-01-01T00:00:00Z", "2050-01-01T00:00:00Z");
            for change in zone.0.following(span.start().to_jiff()) {
                let change = Instant::from_jiff(change.timestamp()).unwrap();
                if !span.contains(change) {
                    break;
                }
                for minutes in [-60, -30, -1, 0, 1, 30, 60, 61] {
                    let near = change.plus_secs(60 * minutes);
                    assert!(month_of(near, &zone).span.contains(near), "{zone} {near}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn an_instant_lies_in_its_month(millis in 0_i64..253_402_128_000_000, name in prop::sample::select(vec!["Asia/Seoul", "America/New_York", "Asia/Kolkata", "America/St_Johns", "Pacific/Apia"])) {
            let (zone, t) = (zone(name), Instant::from_millis(millis).unwrap());
            let period = month_of(t, &zone);
            prop_assert!(period.span.contains(t));
            prop_assert_eq!(period.next(&zone).previous(&zone), period);
        }
    }
}
