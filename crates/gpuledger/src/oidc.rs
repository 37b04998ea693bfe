//! `[oidc.NAME]`: the token issuers whose people may come in.

use crate::{config::ConfigError, duration};
use app::oidc::{ClientSettings, ProviderSettings, RETRY};
use secrecy::SecretString;
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// The issuers by their names.
pub type Providers = BTreeMap<String, Provider>;

/// The most issuers.
const MOST: usize = 16;
/// The most audiences, and the most scopes, of one issuer.
const MOST_TEXTS: usize = 32;

/// One issuer, as it is configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    pub issuer: String,
    #[serde(default)]
    pub audiences: Vec<String>,
    pub client_id: Option<String>,
    pub client_secret: Option<SecretString>,
    pub redirect_uri: Option<String>,
    #[serde(default = "openid")]
    pub scopes: Vec<String>,
    #[serde(default = "usual_leeway", deserialize_with = "duration::deserialize")]
    pub leeway: Duration,
    #[serde(default = "usual_refresh", deserialize_with = "duration::deserialize")]
    pub refresh: Duration,
    #[serde(default = "usual_outage", deserialize_with = "duration::deserialize")]
    pub outage: Duration,
}

fn openid() -> Vec<String> {
    vec!["openid".to_owned()]
}

const fn usual_leeway() -> Duration {
    Duration::from_secs(30)
}

const fn usual_refresh() -> Duration {
    Duration::from_secs(300)
}

const fn usual_outage() -> Duration {
    Duration::from_secs(3600)
}

/// What the issuers are to the use cases.
///
/// # Errors
/// [`ConfigError`], naming each key that is wrong.
pub fn settings(providers: &Providers) -> Result<Vec<ProviderSettings>, ConfigError> {
    let mut wrong = Vec::new();
    if providers.len() > MOST {
        wrong.push(format!("oidc must have at most {MOST} issuers"));
    }
    let mut settings: Vec<ProviderSettings> = Vec::new();
    for (name, provider) in providers {
        match provider.settings(name) {
            // a bearer token says its issuer alone
            Ok(one) if settings.iter().any(|other| other.issuer == one.issuer) => {
                wrong.push(format!("oidc.{name}.issuer is that of another issuer, too"));
            }
            Ok(one) => settings.push(one),
            Err(faults) => wrong.extend(faults.into_iter().map(|fault| format!("oidc.{name}{fault}"))),
        }
    }
    if wrong.is_empty() { Ok(settings) } else { Err(ConfigError(wrong.join("; "))) }
}

impl Provider {
    /// The faults follow the issuer's name.
    fn settings(&self, name: &str) -> Result<ProviderSettings, Vec<String>> {
        let mut wrong = Vec::new();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
        if !(1..=32).contains(&name.len()) || !name.chars().all(is_name) {
            wrong.push(": a name has 1 to 32 of a to z, 0 to 9, _ and -".to_owned());
        }
        let mut within = |key: &str, value: Duration, least: Duration, most: Duration| {
            if value < least || value > most {
                wrong.push(format!(".{key} must be {} to {} s", least.as_secs(), most.as_secs()));
            }
        };
        within("leeway", self.leeway, Duration::ZERO, Duration::from_secs(120));
        within("refresh", self.refresh, RETRY, Duration::from_secs(3600));
        within("outage", self.outage, self.refresh, Duration::from_secs(86_400));
        for (key, texts) in [("audiences", &self.audiences), ("scopes", &self.scopes)] {
            let is_text = |text: &String| (1..=500).contains(&text.len()) && !text.chars().any(char::is_whitespace);
            if texts.len() > MOST_TEXTS || !texts.iter().all(is_text) {
                wrong.push(format!(".{key} must be at most {MOST_TEXTS} texts without white space"));
            }
        }
        let issuer = self.issuer.parse().map_err(|e| wrong.push(format!(".issuer: {e}"))).ok();
        if self.issuer.contains('?') {
            wrong.push(".issuer must have no query".to_owned());
        }
        let client = self.client(&mut wrong);
        if self.audiences.is_empty() && self.client_id.is_none() {
            wrong.push(" does nothing: give audiences, or client_id and redirect_uri, or all".to_owned());
        }
        match issuer {
            Some(issuer) if wrong.is_empty() => Ok(ProviderSettings {
                name: name.to_owned(),
                issuer,
                audiences: self.audiences.clone(),
                client,
                leeway: self.leeway,
                refresh: self.refresh,
                outage: self.outage,
            }),
            _ => Err(wrong),
        }
    }

