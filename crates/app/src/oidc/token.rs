//! What a token of an issuer must be: signed with one of its published keys, meant for us, and good now. No I/O.

use crate::error::AppError;
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};
use types::Instant;

/// The longest token that is looked at: issuers that list a person's groups make long ones.
pub(super) const LONGEST_TOKEN: usize = 16_384;
/// The most keys of a set that are looked at.
const MOST_KEYS: usize = 64;
/// The longest subject, as the specification allows it.
const LONGEST_SUBJECT: usize = 255;

/// Every algorithm that is accepted: a secret that both sides share proves nothing here.
const RSA: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];
const P256: &[Algorithm] = &[Algorithm::ES256];
const P384: &[Algorithm] = &[Algorithm::ES384];
const ED25519: &[Algorithm] = &[Algorithm::EdDSA];

/// A published key.
#[derive(Clone)]
pub(super) struct Key {
    pub kid: String,
    /// What it verifies.
    algorithms: Vec<Algorithm>,
    verifies: DecodingKey,
}

impl Key {
    pub fn fits(&self, signed: &Signed) -> bool {
        self.kid == signed.kid && self.algorithms.contains(&signed.algorithm)
    }

    /// A key of a set; `None` when it is not for signatures, or of a kind that is not accepted.
    fn of(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let verifies_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature))
            && common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let fitting = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => P256,
                EllipticCurve::P384 => P384,
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => ED25519,
            _ => return None,
        };
        // a key that names its algorithm is for that one alone
        let algorithms: Vec<Algorithm> = match common.key_algorithm {
            Some(named) => {
                fitting.iter().copied().filter(|a| jsonwebtoken::jwk::KeyAlgorithm::from(*a) == named).collect()
            }
            None => fitting.to_vec(),
        };
        let kid = common.key_id.clone()?;
        let is_usable = verifies_signatures && !algorithms.is_empty();
        DecodingKey::from_jwk(jwk).ok().filter(|_| is_usable).map(|verifies| Self { kid, algorithms, verifies })
    }
}

/// The usable keys of a set (RFC 7517); what is not understood is left out, as the specification asks.
pub(super) fn keys(set: &[u8]) -> Result<Vec<Key>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(set)?;
    let jwks = set.keys.into_iter().take(MOST_KEYS).filter_map(|key| serde_json::from_value(key).ok());
    Ok(jwks.filter_map(|jwk: Jwk| Key::of(&jwk)).collect())
}

/// With what a token says it is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signed {
    pub kid: String,
    pub algorithm: Algorithm,
}

impl Signed {
    /// Reads a token's header.
    pub fn of(token: &str) -> Result<Self, AppError> {
        if token.len() > LONGEST_TOKEN {
            return Err(AppError::Unauthenticated("the token is too long"));
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| NOT_VALID)?;
        let is_accepted = [RSA, P256, P384, ED25519].iter().any(|family| family.contains(&header.alg));
        let kid = header.kid.filter(|_| is_accepted).ok_or(UNKNOWN_KEY)?;
        Ok(Self { kid, algorithm: header.alg })
    }
}

/// Whose token it claims to be: only to choose who verifies it.
pub(super) fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claims {
        iss: String,
    }
    if token.len() > LONGEST_TOKEN {
        return None;
    }
    jsonwebtoken::dangerous::insecure_decode_claims::<Claims>(token).ok().map(|claims| claims.iss)
}

const NOT_VALID: AppError = AppError::Unauthenticated("the token is not valid");
pub(super) const UNKNOWN_KEY: AppError = AppError::Unauthenticated("the token is not signed with a key of its issuer");

/// What a token must say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub issuer: &'a str,
    pub audiences: &'a [String],
    /// The value that a login was begun with, and who began it: for the token of a login.
    pub login: Option<Login<'a>>,
    pub leeway_s: i64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Login<'a> {
    pub nonce: &'a str,
    pub client_id: &'a str,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    #[serde(deserialize_with = "one_or_many")]
    aud: Vec<String>,
    exp: Number,
    nbf: Option<Number>,
    iat: Option<Number>,
    nonce: Option<String>,
    azp: Option<String>,
}

/// The subject of a token that is what it must be.
pub(super) fn subject(
    token: &str,
    signed: &Signed,
    key: &Key,
    expected: &Expected<'_>,
    now: Instant,
) -> Result<String, AppError> {
    let mut validation = Validation::new(signed.algorithm);
    // the library checks the signature; what the claims say is compared below, time by the ledger's clock
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let claims = jsonwebtoken::decode::<Claims>(token, &key.verifies, &validation).map_err(|_| NOT_VALID)?.claims;
    if claims.iss != expected.issuer {
        return Err(NOT_VALID);
    }
    if !claims.aud.iter().any(|audience| expected.audiences.contains(audience)) {
        return Err(AppError::Unauthenticated("the token is for another audience"));
    }
    let now_s = now.as_millis() / 1000;
    let expires = seconds(&claims.exp).ok_or(NOT_VALID)?;
    if now_s >= expires.saturating_add(expected.leeway_s) {
        return Err(AppError::Unauthenticated("the token has expired"));
    }
    for begins in [&claims.nbf, &claims.iat].into_iter().flatten() {
        if seconds(begins).ok_or(NOT_VALID)?.saturating_sub(expected.leeway_s) > now_s {
            return Err(AppError::Unauthenticated("the token is not valid yet"));
        }
    }
    if let Some(login) = expected.login {
        let is_for_us = match &claims.azp {
            Some(party) => party == login.client_id,
            None => claims.aud.len() == 1,
        };
        if !is_for_us || claims.nonce.as_deref() != Some(login.nonce) {
            return Err(AppError::Unauthenticated("the token is of another login"));
        }
    }
    let is_subject = (1..=LONGEST_SUBJECT).contains(&claims.sub.len()) && !claims.sub.chars().any(char::is_control);
    if is_subject { Ok(claims.sub) } else { Err(NOT_VALID) }
}

/// Whole seconds of a numeric date, which may have a fraction.
fn seconds(date: &Number) -> Option<i64> {
    let text = date.to_string();
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    whole.parse().ok()
}

/// A text, or a list of texts.
fn one_or_many<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(d)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

#[cfg(test)]
mod tests;
