//! How an [`Instant`] stands in a `timestamptz` column.

use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef},
};
use types::Instant;

/// An instant on its way to or from a `timestamptz` column. Columns hold whole milliseconds; anything finer is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub Instant);

/// Microseconds from 1970 to 2000, where Postgres counts from.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

impl From<Instant> for At {
    fn from(t: Instant) -> Self {
        Self(t)
    }
}

impl From<At> for Instant {
    fn from(t: At) -> Self {
        t.0
    }
}

impl Type<Postgres> for At {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for At {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("_timestamptz")
    }
}

impl Encode<'_, Postgres> for At {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = self.0.as_millis() * 1000 - POSTGRES_EPOCH_MICROS;
        <i64 as Encode<'_, Postgres>>::encode(micros, buf)
    }
}

impl<'r> Decode<'r, Postgres> for At {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let micros = <i64 as Decode<'r, Postgres>>::decode(value)?;
        let since_1970 = micros.checked_add(POSTGRES_EPOCH_MICROS).ok_or("timestamp out of range")?;
        Ok(Self(Instant::from_micros(since_1970)?))
    }
}
