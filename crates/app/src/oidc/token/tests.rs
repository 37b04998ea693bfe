use super::*;
use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa::{self, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
        Ed25519KeyPair,
    },
};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;

const NOW: i64 = 1_800_000_000;
const ISSUER: &str = "https://id.example/realm";

fn ec(algorithm: &'static EcdsaSigningAlgorithm) -> EncodingKey {
    EncodingKey::from_ec_der(EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap().as_ref())
}

fn ed25519() -> EncodingKey {
    EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).unwrap().as_ref())
}

fn rsa() -> EncodingKey {
    let pair = rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let text = BASE64_STANDARD.encode(der.as_ref());
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
}

/// The public part of a key in a set, with these members more or other.
fn published(key: &EncodingKey, algorithm: Algorithm, kid: &str, change: Value) -> Value {
    let mut jwk = json!(Jwk::from_encoding_key(key, algorithm).unwrap());
    jwk["kid"] = json!(kid);
    jwk["use"] = json!("sig");
    for (name, value) in change.as_object().unwrap() {
        jwk[name] = value.clone();
    }
    jwk.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    jwk
}

fn set(keys: &[Value]) -> Vec<Key> {
    super::keys(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

fn claims() -> Value {
    json!({"iss": ISSUER, "sub": "kim", "aud": "ledger", "iat": NOW, "exp": NOW + 900})
}

fn sign(claims: &Value, algorithm: Algorithm, kid: &str, key: &EncodingKey) -> String {
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, claims, key).unwrap()
}

/// As [`Provider`](super::super::provider::Provider) does it, without the network.
fn judged(token: &str, keys: &[Key], login: Option<Login<'_>>, at: i64) -> Result<String, AppError> {
    let signed = Signed::of(token)?;
    let key = keys.iter().find(|key| key.fits(&signed)).ok_or(UNKNOWN_KEY)?;
    let audiences = ["other".to_owned(), "ledger".to_owned()];
    let expected = Expected { issuer: ISSUER, audiences: &audiences, login, leeway_s: 30 };
    subject(token, &signed, key, &expected, Instant::from_millis(at * 1000).unwrap())
}

#[test]
fn each_algorithm_passes_with_a_key_that_fits_it_and_with_no_other() {
    let named = |algorithm: Algorithm| json!({"alg": format!("{algorithm:?}")});
    let unnamed = json!({"alg": null});
    let (p256, p384, ed, rsa) =
        (ec(&ECDSA_P256_SHA256_FIXED_SIGNING), ec(&ECDSA_P384_SHA384_FIXED_SIGNING), ed25519(), rsa());
    let pairs: [(&EncodingKey, &[Algorithm]); 4] = [(&p256, P256), (&p384, P384), (&ed, ED25519), (&rsa, RSA)];
    for (key, algorithms) in pairs {
        let open = set(&[published(key, algorithms[0], "k", unnamed.clone())]);
        for algorithm in algorithms {
            let token = sign(&claims(), *algorithm, "k", key);
            assert_eq!(judged(&token, &open, None, NOW).unwrap(), "kim", "{algorithm:?}");
            let same = set(&[published(key, algorithms[0], "k", named(*algorithm))]);
            assert_eq!(judged(&token, &same, None, NOW).unwrap(), "kim", "{algorithm:?}");
            for other in algorithms.iter().filter(|other| *other != algorithm) {
                let named = set(&[published(key, algorithms[0], "k", named(*other))]);
                assert!(judged(&token, &named, None, NOW).is_err(), "{algorithm:?} with a key for {other:?}");
            }
            for (foreign, its) in pairs.iter().filter(|(_, its)| its != &algorithms) {
                let keys = set(&[published(foreign, its[0], "k", unnamed.clone())]);
                assert!(judged(&token, &keys, None, NOW).is_err(), "{algorithm:?} with a key for {its:?}");
            }
        }
        let signed = sign(&claims(), algorithms[0], "k", key);
        let (message, signature) = signed.rsplit_once('.').unwrap();
        let mut bytes = BASE64.decode(signature).unwrap();
        bytes[7] ^= 1;
        assert!(judged(&format!("{message}.{}", BASE64.encode(bytes)), &open, None, NOW).is_err(), "{algorithms:?}");
    }
}

#[test]
fn unsigned_tokens_and_shared_secrets_pass_with_no_key() {
    let rsa = rsa();
    let jwk = published(&rsa, Algorithm::RS256, "k", json!({"alg": null}));
    // a set that says its public key is a shared secret makes it none
    let oct = json!({"kty": "oct", "kid": "k", "k": BASE64.encode("secret"), "alg": "HS256"});
    let mut keys = set(&[jwk.clone(), oct]);
    assert_eq!(keys.len(), 1);
    let payload = BASE64.encode(claims().to_string());
    for alg in ["none", "None", "NONE", "", "HS256", "RS1", "ES512"] {
        let head = BASE64.encode(json!({"alg": alg, "typ": "JWT", "kid": "k"}).to_string());
        assert!(judged(&format!("{head}.{payload}."), &keys, None, NOW).is_err(), "{alg} was accepted");
    }
    for secret in [jwk["n"].as_str().unwrap().as_bytes().to_vec(), jwk.to_string().into_bytes(), b"secret".to_vec()] {
        let secret = EncodingKey::from_secret(&secret).unwrap();
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let token = sign(&claims(), algorithm, "k", &secret);
            assert!(judged(&token, &keys, None, NOW).is_err(), "{algorithm:?} was accepted");
            // and not even where the key were taken for one that fits
            keys[0].algorithms = vec![algorithm];
            assert!(judged(&token, &keys, None, NOW).is_err(), "{algorithm:?} was accepted");
        }
    }
}

