//! The servers that work on one database: each says where it is, and sends the changes of a pool that another one leads
//! to that one.
//!
//! A server shows who it is with a token that it signs with the key pair that all servers read from the database. It is
//! good for one receiver and one minute.

use crate::{
    App,
    error::{AppError, Imbalance, Invalid, Refusal},
    scheduler::{Answer, Command},
    session,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::{Scope, leadership::Leader, server::ServerRow};
use tokio::time::{Instant as Monotonic, timeout};
use types::{Instant, PoolId, ServerId};

/// How long a connection to another server may take to be made.
const CONNECT: Duration = Duration::from_secs(1);
/// The longest answer that is read: what a leader knows of a large pool.
const MAX_ANSWER: usize = 64 << 20;
/// How long who leads a pool is believed without asking again.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How soon the database is asked again while nobody leads, and whether a leader that does not answer still is one.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// How long a command may take once its leader has it.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a token is good, and how long this server goes on to use one.
const TOKEN_S: i64 = 60;
const TOKEN_USED: Duration = Duration::from_secs(20);
/// After how long without a sign a server that did not say good-bye is forgotten.
const UNSEEN_S: f64 = 86_400.0;

/// How the other servers are reached, and where they reach this one. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    own_url: String,
    started_at: Instant,
    /// Held while the database is asked, so that many who wait ask once.
    leaders: tokio::sync::Mutex<HashMap<PoolId, (Monotonic, Option<Leader>)>>,
    tokens: Mutex<HashMap<ServerId, (Monotonic, String)>>,
}

/// Why other servers cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    #[error("{0:?} is no address of a server: give http:// or https:// and a host")]
    Address(String),
    #[error("the certificates to trust cannot be used")]
    Setup(#[source] reqwest::Error),
}

/// What became of a command that was sent.
enum Sent {
    /// Its leader answered.
    Answered(Result<Answer, AppError>),
    /// It is not known to have been decided: its receiver does not lead, or is not reached. To send it again is safe, as
    /// every command may come twice.
    Again(String),
}

impl Peers {
    /// `own_url` is where the others reach this server, such as `http://10.0.0.5:7070`; `ca` holds the only certificates
    /// to trust, as PEM.
    ///
    /// # Errors
    /// When the address or the certificates cannot be used.
    pub fn new(own_url: &str, ca: Option<&[u8]>, started_at: Instant) -> Result<Self, PeersError> {
        let secure = own_url.starts_with("https://");
        let well_formed = reqwest::Url::parse(own_url).is_ok_and(|url| url.has_host());
        if !well_formed || !(secure || own_url.starts_with("http://")) {
            return Err(PeersError::Address(own_url.to_owned()));
        }
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            // the token is never sent on to where a redirect points
            .redirect(reqwest::redirect::Policy::none())
            // servers reach each other directly
            .no_proxy();
        if let Some(pem) = ca {
            let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(PeersError::Setup)?;
            builder = builder.tls_certs_only(certificates);
        } else if !secure {
            // without this, a host without any certificates could not even talk plain HTTP
            builder = builder.tls_certs_only([]);
        }
        Ok(Self(Arc::new(Inner {
            http: builder.build().map_err(PeersError::Setup)?,
            own_url: own_url.trim_end_matches('/').to_owned(),
            started_at,
            leaders: tokio::sync::Mutex::default(),
            tokens: Mutex::default(),
        })))
    }

    /// Who leads the pool, as far as is known: asked of the database when that is older than `age`.
    async fn leader(&self, app: &App, pool: PoolId, age: Duration) -> Result<Option<Leader>, AppError> {
        let mut leaders = self.0.leaders.lock().await;
        if let Some((asked, known)) = leaders.get(&pool)
            && asked.elapsed() < if known.is_some() { age } else { ASK_AGAIN }
        {
            return Ok(known.clone());
        }
        let mut tx = app.store.begin("server.leader", Scope::Operator).await?;
        let leader = store::leadership::leader(&mut tx, pool).await?;
        drop(tx);
        leaders.insert(pool, (Monotonic::now(), leader.clone()));
        Ok(leader)
    }

