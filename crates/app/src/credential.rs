//! Secrets that are made here: API keys, join tokens, node credentials and invitations, all of one form: a kind, a
//! prefix that finds the stored row, and 256 random bits of which only the SHA-256 is stored. One fast hash is enough
//! for so many bits; a slow one on every call would let callers tie up the server.

use aws_lc_rs::constant_time;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::Rng;
use sha2::{Digest, Sha256};

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    /// `glk_…`: a machine of a tenant or of the platform.
    ApiKey,
    /// `glj_…`: lets one node join a pool, once.
    JoinToken,
    /// `gln_…`: speaks for one node.
    Node,
    /// `gli_…`: lets one person make an account, once.
    Invitation,
}

impl CredentialKind {
    const ALL: [Self; 4] = [Self::ApiKey, Self::JoinToken, Self::Node, Self::Invitation];

    /// How its secrets begin.
    #[must_use]
    pub const fn marker(self) -> &'static str {
        match self {
            Self::ApiKey => "glk_",
            Self::JoinToken => "glj_",
            Self::Node => "gln_",
            Self::Invitation => "gli_",
        }
    }
}

/// A new secret: its text is shown once, the rest is stored.
pub struct Minted {
    /// The whole secret, such as `glk_k3v9x2mq_…`.
    pub text: String,
    /// What finds the stored row.
    pub prefix: String,
    /// What is stored of the secret.
    pub hash: [u8; 32],
}

impl std::fmt::Debug for Minted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minted").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// 32 letters and digits that are hard to mistake for one another; none is the separator.
const PREFIX_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const PREFIX_LENGTH: usize = 8;

/// A new secret. Its bits come from the operating system even where ids are replayed from a seed: a secret that can be
/// computed again is none.
#[must_use]
pub fn mint(kind: CredentialKind) -> Minted {
    let mut generator = rand::rng();
    let mut letters = [0_u8; PREFIX_LENGTH];
    generator.fill_bytes(&mut letters);
    let prefix: String = letters.iter().map(|byte| char::from(PREFIX_ALPHABET[usize::from(byte & 31)])).collect();
    let mut secret = [0_u8; 32];
    generator.fill_bytes(&mut secret);
    let text = format!("{}{prefix}_{}", kind.marker(), BASE64_URL_SAFE_NO_PAD.encode(secret));
    Minted { text, prefix, hash: Sha256::digest(secret).into() }
}

/// A secret that somebody presents, well-formed but not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    pub kind: CredentialKind,
    pub prefix: String,
    hash: [u8; 32],
}

impl Presented {
    /// Reads a secret; `None` when the text has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let kind = CredentialKind::ALL.into_iter().find(|kind| text.starts_with(kind.marker()))?;
        let (prefix, secret) = text[kind.marker().len()..].split_once('_')?;
        if prefix.len() != PREFIX_LENGTH || !prefix.bytes().all(|byte| PREFIX_ALPHABET.contains(&byte)) {
            return None;
        }
        let secret: [u8; 32] = BASE64_URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        Some(Self { kind, prefix: prefix.to_owned(), hash: Sha256::digest(secret).into() })
    }

    /// The SHA-256 of the secret.
    #[must_use]
    pub const fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Whether it is the secret that was stored, in a time that does not depend on how much of it is right.
    #[must_use]
    pub fn matches(&self, stored: &[u8; 32]) -> bool {
        constant_time::verify_slices_are_equal(&self.hash, stored).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_secret_is_recognised_and_no_other() {
        for kind in CredentialKind::ALL {
            let minted = mint(kind);
            let presented = Presented::parse(&minted.text).unwrap();
            assert_eq!((presented.kind, &presented.prefix), (kind, &minted.prefix));
            assert!(presented.matches(&minted.hash));
            assert!(!presented.matches(&mint(kind).hash));
            assert_eq!(minted.text.len(), 4 + 8 + 1 + 43);
            assert!(!format!("{minted:?}").contains(&minted.text));
        }
    }

    #[test]
    fn other_texts_are_no_secrets() {
        let good = mint(CredentialKind::ApiKey).text;
        let cut = &good[..good.len() - 1];
        let longer = format!("{good}A");
        for bad in ["", "glk_", "glk_abcdefgh", "glx_abcdefgh_AAAA", "glk_ABCDEFGH_AAAA", cut, longer.as_str()] {
            assert_eq!(Presented::parse(bad), None, "{bad:?}");
        }
    }
}
