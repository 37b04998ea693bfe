//! Units, ids, names and instants: what is read prints, what is printed reads back to the same value, and nothing that
//! is longer than any good text is taken.

use billing::{Amount, Zone, period};
use std::{fmt, str::FromStr};
use types::{BillingUnit, ByteMillis, Bytes, Currency, GpuModel, GpuUuid, Instant, Name, Price, Remark, TenantId};

pub(crate) const WORDS: &[&str] = &[
    "20GiB",
    "9223372036854775807",
    "8191 TiB",
    "-77309411328000",
    "0.012500000",
    "999999999999999.999999999",
    "GB-hour",
    "KWD",
    "12.30",
    "2026-11-01T00:00:00Z",
    "9999-12-30T00:00:00.999999999-23:59",
    "1970-01-01T00:00:00+00:00",
    "[Asia/Seoul]",
    "01980000-0000-7000-8000-000000000001",
    "GPU-8c5f0a6e-2b1d-4d39-9a7b-0c1f4be0a001",
    "Asia/Seoul",
    "Pacific/Apia",
    "2026-11",
    "9999-12",
    "1970-01",
    "1h30m",
    "366d",
    "NaN",
    "inf",
    "1e9",
    "\u{202e}",
    "\u{feff}",
    "AZrF3mB4cQ2dqL8m0m5h1w",
];

pub(crate) fn run(data: &[u8]) {
    json(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(bytes) = round::<Bytes>(text, 24) {
        assert!(bytes <= Bytes::MAX, "{text:?}");
    }
    round::<ByteMillis>(text, 29);
    if let Some(price) = round::<Price>(text, 25) {
        assert!((0..10_i128.pow(24)).contains(&price.nanos()), "{text:?}");
    }
    round::<Currency>(text, 3);
    round::<BillingUnit>(text, 9);
    if let Some(amount) = round::<Amount>(text, 30) {
        assert_eq!(amount.to_string(), text);
    }
    if let Some(at) = round::<Instant>(text, 35) {
        assert!((Instant::EPOCH..=Instant::LAST).contains(&at), "{text:?}");
    }
    round::<TenantId>(text, 36);
    round::<GpuUuid>(text, 40);
    round::<Name>(text, 200);
    round::<GpuModel>(text, 200);
    round::<Remark>(text, 2000);
    if let Some(zone) = round::<Zone>(text, 60) {
        assert_eq!(zone.to_string(), text);
    }
    month(text);
    if let Ok(duration) = gpuledger::duration::parse(text) {
        assert!(duration.as_secs() <= 366 * 86_400, "{text:?}");
    }
}

/// Reads, prints and reads again.
fn round<T: FromStr + fmt::Display + PartialEq + fmt::Debug>(text: &str, longest: usize) -> Option<T> {
    let value: T = text.parse().ok()?;
    assert!(text.len() <= longest, "{text:?} is a {}", std::any::type_name::<T>());
    let printed = value.to_string();
    assert_eq!(printed.parse().ok().as_ref(), Some(&value), "{text:?} prints as {printed:?}");
    Some(value)
}

/// A month of a label lies where its label says, in zones with jumps over midnight and over whole days.
fn month(text: &str) {
    for zone in ["UTC", "Asia/Seoul", "Pacific/Apia", "America/Havana", "Australia/Lord_Howe"] {
        let zone: Zone = zone.parse().unwrap();
        let Ok(period) = period::month(text, &zone) else { continue };
        assert_eq!(period.label, text);
        assert!(period.span.start() <= period.span.end(), "{text:?} {zone}");
        if period.span.start() < period.span.end() && period.span.start() > Instant::EPOCH {
            assert_eq!(period::month_of(period.span.start(), &zone), period, "{zone}");
        }
    }
}

/// The same by their JSON.
fn json(data: &[u8]) {
    fn same<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + fmt::Debug>(data: &[u8]) {
        let Ok(value) = serde_json::from_slice::<T>(data) else { return };
        let printed = serde_json::to_string(&value).unwrap();
        assert_eq!(serde_json::from_str::<T>(&printed).ok(), Some(value), "{printed}");
    }
    same::<Bytes>(data);
    same::<ByteMillis>(data);
    same::<Price>(data);
    same::<Instant>(data);
    same::<TenantId>(data);
    same::<Name>(data);
    same::<api::page::Cursor>(data);
    if let Ok(limit) = serde_json::from_slice::<api::page::Limit>(data) {
        assert!((2..=201).contains(&limit.and_one()));
    }
}
