//! Bearer credentials: nothing that was not minted is well-formed by accident, and whatever is presented while no key
//! can be looked up is refused or cannot be decided, without a panic.

use app::{
    App, AppError, Random, SchedulerSettings, Schedulers, SessionSettings, Sessions,
    credential::{CredentialKind, Presented},
};
use std::{sync::OnceLock, time::Duration};
use store::{Store, StoreSettings};
use tokio::runtime::{Builder, Runtime};
use types::{Clock, ServerId};

pub(crate) const WORDS: &[&str] = &[
    "glk_",
    "glj_",
    "gln_",
    "gli_",
    "k3v9x2mq",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ",
    "eyJhbGciOiJub25lIn0",
    "eyJzdWIiOiIwMTk4MDAwMC0wMDAwLTcwMDAtODAwMC0wMDAwMDAwMDAwMDEifQ",
    ".",
    "..",
];

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(presented) = Presented::parse(text) {
        let marker = match presented.kind {
            CredentialKind::ApiKey => "glk_",
            CredentialKind::JoinToken => "glj_",
            CredentialKind::Node => "gln_",
            CredentialKind::Invitation => "gli_",
        };
        assert_eq!(text.len(), 4 + 8 + 1 + 43, "{text:?}");
        assert_eq!(text.get(..13), Some(format!("{marker}{}_", presented.prefix).as_str()));
        assert!(!presented.matches(&[0; 32]));
    }
    static SERVICE: OnceLock<(Runtime, App)> = OnceLock::new();
    let (runtime, app) = SERVICE.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let app = runtime.block_on(async { app() });
        (runtime, app)
    });
    match runtime.block_on(app.authenticate(text)) {
        Err(AppError::Unauthenticated(_) | AppError::Unavailable(_)) => {}
        other => panic!("{text:?}: {other:?}"),
    }
}

/// An application whose database is away, and says so at once.
fn app() -> App {
    let settings = StoreSettings {
        acquire: Duration::from_millis(1),
        ..StoreSettings::new("postgres://nobody@127.0.0.1:1/nothing")
    };
    App::new(
        Store::open(&settings).unwrap(),
        Clock::System,
        Random::System,
        Sessions::new(SessionSettings::default()),
        Schedulers::new(ServerId(uuid::Uuid::nil()), SchedulerSettings::default()),
    )
}
