//! Lists in pages: an opaque cursor and a limit.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use types::TenantId;
use uuid::Uuid;

/// Where the page before ended. What is in it is nobody's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{21}[AQgw]$", example = "AZrF3mB4cQ2dqL8m0m5h1w")]
pub struct Cursor(Uuid);

impl Cursor {
    /// The id that the page before ended with.
    pub fn id<T: From<Uuid>>(self) -> T {
        self.0.into()
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        bytes
            .map(|bytes| Self(Uuid::from_bytes(bytes)))
            .ok_or_else(|| de::Error::custom("is not a cursor that a page of this list gave"))
    }
}

/// The most items of a page: 1 to 200, 50 where none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = u32, minimum = 1, maximum = 200, default = 50)]
pub struct Limit(u8);

impl Default for Limit {
    fn default() -> Self {
        Self(50)
    }
}

impl Limit {
    /// What to ask for: one more than the page holds, so that it is known whether more follow.
    #[must_use]
    pub fn and_one(self) -> i64 {
        i64::from(self.0) + 1
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match u32::deserialize(d)? {
            // up to 200 fits
            n @ 1..=200 => Ok(Self(n.try_into().unwrap_or(u8::MAX))),
            n => Err(de::Error::custom(format_args!("must be 1 to 200, not {n}"))),
        }
    }
}

/// Parameters of a list without a filter.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// `next_cursor` of the page before.
    pub cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    pub limit: Limit,
}

/// Parameters of a list of what tenants have.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TenantPaging {
    /// Whose; a tenant's caller need not say.
    pub tenant_id: Option<TenantId>,
    /// `next_cursor` of the page before.
    pub cursor: Option<Cursor>,
    /// The most items of the page.
    #[serde(default)]
    #[param(inline, required = false)]
    pub limit: Limit,
}

/// One page of a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page begins; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<Cursor>,
}

impl<T> Page<T> {
    /// The page from up to [`Limit::and_one`] rows. `id` tells the id by which the list is ordered.
    pub fn from_rows<R: Into<T>, I: Into<Uuid>>(mut rows: Vec<R>, limit: Limit, id: impl Fn(&R) -> I) -> Self {
        let length = usize::from(limit.0);
        let has_more = rows.len() > length;
        rows.truncate(length);
        let next_cursor = rows.last().filter(|_| has_more).map(|row| Cursor(id(row).into()));
        Self { items: rows.into_iter().map(Into::into).collect(), next_cursor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_nothing_else_is_one() {
        let cursor = Cursor(Uuid::from_u128(7));
        let text = serde_json::to_string(&cursor).unwrap();
        assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
        for bad in ["\"\"", "\"AAAA\"", "\"!\"", "3"] {
            assert!(serde_json::from_str::<Cursor>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        let limit: Limit = serde_json::from_str("2").unwrap();
        let page = |n: u128| Page::<Uuid>::from_rows((1..=n).map(Uuid::from_u128).collect(), limit, |id| *id);
        assert_eq!(page(2).next_cursor, None);
        let longer = page(3);
        assert_eq!((longer.items.len(), longer.next_cursor), (2, Some(Cursor(Uuid::from_u128(2)))));
        assert_eq!(page(0).next_cursor, None);
    }
}