    /// Sends a command to the pool's leader.
    async fn send(&self, app: &App, pool: PoolId, command: &Command) -> Result<Sent, AppError> {
        let Some(leader) = self.leader(app, pool, KNOWN_FOR).await? else {
            return Ok(Sent::Again("nobody leads it".into()));
        };
        if leader.server_id == app.schedulers.server() {
            // its loop has not said so yet, or has just stepped down
            return Ok(Sent::Again("this server takes it over or gives it up".into()));
        }
        let post = async { timeout(ANSWER_WITHIN, self.post(app, pool, &leader, command)).await };
        tokio::pin!(post);
        loop {
            let answer = tokio::select! {
                answer = &mut post => answer,
                // one that stands still takes connections, and never answers
                () = tokio::time::sleep(2 * ASK_AGAIN) => {
                    match self.leader(app, pool, ASK_AGAIN).await? {
                        Some(now) if now == leader => continue,
                        _ => return Ok(Sent::Again("its leader was replaced".into())),
                    }
                }
            };
            let why = match answer {
                Ok(Ok(Err(AppError::NotLeading))) => "its leader stepped down".to_owned(),
                Ok(Ok(answer)) => return Ok(Sent::Answered(answer)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => return Ok(Sent::Answered(Err(AppError::Unavailable("the leader does not answer".into())))),
            };
            let mut leaders = self.0.leaders.lock().await;
            if leaders.get(&pool).is_some_and(|(_, known)| known.as_ref() == Some(&leader)) {
                leaders.remove(&pool);
            }
            return Ok(Sent::Again(why));
        }
    }

    async fn post(
        &self,
        app: &App,
        pool: PoolId,
        leader: &Leader,
        command: &Command,
    ) -> Result<Result<Answer, AppError>, AppError> {
        let unreachable = |e: reqwest::Error| AppError::Unavailable(format!("{} is not reached: {e}", leader.url));
        let body = serde_json::to_vec(command).map_err(|e| AppError::Internal(format!("a command is no JSON: {e}")))?;
        let mut response = self
            .0
            .http
            .post(format!("{}/internal/pools/{pool}/commands", leader.url))
            .bearer_auth(self.token(app, leader.server_id).await?)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(AppError::Unavailable(format!("{} answers {status}", leader.url)));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(AppError::Unavailable(format!("{} answers too much", leader.url)));
            }
            body.extend_from_slice(&chunk);
        }
        let told: Result<Answer, Told> = serde_json::from_slice(&body)
            .map_err(|e| AppError::Unavailable(format!("the answer of {} is not understood: {e}", leader.url)))?;
        Ok(told.map_err(AppError::from))
    }

    /// A token for one receiver; one made lately serves again.
    async fn token(&self, app: &App, receiver: ServerId) -> Result<String, AppError> {
        let kept = |tokens: &HashMap<ServerId, (Monotonic, String)>| {
            tokens.get(&receiver).filter(|(made, _)| made.elapsed() < TOKEN_USED).map(|(_, token)| token.clone())
        };
        if let Some(token) = kept(&self.tokens()) {
            return Ok(token);
        }
        let exp = app.clock.now().as_millis() / 1000 + TOKEN_S;
        let sub = app.schedulers.server().to_string();
        let claims = Claims { iss: app.sessions.issuer().to_owned(), aud: audience(receiver), sub, exp };
        let token = session::sign(app, &claims).await?;
        let mut tokens = self.tokens();
        tokens.retain(|_, (made, _)| made.elapsed() < TOKEN_USED);
        tokens.insert(receiver, (Monotonic::now(), token.clone()));
        Ok(token)
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, HashMap<ServerId, (Monotonic, String)>> {
        // each change replaces a whole value, so that what a panic leaves is good
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    exp: i64,
}

/// Tokens of people have another audience, so neither passes for the other.
fn audience(receiver: ServerId) -> String {
    format!("gpuledger-server:{receiver}")
}

impl App {
    /// Sends a command to whoever leads the pool, this server or another, and waits for its answer. While nobody does,
    /// it waits as long as a take-over may take.
    pub(crate) async fn ask(&self, pool: PoolId, command: Command) -> Result<Answer, AppError> {
        let Some(peers) = self.schedulers.peers() else {
            return match self.ask_here(pool, command).await {
                Err(AppError::NotLeading) => Err(AppError::Unavailable("this server does not lead the pool".into())),
                answer => answer,
            };
        };
        // a view is shown without, rather than late; and a new leader looks at its queue by itself
        let patience = match command {
            Command::Look | Command::Reconsider => Duration::ZERO,
            _ => self.schedulers.take_over_within(),
        };
        let give_up = Monotonic::now() + patience;
        let mut pause = Duration::from_millis(20);
        loop {
            let why = if self.schedulers.leads(pool) {
                match self.ask_here(pool, command.clone()).await {
                    Err(AppError::NotLeading) => "this server stepped down".to_owned(),
                    answer => return answer,
                }
            } else {
                match peers.send(self, pool, &command).await? {
                    Sent::Answered(answer) => {
                        metrics::counter!("gpuledger_forwarded_commands_total").increment(1);
                        return answer;
                    }
                    Sent::Again(why) => why,
                }
            };
            if Monotonic::now() + pause >= give_up {
                return Err(AppError::Unavailable(format!("no leader of pool {pool} is reached: {why}")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN);
        }
    }
}

/// Makes sure that the caller is another server of this database.
///
/// # Errors
/// [`AppError::Unauthenticated`] for anybody else.
pub async fn authenticate(app: &App, token: &str) -> Result<(), AppError> {
    let claims: Claims = session::signed(app, token, &audience(app.schedulers.server())).await?;
    if app.clock.now().as_millis() / 1000 >= claims.exp {
        return Err(AppError::Unauthenticated("the token has expired"));
    }
    Ok(())
}

/// Takes a command that another server sent, which [`authenticate`] has made sure of, and gives the answer as it is sent
/// back.
///
/// # Errors
/// [`AppError::Invalid`] for what is no command.
pub async fn receive(app: &App, pool: PoolId, command: &[u8]) -> Result<Vec<u8>, AppError> {
    let command: Command =
        serde_json::from_slice(command).map_err(|e| AppError::invalid("body", format!("is no command: {e}")))?;
    let told = app.ask_here(pool, command).await.map_err(Told::from);
    serde_json::to_vec(&told).map_err(|e| AppError::Internal(format!("an answer is no JSON: {e}")))
}

/// Says where this server is reached, and that it lives.
///
/// # Errors
/// What the database says.
pub async fn announce(app: &App) -> Result<(), AppError> {
    let Some(peers) = app.schedulers.peers() else { return Ok(()) };
    let row = ServerRow {
        server_id: app.schedulers.server(),
        url: peers.0.own_url.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: peers.0.started_at,
    };
    let mut tx = app.store.begin("server.announce", Scope::Operator).await?;
    store::server::announce(&mut tx, &row).await?;
    Ok(tx.commit().await?)
}

/// Says that this server ends.
///
/// # Errors
/// What the database says.
pub async fn forget(app: &App) -> Result<(), AppError> {
    let mut tx = app.store.begin("server.forget", Scope::Operator).await?;
    store::server::forget(&mut tx, app.schedulers.server()).await?;
    Ok(tx.commit().await?)
}

/// Forgets servers that ended a day ago or longer without saying so.
pub(crate) async fn forget_unseen(app: &App) -> Result<(), AppError> {
    let mut tx = app.store.begin("server.forget_unseen", Scope::Operator).await?;
    store::server::forget_unseen(&mut tx, UNSEEN_S).await?;
    Ok(tx.commit().await?)
}

/// An error on its way from one server to another.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Unauthenticated(String),
    InvitationNeeded,
    Forbidden,
    NotFound(String),
    Invalid(Vec<Invalid>),
    Conflict { code: String, detail: String },
    Refused(Refusal),
    KeyReused,
    SequenceGap { expected: u64 },
    OutOfBalance(Vec<Imbalance>),
    NotLeading,
    Unavailable(String),
    Internal(String),
}

impl From<AppError> for Told {
    fn from(error: AppError) -> Self {
        match error {
            AppError::Unauthenticated(why) => Self::Unauthenticated(why.to_owned()),
            AppError::InvitationNeeded => Self::InvitationNeeded,
            AppError::Forbidden => Self::Forbidden,
            AppError::NotFound(what) => Self::NotFound(what.to_owned()),
            AppError::Invalid(faults) => Self::Invalid(faults),
            AppError::Conflict { code, detail } => Self::Conflict { code: code.to_owned(), detail },
            AppError::Refused(refusal) => Self::Refused(refusal),
            AppError::KeyReused => Self::KeyReused,
            AppError::SequenceGap { expected } => Self::SequenceGap { expected },
            AppError::OutOfBalance(imbalances) => Self::OutOfBalance(imbalances),
            AppError::NotLeading => Self::NotLeading,
            AppError::Unavailable(why) => Self::Unavailable(why),
            AppError::Internal(why) => Self::Internal(why),
        }
    }
}

impl From<Told> for AppError {
    fn from(told: Told) -> Self {
        match told {
            Told::Unauthenticated(why) => Self::Unauthenticated(lasting(why)),
            Told::InvitationNeeded => Self::InvitationNeeded,
            Told::Forbidden => Self::Forbidden,
            Told::NotFound(what) => Self::NotFound(lasting(what)),
            Told::Invalid(faults) => Self::Invalid(faults),
            Told::Conflict { code, detail } => Self::Conflict { code: lasting(code), detail },
            Told::Refused(refusal) => Self::Refused(refusal),
            Told::KeyReused => Self::KeyReused,
            Told::SequenceGap { expected } => Self::SequenceGap { expected },
            Told::OutOfBalance(imbalances) => Self::OutOfBalance(imbalances),
            Told::NotLeading => Self::NotLeading,
            Told::Unavailable(why) => Self::Unavailable(why),
            Told::Internal(why) => Self::Internal(why),
        }
    }
}

/// A stable code or noun of another server's program as text that lasts. There are as many as stand in its source.
fn lasting(text: String) -> &'static str {
    const MOST: usize = 1000;
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(text.as_str()) {
        return text;
    }
    if known.len() >= MOST {
        return "other";
    }
    let text: &'static str = Box::leak(text.into_boxed_str());
    known.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_arrives_as_it_was_sent() {
        for error in [
            AppError::Unauthenticated("the token has expired"),
            AppError::InvitationNeeded,
            AppError::Forbidden,
            AppError::NotFound("node"),
            AppError::invalid("gpus", "must not be 0"),
            AppError::conflict("not_held", "it is active"),
            AppError::Refused(Refusal::QuotaExceeded { violations: Vec::new() }),
            AppError::KeyReused,
            AppError::SequenceGap { expected: 7 },
            AppError::OutOfBalance(Vec::new()),
            AppError::NotLeading,
            AppError::Unavailable("away".into()),
            AppError::Internal("a defect".into()),
        ] {
            let sent = format!("{error:?}");
            let text = serde_json::to_string(&Told::from(error)).unwrap();
            let arrived = AppError::from(serde_json::from_str::<Told>(&text).unwrap());
            assert_eq!(format!("{arrived:?}"), sent);
        }
    }

    #[test]
    fn addresses_without_scheme_or_host_are_refused() {
        for bad in ["10.0.0.5:7070", "ftp://a", "http://", "", "https:/a b"] {
            assert!(Peers::new(bad, None, Instant::EPOCH).is_err(), "{bad:?}");
        }
    }
}
