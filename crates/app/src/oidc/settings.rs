//! What is configured of a token issuer.

use reqwest::Url;
use secrecy::SecretString;
use std::{net::IpAddr, str::FromStr, time::Duration};

/// A token issuer whose people may come in.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    /// How it is called here: in paths and in the configuration.
    pub name: String,
    /// Claim `iss` of its tokens, and where its discovery document is found.
    pub issuer: SecureUrl,
    /// Claim `aud` of bearer tokens: one of these. With none, its tokens are no credentials here.
    pub audiences: Vec<String>,
    /// For logging in with a browser; without it, that is not offered.
    pub client: Option<ClientSettings>,
    /// What its clock and ours may differ.
    pub leeway: Duration,
    /// How long its keys are used before they are read again: so long may a key pass that it has withdrawn.
    pub refresh: Duration,
    /// How long known keys are used while it cannot be asked.
    pub outage: Duration,
}

/// What this ledger is to the issuer.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    pub id: String,
    /// Absent for a public client, which PKCE alone protects.
    pub secret: Option<SecretString>,
    /// Where the issuer sends the browser back to: a page that hands code and state in.
    pub redirect_uri: SecureUrl,
    /// What is asked for; `openid` is among them.
    pub scopes: Vec<String>,
}

/// The address of something that is trusted for what it says: `https`, or `http` on this machine alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecureUrl {
    /// As it was given, because issuers are compared character for character.
    text: String,
    url: Url,
}

impl SecureUrl {
    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) const fn url(&self) -> &Url {
        &self.url
    }
}

/// Why a text is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecureUrlError {
    #[error("{0:?} is not an address such as https://id.example/realm, of at most 500 bytes")]
    Malformed(String),
    #[error("{0:?} must begin with https://; http:// is for this machine alone")]
    Insecure(String),
    #[error("{0:?} must have neither a user nor a fragment")]
    Extra(String),
}

/// As long as an issuer may be where it is stored.
const LONGEST_URL: usize = 500;

impl FromStr for SecureUrl {
    type Err = SecureUrlError;

    fn from_str(text: &str) -> Result<Self, SecureUrlError> {
        let shown = || text.chars().take(80).collect::<String>();
        let url = Url::parse(text)
            .ok()
            .filter(|url| url.has_host() && text.len() <= LONGEST_URL)
            .ok_or_else(|| SecureUrlError::Malformed(shown()))?;
        if !(url.scheme() == "https" || url.scheme() == "http" && is_here(&url)) {
            return Err(SecureUrlError::Insecure(shown()));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(SecureUrlError::Extra(shown()));
        }
        Ok(Self { text: text.to_owned(), url })
    }
}

fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_secure_or_of_this_machine() {
        for good in [
            "https://id.example",
            "https://id.example:8443/realms/lab",
            "http://127.0.0.1:8080/r",
            "http://localhost:1",
            "http://[::1]:8080",
        ] {
            assert_eq!(good.parse::<SecureUrl>().unwrap().as_str(), good);
        }
        let long = format!("https://id.example/{}", "x".repeat(500));
        for bad in [
            "",
            "id.example",
            "http://id.example",
            "http://10.0.0.1",
            "http://localhost.example",
            "http://127.0.0.1.example",
            "ftp://localhost",
            "file:///etc/passwd",
            "https://user@id.example",
            "https://user:secret@id.example",
            "https://id.example#x",
            &long,
        ] {
            assert!(bad.parse::<SecureUrl>().is_err(), "{bad} was accepted");
        }
    }
}