#[test]
fn only_keys_for_signatures_with_a_name_are_taken() {
    let key = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let taken = |change: Value| set(&[published(&key, Algorithm::ES256, "k", change)]).len();
    for good in [json!({}), json!({"use": null}), json!({"use": null, "key_ops": ["verify"]}), json!({"x5t": "x"})] {
        assert_eq!(taken(good.clone()), 1, "{good}");
    }
    for bad in [
        json!({"use": "enc"}),
        json!({"use": null, "key_ops": ["encrypt"]}),
        json!({"kid": null}),
        json!({"kid": 1}),
        json!({"crv": "P-521"}),
        json!({"crv": "secp256k1"}),
        json!({"kty": "RSA"}),
        json!({"alg": "RS256"}),
        json!({"alg": "ECDH-ES"}),
        json!({"x": "!"}),
    ] {
        assert_eq!(taken(bad.clone()), 0, "{bad}");
    }
    // what is not understood stands in nobody's way
    let good = published(&key, Algorithm::ES256, "k", json!({}));
    assert_eq!(set(&[json!(1), json!({}), json!({"kty": "new"}), good.clone()]).len(), 1);
    assert_eq!(set(&vec![good; 100]).len(), MOST_KEYS);
    for bad in ["", "[]", "{}", "{\"keys\": 1}"] {
        assert!(super::keys(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn claims_are_what_they_must_be_and_times_within_the_leeway() {
    let key = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let keys = set(&[published(&key, Algorithm::ES256, "k", json!({}))]);
    let at = |field: &str, value: Value, seconds: i64| {
        let mut changed = claims();
        changed[field] = value;
        changed.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        judged(&sign(&changed, Algorithm::ES256, "k", &key), &keys, None, seconds)
    };
    let good = [
        at("x", json!(1), NOW + 929),
        at("exp", json!(NOW - 29), NOW),
        at("nbf", json!(NOW + 30), NOW),
        at("iat", json!(NOW + 30), NOW),
        at("iat", Value::Null, NOW),
        at("exp", serde_json::from_str(&format!("{}.75", NOW + 1)).unwrap(), NOW),
        at("aud", json!(["somebody", "ledger"]), NOW),
        at("sub", json!("x".repeat(255)), NOW),
    ];
    for (n, judged) in good.into_iter().enumerate() {
        assert!(judged.is_ok(), "{n}: {judged:?}");
    }
    let bad = [
        at("x", json!(1), NOW + 930),
        at("exp", json!(NOW - 30), NOW),
        at("exp", Value::Null, NOW),
        at("exp", json!("soon"), NOW),
        at("exp", json!(1e300), NOW),
        at("exp", json!(i64::MIN), NOW),
        at("nbf", json!(NOW + 31), NOW),
        at("nbf", json!(i64::MAX), NOW),
        at("nbf", json!("now"), NOW),
        at("iat", json!(NOW + 31), NOW),
        at("iss", json!("https://id.example/realm/"), NOW),
        at("iss", Value::Null, NOW),
        at("aud", json!("ledger2"), NOW),
        at("aud", json!([]), NOW),
        at("aud", Value::Null, NOW),
        at("sub", Value::Null, NOW),
        at("sub", json!(""), NOW),
        at("sub", json!("x".repeat(256)), NOW),
        at("sub", json!("a\u{0}b"), NOW),
        at("sub", json!(7), NOW),
        at("x", json!("x".repeat(LONGEST_TOKEN)), NOW),
    ];
    for (n, judged) in bad.into_iter().enumerate() {
        assert!(matches!(judged, Err(AppError::Unauthenticated(_))), "{n}: {judged:?}");
    }
    // a header that asks for what nobody here understands
    let header = Header { kid: Some("k".into()), crit: Some(vec!["exp2".into()]), ..Header::new(Algorithm::ES256) };
    assert!(judged(&jsonwebtoken::encode(&header, &claims(), &key).unwrap(), &keys, None, NOW).is_err());
    let header = Header::new(Algorithm::ES256);
    assert!(judged(&jsonwebtoken::encode(&header, &claims(), &key).unwrap(), &keys, None, NOW).is_err(), "no kid");
}

#[test]
fn the_token_of_a_login_is_of_this_login() {
    let key = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let keys = set(&[published(&key, Algorithm::ES256, "k", json!({}))]);
    let with = |changes: Value| {
        let mut changed = claims();
        for (name, value) in changes.as_object().unwrap() {
            changed[name] = value.clone();
        }
        let login = Login { nonce: "n", client_id: "ledger" };
        judged(&sign(&changed, Algorithm::ES256, "k", &key), &keys, Some(login), NOW)
    };
    for good in [json!({"nonce": "n"}), json!({"nonce": "n", "aud": ["ledger", "x"], "azp": "ledger"})] {
        assert!(with(good.clone()).is_ok(), "{good}");
    }
    for bad in [
        json!({}),
        json!({"nonce": "m"}),
        json!({"nonce": ""}),
        json!({"nonce": "n", "azp": "x"}),
        json!({"nonce": "n", "aud": ["ledger", "x"]}),
        json!({"nonce": "n", "aud": "x"}),
    ] {
        assert!(with(bad.clone()).is_err(), "{bad}");
    }
}
