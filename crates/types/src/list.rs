//! Lists with a bound that holds while they are read, so that a long one costs no memory.

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::{self, Display},
    marker::PhantomData,
};

/// Reads a list of at most `N` items, for `#[serde(deserialize_with = "…")]`.
///
/// # Errors
/// The first item more, before it is looked at; an item that cannot be read.
pub fn at_most<'de, const N: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(Items::<N, T>(PhantomData))
}

struct Items<const N: usize, T>(PhantomData<T>);

impl<'de, const N: usize, T: Deserialize<'de>> Visitor<'de> for Items<N, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while list.len() < N {
            match items.next_element()? {
                Some(item) => list.push(item),
                None => return Ok(list),
            }
        }
        match items.next_element::<IgnoredAny>()? {
            Some(_) => Err(A::Error::custom(format_args!("must not hold more than {N}"))),
            None => Ok(list),
        }
    }
}

/// Reads an object of at most `N` fields with names of their own, for `#[serde(deserialize_with = "…")]`.
///
/// # Errors
/// A name that is given twice; the first field more, before it is looked at; a field that cannot be read.
pub fn map_at_most<'de, const N: usize, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord + Display,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(Fields::<N, K, V>(PhantomData))
}

struct Fields<const N: usize, K, V>(PhantomData<(K, V)>);

impl<'de, const N: usize, K, V> Visitor<'de> for Fields<N, K, V>
where
    K: Deserialize<'de> + Ord + Display,
    V: Deserialize<'de>,
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {N} fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<BTreeMap<K, V>, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(name) = fields.next_key::<K>()? {
            if map.len() == N {
                return Err(A::Error::custom(format_args!("must not hold more than {N}")));
            }
            match map.entry(name) {
                Entry::Occupied(twice) => return Err(A::Error::custom(format_args!("names {} twice", twice.key()))),
                Entry::Vacant(place) => place.insert(fields.next_value()?),
            };
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Three {
        #[serde(deserialize_with = "at_most::<3, _, _>")]
        list: Vec<u8>,
    }

    #[derive(Debug, Deserialize)]
    struct Two {
        #[serde(deserialize_with = "map_at_most::<2, _, _, _>")]
        map: BTreeMap<String, u8>,
    }

    #[test]
    fn names_are_few_and_differ() {
        let read = |text: &str| serde_json::from_str::<Two>(text).map(|two| two.map.len());
        assert_eq!(read(r#"{"map": {"a": 1, "b": 2}}"#).unwrap(), 2);
        let error = read(r#"{"map": {"a": 1, "b": 2, "c": []}}"#).unwrap_err().to_string();
        assert!(error.contains("must not hold more than 2"), "{error}");
        let error = read(r#"{"map": {"a": 1, "a": 2}}"#).unwrap_err().to_string();
        assert!(error.contains("names a twice"), "{error}");
    }

    #[test]
    fn the_bound_is_kept_and_named() {
        let read = |text: &str| serde_json::from_str::<Three>(text).map(|three| three.list);
        assert_eq!(read(r#"{"list": [1, 2, 3]}"#).unwrap(), [1, 2, 3]);
        assert_eq!(read(r#"{"list": []}"#).unwrap(), [0_u8; 0]);
        let error = read(r#"{"list": [1, 2, 3, "4"]}"#).unwrap_err().to_string();
        assert!(error.contains("must not hold more than 3"), "{error}");
        assert!(read(r#"{"list": [1, 2, "3"]}"#).unwrap_err().to_string().contains("invalid type"));
    }
}
