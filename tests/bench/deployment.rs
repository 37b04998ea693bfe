//! The ledger as its operators have it: the real server on a database, set up through its API.

use crate::{
    Outcome,
    client::{self, Answer, Connection},
};
use serde_json::{Value, json};
use std::{
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};
use support::{Server, binary};

/// The cards of all benches.
pub const MODEL: &str = "NVIDIA H100 80GB HBM3";
pub const GIB: u64 = 1 << 30;
const OPERATOR: &str = "operator@example.com";
const PASSWORD: &str = "a password of benches";
/// Longer than any bench: nobody confirms, renews or reports but where that is measured.
const DAY_S: u32 = 86_400;

/// A server on a database, with an operator.
#[derive(Debug)]
pub struct Deployment {
    server: Server,
    pub database_url: String,
    /// The operator's API key.
    pub operator: String,
}

/// Who is billed.
#[derive(Debug, Clone)]
pub struct Tenant {
    pub id: String,
    /// The API key of a member.
    pub member: String,
}

/// A host that joined and reported once.
#[derive(Debug, Clone)]
pub struct Node {
    pub id: String,
    pub credential: String,
}

impl Deployment {
    /// On an empty database.
    pub async fn start(database_url: String) -> Outcome<Self> {
        init(&database_url)?;
        let server = Server::start_on(&database_url, &[]).await;
        let mut deployment = Self { server, database_url, operator: String::new() };
        let session = deployment.post("/v1/login", &json!({"email": OPERATOR, "password": PASSWORD}), 200).await?;
        deployment.operator = text(&session["token"])?;
        deployment.operator = deployment.key(None, "operator").await?;
        Ok(deployment)
    }

    /// Another server on a database that this one's operator knows.
    pub async fn start_on(database_url: String, operator: String) -> Self {
        Self { server: Server::start_on(&database_url, &[]).await, database_url, operator }
    }

    /// Ends the server in good order; the database stays.
    pub async fn stop(mut self) {
        self.server.stop().await;
    }

    pub fn address(&self) -> Outcome<SocketAddr> {
        self.url().trim_start_matches("http://").parse().map_err(|e| format!("{}: {e}", self.url()))
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Asks the operator's question.
    pub async fn post(&self, path: &str, body: &Value, status: u16) -> Outcome<Value> {
        let mut connection = Connection::open(self.address()?).await?;
        let answer = connection.json(&client::post(path, &self.operator, body), status).await;
        answer.map_err(|said| format!("POST {path}: {said}"))
    }

    pub async fn key(&self, tenant: Option<&str>, role: &str) -> Outcome<String> {
        let body = json!({"tenant_id": tenant, "name": role, "role": role});
        text(&self.post("/v1/keys", &body, 201).await?["secret"])
    }

    /// A pool whose graces outlast every bench.
    pub async fn pool(&self) -> Outcome<String> {
        let body = json!({"name": "pool", "hold_grace_s": DAY_S, "silence_grace_s": DAY_S});
        text(&self.post("/v1/pools", &body, 201).await?["pool_id"])
    }

    /// Hosts of eight cards of 80 GiB each.
    pub async fn nodes(&self, pool: &str, count: usize) -> Outcome<Vec<Node>> {
        let mut nodes = Vec::with_capacity(count);
        for number in 0..count {
            nodes.push(self.node(pool, number).await?);
        }
        Ok(nodes)
    }

    async fn node(&self, pool: &str, number: usize) -> Outcome<Node> {
        let token = self.join_token(pool).await?;
        let name = format!("node {number}");
        let join = json!({"token": token, "hostname": name, "machine_id": name});
        let joined = self.post("/v1/nodes/join", &join, 201).await?;
        let (id, credential) = (text(&joined["node_id"])?, text(&joined["credential"])?);
        let cards = (0..8).map(|card| {
            let uuid = format!("GPU-{}", uuid::Uuid::from_u128((number * 8 + card + 1) as u128));
            json!({"uuid": uuid, "model": MODEL, "memory_total": 80 * GIB, "driver_overhead": 0})
        });
        let cards: Vec<Value> = cards.collect();
        let now = types::Clock::System.now();
        let report = json!({"boot_id": "boot", "sent_at": now, "gpus": cards, "alive": [], "exited": []});
        let report = client::post("/v1/node-reports", &credential, &report);
        let mut connection = Connection::open(self.address()?).await?;
        until_200(&mut connection, &report).await?;
        Ok(Node { id, credential })
    }

    pub async fn join_token(&self, pool: &str) -> Outcome<String> {
        text(&self.post(&format!("/v1/pools/{pool}/join-tokens"), &json!({}), 201).await?["secret"])
    }

    pub async fn tenants(&self, count: usize) -> Outcome<Vec<Tenant>> {
        let mut tenants = Vec::with_capacity(count);
        for number in 0..count {
            let id = self.tenant(number).await?;
            let member = self.key(Some(&id), "member").await?;
            tenants.push(Tenant { id, member });
        }
        Ok(tenants)
    }

    /// A tenant whose clock is UTC: its id.
    pub async fn tenant(&self, number: usize) -> Outcome<String> {
        let body = json!({"name": format!("tenant {number}"), "zone": "UTC", "currency": "USD"});
        text(&self.post("/v1/tenants", &body, 201).await?["tenant_id"])
    }
}

/// Until somebody leads the pool, it is a matter of moments.
async fn until_200(connection: &mut Connection, request: &[u8]) -> Outcome<()> {
    for _ in 0..100 {
        let answer: Answer<'_> = connection.send(request).await?;
        match answer.status {
            503 => tokio::time::sleep(Duration::from_millis(50)).await,
            _ => return answer.expect(200),
        }
    }
    Err("nobody leads the pool".to_owned())
}

/// Makes the schema and the first operator.
fn init(database_url: &str) -> Outcome<()> {
    let mut init = Command::new(binary())
        .args(["admin", "init", "--email", OPERATOR, "--name", "Operator", "--password-stdin"])
        .env("DATABASE_URL", database_url)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", binary().display()))?;
    if let Some(mut stdin) = init.stdin.take() {
        stdin.write_all(PASSWORD.as_bytes()).map_err(|e| e.to_string())?;
    }
    let init = init.wait_with_output().map_err(|e| e.to_string())?;
    if init.status.success() {
        return Ok(());
    }
    Err(format!("gpuledger admin init: {}", String::from_utf8_lossy(&init.stderr)))
}

/// The text of a field that must be one.
pub fn text(value: &Value) -> Outcome<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no text"))
}
