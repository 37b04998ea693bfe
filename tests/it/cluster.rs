//! Several servers on one database. A client may ask any of them; one leads the pool, and when it is killed, stands
//! still or loses its database, another one goes on: nothing is granted twice, nothing acknowledged is lost, a repeat gets
//! the same answer, and no deadline runs out because of the outage.

use crate::deployment::{Deployment, Node, Tenant, ask, change, eventually, text};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant as RealTime},
};
use support::{Client, Database, Link, Server};
use tokio::task::JoinSet;
use uuid::Uuid;

const GIB: u64 = 1 << 30;
const SERVERS: usize = 3;
/// How many clients ask at once.
const CLIENTS: usize = 6;
/// A card holds this many of what a client asks for, and there are two.
const ROOM: u64 = 40;
/// The longest that a client of a surviving server may be without an answer other than 503.
const OUTAGE: Duration = Duration::from_secs(5);

/// Three servers, each with a link of its own to the database.
struct Cluster {
    deployment: Deployment,
    /// All but the deployment's own.
    others: Vec<Server>,
    links: Vec<Link>,
    database: Database,
}

impl Cluster {
    async fn start() -> Self {
        let database = Database::fresh().await;
        let mut links = Vec::new();
        for _ in 0..SERVERS {
            links.push(Link::to(target(database.url())).await);
        }
        let mut deployment = Deployment::at(through(database.url(), &links[0]), &[]).await;
        deployment.database_url = database.url().to_owned();
        let mut others = Vec::new();
        for link in &links[1..] {
            others.push(Server::start_on(&through(database.url(), link), &[]).await);
        }
        Self { deployment, others, links, database }
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        std::iter::once(&self.deployment.server).chain(&self.others)
    }

    fn server(&mut self, number: usize) -> &mut Server {
        if number == 0 { &mut self.deployment.server } else { &mut self.others[number - 1] }
    }

    fn urls(&self) -> Vec<String> {
        self.servers().map(|server| server.url().to_owned()).collect()
    }

    /// Which server leads the pool, and its term: as the database has it, whether it still can or not.
    async fn leader(&self) -> (usize, i64) {
        let mut owner = self.database.connect().await;
        let (url, term): (String, i64) =
            sqlx::query_as("select url, term from pool_leadership join server on server_id = holder")
                .fetch_one(&mut owner)
                .await
                .unwrap();
        (self.urls().iter().position(|known| *known == url).unwrap(), term)
    }

    /// Waits until a later term than this has begun: who leads then, and after how long.
    async fn next_leader(&self, term: i64, since: RealTime) -> (usize, Duration) {
        eventually("another server leads", 20, async || {
            let (leader, now) = self.leader().await;
            (now > term).then_some((leader, since.elapsed()))
        })
        .await
    }

    /// Starts a server again where it was.
    async fn start_again(&mut self, number: usize) {
        let url = through(self.database.url(), &self.links[number]);
        let address = self.urls()[number].trim_start_matches("http://").to_owned();
        *self.server(number) = Server::start_on(&url, &[("GPULEDGER_HTTP__LISTEN", &address)]).await;
    }
}

fn target(database_url: &str) -> std::net::SocketAddr {
    let url = reqwest::Url::parse(database_url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap()).parse().unwrap()
}

fn through(database_url: &str, link: &Link) -> String {
    let mut url = reqwest::Url::parse(database_url).unwrap();
    url.set_port(Some(link.address().port())).unwrap();
    url.to_string()
}

fn signal(server: &Server, name: &str) {
    assert!(Command::new("kill").args([name, &server.pid().to_string()]).status().unwrap().success());
}

/// What a client was told of one of its requests.
#[derive(Debug, Clone)]
struct Told {
    key: String,
    id: String,
    gpus: Value,
    /// The last state that was acknowledged.
    state: &'static str,
}

/// Clients at work, each at one server and, while that one is gone, at the next.
struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<(Vec<Told>, Duration)>,
}