    fn client(&self, wrong: &mut Vec<String>) -> Option<ClientSettings> {
        let (Some(id), Some(redirect_uri)) = (&self.client_id, &self.redirect_uri) else {
            if self.client_id.is_some() || self.redirect_uri.is_some() || self.client_secret.is_some() {
                wrong.push(" needs both client_id and redirect_uri, or neither and no client_secret".to_owned());
            }
            return None;
        };
        if !self.scopes.iter().any(|scope| scope == "openid") {
            wrong.push(".scopes must name openid".to_owned());
        }
        if !(1..=500).contains(&id.len()) {
            wrong.push(".client_id must have 1 to 500 bytes".to_owned());
        }
        let redirect_uri = redirect_uri.parse().map_err(|e| wrong.push(format!(".redirect_uri: {e}"))).ok()?;
        let (id, secret, scopes) = (id.clone(), self.client_secret.clone(), self.scopes.clone());
        Some(ClientSettings { id, secret, redirect_uri, scopes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use figment::{
        Figment,
        providers::{Format, Toml},
    };

    fn read(text: &str) -> Result<Vec<ProviderSettings>, String> {
        #[derive(Deserialize)]
        struct File {
            oidc: Providers,
        }
        let file: File = Figment::from(Toml::string(text)).extract().map_err(|e| e.to_string())?;
        settings(&file.oidc).map_err(|e| e.to_string())
    }

    #[test]
    fn an_issuer_needs_little() {
        let read = read("[oidc.corp]\nissuer = 'https://id.example/realm'\naudiences = ['ledger']").unwrap();
        assert_eq!((read[0].name.as_str(), read[0].issuer.as_str()), ("corp", "https://id.example/realm"));
        assert_eq!((read[0].leeway, read[0].client.is_none()), (Duration::from_secs(30), true));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let https = "issuer = 'https://id.example'";
        let client = "client_id = 'c'\nredirect_uri = 'https://ledger.example/in'";
        for (text, named) in [
            (format!("[oidc.corp]\n{https}"), "oidc.corp does nothing"),
            (format!("[oidc.Corp]\n{https}\n{client}"), "oidc.Corp: a name"),
            ("[oidc.corp]\nissuer = 'http://id.example'\naudiences = ['l']".to_owned(), "oidc.corp.issuer: "),
            ("[oidc.corp]\nissuer = 'https://id.example/?a'\naudiences = ['l']".to_owned(), "oidc.corp.issuer must"),
            (format!("[oidc.corp]\n{https}\naudiences = ['a b']"), "oidc.corp.audiences"),
            (format!("[oidc.corp]\n{https}\nclient_id = 'c'"), "redirect_uri"),
            (format!("[oidc.corp]\n{https}\naudiences = ['l']\nclient_secret = 's'"), "client_secret"),
            (format!("[oidc.corp]\n{https}\n{client}\nscopes = ['email']"), "oidc.corp.scopes must name openid"),
            (format!("[oidc.corp]\n{https}\n{client}\nleeway = '121s'"), "oidc.corp.leeway must be 0 to 120 s"),
            (format!("[oidc.corp]\n{https}\n{client}\nrefresh = '4s'"), "oidc.corp.refresh must be 5 to 3600 s"),
            (format!("[oidc.corp]\n{https}\n{client}\noutage = '1m'"), "oidc.corp.outage must be 300 to"),
            (format!("[oidc.a]\n{https}\n{client}\n[oidc.b]\n{https}\n{client}"), "oidc.b.issuer is that of another"),
        ] {
            let message = read(&text).expect_err(&text);
            assert!(message.contains(named), "{text}: {message}");
        }
    }

    #[test]
    fn a_client_secret_is_not_shown() {
        let text = "[oidc.corp]\nissuer = 'https://id.example'\nclient_id = 'c'\nclient_secret = 'hidden'\n\
                    redirect_uri = 'http://localhost:1/in'";
        assert!(!format!("{:?}", read(text).unwrap()).contains("hidden"));
    }
}
