//! A deployment as its operators have it: the real server in a process of its own, known through its API alone.

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{
    collections::BTreeMap,
    env,
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant as RealTime},
};
use support::{Answer, Client, Database, Server, binary};

pub const OPERATOR: &str = "operator@example.com";
pub const PASSWORD: &str = "a password of tests";
pub const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// A server on a database, with an operator.
#[derive(Debug)]
pub struct Deployment {
    // before the database, so that its connections are gone first
    pub server: Server,
    /// Of the database, with the rights of the schema's owner.
    pub database_url: String,
    /// Logged in.
    pub operator: Client,
    configuration: Vec<(String, String)>,
    _database: Option<Database>,
}

/// Who is billed, with a credential of each role.
#[derive(Debug)]
pub struct Tenant {
    pub id: String,
    /// Its project `default`.
    pub project: String,
    pub admin: Client,
    pub member: Client,
    pub viewer: Client,
}

/// A host that reports when the test says so.
#[derive(Debug)]
pub struct Node {
    pub id: String,
    pub credential: String,
    pub client: Client,
    cards: Vec<Value>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The contents of every table but those that timers write.
pub type Snapshot = BTreeMap<String, String>;

impl Deployment {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With further configuration, as environment variables.
    pub async fn start_with(configuration: &[(&str, &str)]) -> Self {
        Self::on(Database::fresh().await, configuration).await
    }

    /// On a database that may have a history.
    pub async fn on(database: Database, configuration: &[(&str, &str)]) -> Self {
        let url = database.url().to_owned();
        Self { _database: Some(database), ..Self::at(url, configuration).await }
    }

    /// On a database that somebody else keeps.
    pub async fn at(database_url: String, configuration: &[(&str, &str)]) -> Self {
        let init = ["admin", "init", "--email", OPERATOR, "--name", "Operator", "--password-stdin"];
        run(&init, &[("DATABASE_URL", &database_url)], PASSWORD).expect(0);
        let server = Server::start_on(&database_url, configuration).await;
        let operator = log_in(&server.client(), OPERATOR).await;
        let configuration = configuration.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Self { server, database_url, operator, configuration, _database: None }
    }

    /// A client without a credential.
    pub fn anyone(&self) -> Client {
        self.server.client()
    }

    /// Starts a server where the former one was, so that clients find it again.
    pub async fn start_again(&mut self) {
        let address = self.server.url().trim_start_matches("http://").to_owned();
        self.server.kill();
        let mut configuration: Vec<_> = self.configuration.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        configuration.push(("GPULEDGER_HTTP__LISTEN", &address));
        self.server = Server::start_on(&self.database_url, &configuration).await;
    }

    /// A pool that is led.
    pub async fn pool(&self, hold_grace_s: u32, silence_grace_s: u32) -> String {
        let body = json!({"name": "pool", "hold_grace_s": hold_grace_s, "silence_grace_s": silence_grace_s});
        let pool = self.operator.post("/v1/pools", &body).await.expect(201);
        let pool = text(&pool["pool_id"]);
        let change = json!({"hold_grace_s": hold_grace_s});
        eventually("the pool is led", 20, async || {
            // looks at the queue, which only a leader can
            let answer = self.operator.request(Method::PATCH, &format!("/v1/pools/{pool}")).json(&change);
            (self.operator.send(answer).await.status == 200).then_some(())
        })
        .await;
        pool
    }

    pub async fn tenant(&self, name: &str) -> Tenant {
        let body = json!({"name": name, "zone": "Asia/Seoul", "currency": "KRW"});
        let id = text(&self.operator.post("/v1/tenants", &body).await.expect(201)["tenant_id"]);
        self.tenant_of(id).await
    }

    /// A tenant that is there already.
    pub async fn tenant_of(&self, id: String) -> Tenant {
        let projects = self.operator.get(&format!("/v1/projects?tenant_id={id}")).await.expect(200);
        let project = text(&projects["items"][0]["project_id"]);
        let admin = self.key(Some(&id), "tenant_admin").await.1;
        let member = self.key(Some(&id), "member").await.1;
        let viewer = self.key(Some(&id), "viewer").await.1;
        Tenant { id, project, admin, member, viewer }
    }

    /// A new API key: its id, and a client with it.
    pub async fn key(&self, tenant: Option<&str>, role: &str) -> (String, Client) {
        let key = self.secret(tenant, role).await;
        (text(&key["key_id"]), self.anyone().with(key["secret"].as_str().unwrap()))
    }

    /// A new API key as the API shows it this once.
    pub async fn secret(&self, tenant: Option<&str>, role: &str) -> Value {
        let body = json!({"tenant_id": tenant, "name": role, "role": role});
        self.operator.post("/v1/keys", &body).await.expect(201)
    }

    pub async fn join_token(&self, pool: &str) -> String {
        let token = self.operator.post(&format!("/v1/pools/{pool}/join-tokens"), &json!({})).await.expect(201);
        text(&token["secret"])
    }