impl Load {
    fn on(cluster: &Cluster, tenant: &Tenant, excused: &Arc<[AtomicBool; SERVERS]>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let urls = cluster.urls();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let servers: Vec<Client> = urls.iter().map(|url| tenant.member.at(url)).collect();
            let client = LoadClient { number, servers, excused: Arc::clone(excused), longest: Duration::ZERO };
            clients.spawn(client.work(Arc::clone(&stop)));
        }
        Self { stop, clients }
    }

    /// What all clients were told, and the longest that any was without an answer at a server that was there.
    async fn end(mut self) -> (Vec<Told>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut told, mut longest) = (Vec::new(), Duration::ZERO);
        while let Some(client) = self.clients.join_next().await {
            let (its, waited) = client.unwrap();
            told.extend(its);
            longest = longest.max(waited);
        }
        (told, longest)
    }
}

struct LoadClient {
    number: usize,
    servers: Vec<Client>,
    /// Servers that the test has put out of order: nobody counts how long they take.
    excused: Arc<[AtomicBool; SERVERS]>,
    longest: Duration,
}

impl LoadClient {
    async fn work(mut self, stop: Arc<AtomicBool>) -> (Vec<Told>, Duration) {
        let mut told: Vec<Told> = Vec::new();
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            count += 1;
            let key = format!("client {} request {count}", self.number);
            let body = json!({"memory": "1GiB"});
            let placed = self.until_answered(Method::POST, "/v1/allocations", Some((&key, &body))).await;
            let id = text(&placed["allocation_id"]);
            assert_eq!(placed["state"], "held", "{placed}");
            let at = told.len();
            told.push(Told { key, id: id.clone(), gpus: gpus(&placed), state: "held" });
            self.change(&mut told[at], "confirm", "active").await;
            // so that at most one stays of each client, and the rest goes through its whole life
            if let Some(earlier) = at.checked_sub(1) {
                self.change(&mut told[earlier], "release", "released").await;
            }
        }
        (told, self.longest)
    }

    async fn change(&mut self, told: &mut Told, verb: &str, state: &'static str) {
        let answer = self.until_answered(Method::POST, &format!("/v1/allocations/{}/{verb}", told.id), None).await;
        assert_eq!(answer["state"], state, "{answer}");
        assert_eq!(gpus(&answer), told.gpus, "another card than at first");
        told.state = state;
    }

    /// Asks until there is an answer, at the own server and, where nobody listens there, at the next.
    async fn until_answered(&mut self, method: Method, path: &str, asked: Option<(&str, &Value)>) -> Value {
        let mut since = RealTime::now();
        let mut server = self.number % SERVERS;
        loop {
            let client = &self.servers[server];
            let mut request = client.request(method.clone(), path).timeout(Duration::from_secs(12));
            if let Some((key, body)) = asked {
                request = request.header("Idempotency-Key", key).json(body);
            }
            let sent = request.send().await;
            let excused = self.excused[server].load(Ordering::Relaxed);
            match sent {
                Ok(answer) if answer.status().is_success() => {
                    if !excused {
                        self.longest = self.longest.max(since.elapsed());
                    }
                    match answer.json().await {
                        Ok(body) => return body,
                        Err(_) if excused => {}
                        Err(error) => panic!("{path}: {error}"),
                    }
                }
                Ok(answer) if answer.status() == 503 => {}
                Ok(answer) if excused => assert!(answer.status().as_u16() != 500, "{path}: {answer:?}"),
                Ok(answer) => panic!("{path}: {} {}", answer.status(), answer.text().await.unwrap_or_default()),
                Err(error) => assert!(excused, "{path} at server {server}: {error:?}"),
            }
            if excused {
                server = (server + 1) % SERVERS;
                since = RealTime::now();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn gpus(allocation: &Value) -> Value {
    let parts = allocation["parts"].as_array().unwrap();
    json!(parts.iter().map(|part| part["gpu_uuid"].clone()).collect::<Vec<_>>())
}

/// How a leader goes away, and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    Killed,
    Paused,
    Cut,
}

async fn endure(trouble: Trouble) {
    let mut cluster = Cluster::start().await;
    let pool = cluster.deployment.pool(600, 600).await;
    let node = cluster.deployment.node(&pool, "node", &[ROOM * GIB, ROOM * GIB]).await;
    let tenant = cluster.deployment.tenant("tenant").await;
    let limits = json!({"tenant_id": tenant.id, "limits": {"bytes": format!("{}GiB", 2 * ROOM)}});
    cluster.deployment.operator.put("/v1/quotas/tenant", &limits).await.expect(204);
    let excused: Arc<[AtomicBool; SERVERS]> = Arc::default();
    let load = Load::on(&cluster, &tenant, &excused);
    let mut take_overs = Vec::new();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (leader, term) = cluster.leader().await;
        excused[leader].store(true, Ordering::Relaxed);
        let since = RealTime::now();
        match trouble {
            Trouble::Killed => cluster.server(leader).kill(),
            Trouble::Paused => signal(cluster.server(leader), "-STOP"),
            Trouble::Cut => cluster.links[leader].cut(),
        }
        let (next, after) = cluster.next_leader(term, since).await;
        assert_ne!(next, leader);
        take_overs.push(after);
        // past the lease of the former one, while the others work
        tokio::time::sleep(Duration::from_secs(1)).await;
        match trouble {
            Trouble::Killed => cluster.start_again(leader).await,
            Trouble::Paused => signal(cluster.server(leader), "-CONT"),
            Trouble::Cut => cluster.links[leader].mend(),
        }
        let back = cluster.servers().nth(leader).unwrap().client();
        eventually("it is ready again", 20, async || (back.get("/readyz").await.status == 200).then_some(())).await;
        // what it was asked while it was away is answered by now
        tokio::time::sleep(Duration::from_millis(500)).await;
        excused[leader].store(false, Ordering::Relaxed);
    }
    let (told, longest) = load.end().await;
    assert!(take_overs.iter().all(|after| *after <= OUTAGE), "take-overs took {take_overs:?}");
    assert!(longest <= OUTAGE + Duration::from_secs(1), "a client of a surviving server waited {longest:?}");
    assert!(told.len() > 2 * CLIENTS, "the clients came to nothing: {}", told.len());
    hold(&cluster, &tenant, &node, &told).await;
}

/// Everything that was acknowledged is there, once, and everywhere the same.
async fn hold(cluster: &Cluster, tenant: &Tenant, node: &Node, told: &[Told]) {
    let mut open = BTreeMap::new();
    for (n, told) in told.iter().enumerate() {
        let member = tenant.member.at(&cluster.urls()[n % SERVERS]);
        let again = ask(&member, &told.key, &json!({"memory": "1GiB"})).await.expect(200);
        assert_eq!((text(&again["allocation_id"]), gpus(&again)), (told.id.clone(), told.gpus.clone()));
        assert_eq!(again["state"], told.state, "{again}");
        if told.state != "released" {
            open.insert(Uuid::parse_str(&told.id).unwrap(), told.clone());
        }
    }
    let orders = node.report(&[]).await.expect(200);
    assert_eq!(orders["parts"].as_array().unwrap().len(), open.len(), "{orders}");
    let mut owner = cluster.database.connect().await;
    let count: i64 = sqlx::query_scalar("select count(*) from allocation").fetch_one(&mut owner).await.unwrap();
    assert_eq!(usize::try_from(count).unwrap(), told.len(), "more was granted than was told");
    let twice: i64 = sqlx::query_scalar(
        "select count(*) from (select 1 from history group by tenant_id, allocation_id, cause having count(*) > 1) t",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    assert_eq!(twice, 0, "something happened twice to one allocation");
    let quota = cluster.deployment.operator.get(&format!("/v1/quotas?tenant_id={}", tenant.id)).await.expect(200);
    assert_eq!(quota["items"][0]["used_bytes"], open.len() as u64 * GIB, "{quota}");
    let gpus = cluster.deployment.operator.get("/v1/gpus").await.expect(200);
    let taken = |gpu: &Value| gpu["live"]["granted"].as_u64().unwrap() + gpu["live"]["held"].as_u64().unwrap();
    let granted: u64 = gpus["items"].as_array().unwrap().iter().map(taken).sum();
    assert_eq!(granted, open.len() as u64 * GIB, "{gpus}");
    for server in cluster.servers() {
        let log = server.log();
        let bad: Vec<&str> = log.lines().filter(|l| l.contains("panicked") || l.contains("internal error")).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_nothing_is_lost() {
    endure(Trouble::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_past_its_lease_writes_nothing_more() {
    endure(Trouble::Paused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_from_the_database_is_replaced() {
    endure(Trouble::Cut).await;
}

/// What was held before the leader was killed is held for as long afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_deadline_runs_out_because_nobody_led() {
    let mut cluster = Cluster::start().await;
    let pool = cluster.deployment.pool(2, 600).await;
    cluster.deployment.node(&pool, "node", &[ROOM * GIB]).await;
    let tenant = cluster.deployment.tenant("tenant").await;
    let (leader, term) = cluster.leader().await;
    let survivor = tenant.member.at(&cluster.urls()[(leader + 1) % SERVERS]);
    let held = text(&ask(&survivor, "held", &json!({"memory": "1GiB"})).await.expect(201)["allocation_id"]);
    let since = RealTime::now();
    cluster.server(leader).kill();
    cluster.next_leader(term, since).await;
    assert!(since.elapsed() > Duration::from_secs(2), "the outage was shorter than the grace: nothing is shown");
    assert_eq!(change(&survivor, &held, "confirm").await.expect(200)["state"], "active");
}

/// Every operation works at every server, whoever leads: also those that need the leaders of all pools.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_server_answers_for_any_pool() {
    let cluster = Cluster::start().await;
    let pool = cluster.deployment.pool(600, 600).await;
    let node = cluster.deployment.node(&pool, "node", &[ROOM * GIB]).await;
    let tenant = cluster.deployment.tenant("tenant").await;
    for (number, url) in cluster.urls().iter().enumerate() {
        let (operator, member) = (cluster.deployment.operator.at(url), tenant.member.at(url));
        let key = format!("at {number}");
        let dry = operator.post("/v1/allocations/dry-run", &json!({"tenant_id": tenant.id, "memory": "1GiB"})).await;
        assert_eq!(dry.expect(200)["outcome"], "placed");
        let id = text(&ask(&member, &key, &json!({"memory": "1GiB"})).await.expect(201)["allocation_id"]);
        change(&member, &id, "confirm").await.expect(200);
        assert_eq!(node.client.at(url).post("/v1/node-reports", &node.body(&[&id])).await.status, 200);
        let too_much = ask(&member, "too much", &json!({"memory": "100GiB"})).await;
        too_much.problem(422, "invalid", Some("memory"));
        change(&member, &id, "cancel").await.problem(409, "active", None);
        change(&member, &id, "release").await.expect(200);
        let nodes = operator.get("/v1/nodes").await.expect(200);
        assert_eq!(nodes["items"][0]["silent"], false, "{nodes}");
        operator.post(&format!("/v1/nodes/{}/cordon", node.id), &json!({})).await.expect(200);
        operator.post(&format!("/v1/nodes/{}/uncordon", node.id), &json!({})).await.expect(200);
        let issued = json!({"tenant_id": tenant.id, "period": "2026-01"});
        assert!(matches!(operator.post("/v1/invoices", &issued).await.status, 200 | 201));
    }
}

/// What servers send each other is closed to everybody else.
#[tokio::test]
async fn only_servers_may_send_commands() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    let path = format!("/internal/pools/{pool}/commands");
    let tenant = deployment.tenant("tenant").await;
    let node = deployment.node(&pool, "node", &[GIB]).await;
    for client in [&deployment.anyone(), &deployment.operator, &tenant.admin, &node.client] {
        client.post(&path, &json!("Look")).await.problem(401, "unauthenticated", None);
    }
}
