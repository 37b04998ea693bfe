//! Passwords: never stored, logged or shown; hashed with Argon2id on threads that may block, a few at a time.

use crate::error::AppError;
use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use serde::{Deserialize, Deserializer, de};
use std::sync::OnceLock;
use tokio::sync::Semaphore;

/// A password on its way in.
#[derive(Clone)]
pub struct Password(String);

impl<'de> Deserialize<'de> for Password {
    /// None that was ever set is longer, so that nobody makes the server hash megabytes.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if text.len() > *LENGTH.end() {
            return Err(de::Error::custom(format_args!("must have at most {} bytes", LENGTH.end())));
        }
        Ok(Self(text))
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(…)")
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Bytes of a password at least and at most.
const LENGTH: std::ops::RangeInclusive<usize> = 12..=200;
/// A hash takes 19 MiB while it is computed, so few run at once; the others wait.
static AT_ONCE: Semaphore = Semaphore::const_new(4);
/// Verified against where there is no such person, so that both answers take equal time.
static NOBODY: OnceLock<Option<String>> = OnceLock::new();

impl Password {
    /// The rule that it breaks as a new password.
    pub(crate) fn fault(&self) -> Option<String> {
        (!LENGTH.contains(&self.0.len())).then(|| format!("must have {} to {} bytes", LENGTH.start(), LENGTH.end()))
    }

    /// Its hash in PHC form, with a fresh salt.
    pub(crate) async fn hash(self) -> Result<String, AppError> {
        in_turn(move || hash(&self.0)).await?.ok_or_else(|| AppError::Internal("argon2 cannot hash a password".into()))
    }

    /// Whether it is the password behind `stored`. Takes as long where nothing is stored, and is then never right.
    pub(crate) async fn verify(self, stored: Option<String>) -> Result<bool, AppError> {
        metrics::counter!("gpuledger_password_checks_total").increment(1);
        in_turn(move || {
            let nobody = NOBODY.get_or_init(|| hash("nobody has this password"));
            let Some(against) = stored.as_ref().or(nobody.as_ref()) else { return false };
            let is_right = PasswordHash::new(against)
                .is_ok_and(|against| Argon2::default().verify_password(self.0.as_bytes(), &against).is_ok());
            is_right && stored.is_some()
        })
        .await
    }
}

fn hash(password: &str) -> Option<String> {
    Argon2::default().hash_password(password.as_bytes()).ok().map(|hash| hash.to_string())
}

async fn in_turn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AppError> {
    // the semaphore is never closed
    let turn = AT_ONCE.acquire().await.map_err(|e| AppError::Internal(e.to_string()))?;
    // the turn lasts as long as the work, which goes on when nobody waits for it any more
    let in_turn = move || {
        let done = work();
        drop(turn);
        done
    };
    tokio::task::spawn_blocking(in_turn).await.map_err(|e| AppError::Internal(format!("password thread: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_passes() {
        let new = |text: &str| Password::from(text.to_owned());
        let stored = new("correct horse battery").hash().await.unwrap();
        assert!(stored.starts_with("$argon2id$"));
        assert!(new("correct horse battery").verify(Some(stored.clone())).await.unwrap());
        assert!(!new("correct horse batterz").verify(Some(stored)).await.unwrap());
        assert!(!new("nobody has this password").verify(None).await.unwrap());
        assert!(!new("x").verify(Some("not a hash".into())).await.unwrap());
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_its_work() {
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (finish, finishes) = std::sync::mpsc::channel::<()>();
        let asked = tokio::spawn(in_turn(move || {
            begun.send(()).unwrap();
            let _ = finishes.recv();
        }));
        begins.await.unwrap();
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        assert!(AT_ONCE.available_permits() < 4, "the hash goes on, and its turn with it");
        finish.send(()).unwrap();
        drop(AT_ONCE.acquire_many(4).await.unwrap());
    }

    #[test]
    fn length_is_the_only_rule_and_debug_tells_nothing() {
        assert!(Password::from("elevenbytes".to_owned()).fault().is_some());
        assert!(Password::from("twelve bytes".to_owned()).fault().is_none());
        assert!(Password::from("x".repeat(201)).fault().is_some());
        assert!(serde_json::from_value::<Password>("x".repeat(200).into()).is_ok());
        assert!(serde_json::from_value::<Password>("x".repeat(201).into()).is_err());
        assert_eq!(format!("{:?}", Password::from("secret".to_owned())), "Password(…)");
    }
}