    /// A host that joined and reported, with cards of so many bytes each.
    pub async fn node(&self, pool: &str, name: &str, cards: &[u64]) -> Node {
        let number = |at: usize| name.bytes().fold(at as u128, |n, b| n * 131 + u128::from(b)) + 1;
        let cards = cards.iter().enumerate().map(|(at, total)| {
            let uuid = format!("GPU-{}", uuid::Uuid::from_u128(number(at)));
            json!({"uuid": uuid, "model": MODEL, "memory_total": total, "driver_overhead": 0})
        });
        self.join(pool, name, cards.collect()).await
    }

    /// A host that joined and reported these cards.
    pub async fn join(&self, pool: &str, name: &str, cards: Vec<Value>) -> Node {
        let token = self.join_token(pool).await;
        let body = json!({"token": token, "hostname": name, "machine_id": name});
        let joined = self.anyone().post("/v1/nodes/join", &body).await.expect(201);
        let credential = text(&joined["credential"]);
        let client = self.anyone().with(&credential);
        let node = Node { id: text(&joined["node_id"]), credential, client, cards };
        eventually("the node's report is taken", 20, async || {
            let answer = node.report(&[]).await;
            (answer.status == 200).then_some(())
        })
        .await;
        node
    }

    /// A connection with the rights of the schema's owner, to look at what the product wrote.
    pub async fn owner(&self) -> PgConnection {
        PgConnection::connect(&self.database_url).await.unwrap()
    }

    /// What stands in the ledger. What passing time alone writes is left out: leases, tasks and signs of life.
    pub async fn snapshot(&self) -> Snapshot {
        let mut owner = self.owner().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "select relname::text from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
                and not relispartition and relname not in ('pool_leadership', 'server', 'task')",
        )
        .fetch_all(&mut owner)
        .await
        .unwrap();
        assert!(tables.len() > 20, "{tables:?}");
        let mut snapshot = Snapshot::new();
        for table in tables {
            let rows =
                format!("select to_jsonb(t) - array['last_heard', 'last_sign', 'last_used_at'] as row from {table} t");
            let sum =
                format!("select count(*) || ' ' || md5(string_agg(row::text, '' order by row::text)) from ({rows}) r");
            let sum: Option<String> = sqlx::query_scalar(AssertSqlSafe(sum)).fetch_one(&mut owner).await.unwrap();
            snapshot.insert(table, sum.unwrap_or_default());
        }
        snapshot
    }

    pub async fn allocation(&self, id: &str) -> Value {
        self.operator.get(&format!("/v1/allocations/{id}")).await.expect(200)
    }

    /// Waits until an allocation is in a state.
    pub async fn until(&self, id: &str, state: &str, seconds: u64) -> Value {
        let what = format!("{id} is {state}");
        eventually(&what, seconds, async || {
            let allocation = self.allocation(id).await;
            (allocation["state"] == state).then_some(allocation)
        })
        .await
    }
}

impl Node {
    /// Reports, and sees these workloads living.
    pub async fn report(&self, alive: &[&str]) -> Answer {
        self.client.post("/v1/node-reports", &self.body(alive)).await
    }

    /// A report as it is sent.
    pub fn body(&self, alive: &[&str]) -> Value {
        let now = types::Clock::System.now();
        json!({"boot_id": "boot", "sent_at": now, "gpus": self.cards, "alive": alive, "exited": []})
    }
}

/// Asks for memory under a key.
pub async fn ask(client: &Client, key: &str, body: &Value) -> Answer {
    client.send(client.request(Method::POST, "/v1/allocations").header("Idempotency-Key", key).json(body)).await
}

/// Asks, is placed at once and confirms: the allocation's id.
pub async fn start(client: &Client, key: &str, body: &Value) -> String {
    let id = text(&ask(client, key, body).await.expect(201)["allocation_id"]);
    change(client, &id, "confirm").await.expect(200);
    id
}

/// `confirm`, `renew`, `release` or `cancel`.
pub async fn change(client: &Client, id: &str, verb: &str) -> Answer {
    client.send(client.request(Method::POST, &format!("/v1/allocations/{id}/{verb}"))).await
}

pub async fn log_in(client: &Client, email: &str) -> Client {
    let session = client.post("/v1/login", &json!({"email": email, "password": PASSWORD})).await.expect(200);
    client.with(session["token"].as_str().unwrap())
}

/// A command of the binary, with no environment but this.
pub fn command(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
    command.envs(environment.iter().copied());
    command
}

/// Runs a command of the binary to its end.
pub fn run(args: &[&str], environment: &[(&str, &str)], input: &str) -> Ran {
    let mut command = command(args, environment);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // one that does not read what it is given has closed its end
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

impl Ran {
    /// What it printed, when it ended with this status.
    #[track_caller]
    pub fn expect(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self.out
    }

    /// What it said on standard error, when it ended with this status.
    #[track_caller]
    pub fn complaint(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self.err
    }

    /// What it printed as JSON, when it ended with this status.
    #[track_caller]
    pub fn json(self, code: i32) -> Value {
        serde_json::from_str(&self.expect(code)).unwrap()
    }
}

/// Looks again and again until something is there.
pub async fn eventually<T>(what: &str, seconds: u64, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let since = RealTime::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(since.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The text of a field that must be one.
#[track_caller]
pub fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => panic!("{value} is no text"),
    }
}
