//! What was looked up a moment ago, so that not every request asks the database who calls and what is meant.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a revoked key or a disabled person may still pass on a server that did not do it itself.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// The most entries kept.
const MOST: usize = 10_000;

/// Values looked up within the last five seconds. Ages are real time, not the ledger's: a replay in virtual time does
/// not outrun them.
#[derive(Debug)]
pub(crate) struct Recent<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    fn kept(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        // no panic can happen while it is held half changed
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.kept().get(key).filter(|(at, _)| at.elapsed() < KEPT_FOR).map(|(_, value)| value.clone())
    }

    /// Keeps what a look-up found, unless something was put there while it looked: that is newer.
    pub fn keep(&self, key: K, value: V) {
        let mut kept = self.kept();
        if kept.get(&key).is_none_or(|(at, _)| at.elapsed() >= KEPT_FOR) {
            insert(&mut kept, key, value);
        }
    }

    /// Puts what holds from now on in place of what was looked up before.
    pub fn put(&self, key: K, value: V) {
        insert(&mut self.kept(), key, value);
    }

    pub fn forget<Q: Eq + Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.kept().remove(key);
    }

    pub fn forget_all(&self) {
        self.kept().clear();
    }
}

fn insert<K: Eq + Hash, V>(kept: &mut HashMap<K, (Instant, V)>, key: K, value: V) {
    if kept.len() >= MOST {
        kept.retain(|_, (at, _)| at.elapsed() < KEPT_FOR);
        if kept.len() >= MOST {
            kept.clear();
        }
    }
    kept.insert(key, (Instant::now(), value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_that_began_earlier_does_not_undo_what_was_put() {
        let recent = Recent::default();
        recent.keep("session", Some(1));
        recent.put("session", None);
        recent.keep("session", Some(1));
        assert_eq!(recent.get("session"), Some(None));
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let recent = Recent::default();
        for n in 0..=MOST {
            recent.put(n, ());
        }
        assert!(recent.kept().len() <= MOST);
        assert_eq!(recent.get(&MOST), Some(()));
    }
}
