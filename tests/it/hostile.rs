//! Attacks on the server's connections and bodies. While each goes on from several addresses, a node and a member are
//! served; memory stays under a bound; afterwards every connection and file descriptor is given back.
//!
//! Each attack lasts for [`LASTS`]; `GPULEDGER_HOSTILE_SECONDS` makes it longer.

use crate::{
    deployment::{Deployment, Node, Tenant, ask, change, eventually, text},
    http::gzip,
};
use reqwest::Method;
use serde_json::json;
use std::{
    env, fs,
    io::Write,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{Client, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use types::Clock;

const LASTS: Duration = Duration::from_secs(2);
/// Resident memory of a server under attack, at most: twice what its bodies may take, and what it needs itself.
const MOST_MEMORY: u64 = 320 << 20;
/// Before an attacker that was cut off comes again.
const PAUSE: Duration = Duration::from_millis(300);
/// The addresses that attack.
const ATTACKERS: u8 = 8;
/// A body's limit, and what all bodies may take.
const BODY: usize = 2 << 20;
const CONNECTIONS: usize = 600;

const LIMITS: [(&str, &str); 10] = [
    // a machine that is busy with other tests as well may hold up a renewal, and then there is a short 503
    ("GPULEDGER_SCHEDULER__LEASE", "30s"),
    ("GPULEDGER_HTTP__IN_FLIGHT", "400"),
    ("GPULEDGER_HTTP__BODY_LIMIT", "2MiB"),
    ("GPULEDGER_HTTP__BODY_MEMORY", "64MiB"),
    ("GPULEDGER_HTTP__CONNECTIONS", "600"),
    ("GPULEDGER_HTTP__CONNECTIONS_PER_ADDRESS", "200"),
    ("GPULEDGER_HTTP__HEAD_TIMEOUT", "2s"),
    ("GPULEDGER_HTTP__IDLE_TIMEOUT", "5s"),
    ("GPULEDGER_HTTP__STALL_TIMEOUT", "1s"),
    ("GPULEDGER_HTTP__HEAD_LIMIT", "16KiB"),
];

fn lasts() -> Duration {
    env::var("GPULEDGER_HOSTILE_SECONDS").ok().and_then(|s| s.parse().ok()).map_or(LASTS, Duration::from_secs)
}

/// A server, and those who use it as they should.
struct Target {
    deployment: Deployment,
    node: Node,
    tenant: Tenant,
}

/// What the server's process has.
#[derive(Debug, Clone, Copy)]
struct Resources {
    files: usize,
    /// The most memory that was resident, in bytes.
    peak: u64,
}

fn resources(server: &Server) -> Resources {
    let folder = format!("/proc/{}", server.pid());
    let status = fs::read_to_string(format!("{folder}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    Resources { files: fs::read_dir(format!("{folder}/fd")).unwrap().count(), peak }
}

impl Target {
    async fn start() -> Self {
        let deployment = Deployment::start_with(&LIMITS).await;
        let pool = deployment.pool(600, 600).await;
        let node = deployment.node(&pool, "node", &[80 << 30]).await;
        let tenant = deployment.tenant("tenant").await;
        let target = Self { deployment, node, tenant };
        // once, so that what is made at first use is there
        target.is_served("warm", 0).await;
        target
    }

    fn address(&self) -> SocketAddr {
        self.deployment.server.url().trim_start_matches("http://").parse().unwrap()
    }

    /// What a node and a member do, and all of it works.
    async fn is_served(&self, attack: &str, turn: usize) {
        self.node.report(&[]).await.expect(200);
        let key = format!("{attack}-{turn}");
        let asked = ask(&self.tenant.member, &key, &json!({"memory": "1GiB"})).await.expect(201);
        let id = text(&asked["allocation_id"]);
        change(&self.tenant.member, &id, "confirm").await.expect(200);
        change(&self.tenant.member, &id, "release").await.expect(200);
        // a newcomer, who has no connection yet
        Client::new(self.deployment.server.url()).get("/healthz").await.expect(200);
    }

    /// Attacks from every address, `each` at once from every one, and sees that others are served meanwhile.
    async fn under<F>(&self, attack: &str, each: usize, one: impl Fn(Attacker) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let before = resources(&self.deployment.server);
        let mut attackers = JoinSet::new();
        for number in 0..each {
            for last in 1..=ATTACKERS {
                attackers.spawn(one(Attacker { last: last + 1, number, server: self.address() }));
            }
        }
        let (since, mut turn, mut longest) = (Instant::now(), 0, Duration::ZERO);
        while since.elapsed() < lasts() {
            let begun = Instant::now();
            timeout(Duration::from_secs(60), self.is_served(attack, turn)).await.expect("others are not served");
            longest = longest.max(begun.elapsed());
            turn += 1;
        }
        let during = resources(&self.deployment.server);
        attackers.shutdown().await;
        eprintln!(
            "{attack}: {turn} turns of others, the longest {longest:?}; {} files; peak {} MiB",
            during.files,
            during.peak >> 20
        );
        assert!(turn > 0);
        assert!(during.peak < MOST_MEMORY, "{attack}: {during:?}");
        assert!(during.files < before.files + CONNECTIONS + 100, "{attack}: {during:?}");
        eventually("file descriptors are given back", 20, async || {
            // as many as there were, and connections to the database that opened meanwhile
            (resources(&self.deployment.server).files <= before.files + 20).then_some(())
        })
        .await;
    }
}

/// One of many.
#[derive(Debug, Clone, Copy)]
struct Attacker {
    /// The end of its address: 127.0.0.N.
    last: u8,
    number: usize,
    server: SocketAddr,
}

impl Attacker {
    async fn connect(self) -> Option<TcpStream> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.bind(SocketAddr::from(([127, 0, 0, self.last], 0))).ok()?;
        socket.connect(self.server).await.ok()
    }

    /// Sends this on a new connection, then piece after piece of `more`, until it is cut off; and once more.
    async fn drip(self, head: Vec<u8>, more: Vec<u8>, pause: Duration) {
        loop {
            if let Some(mut stream) = self.connect().await
                && stream.write_all(&head).await.is_ok()
            {
                loop {
                    let mut answer = [0; 512];
                    tokio::select! {
                        read = stream.read(&mut answer) => match read {
                            Ok(1..) => continue,
                            Ok(0) | Err(_) => break,
                        },
                        () = sleep(pause) => {}
                    }
                    if !more.is_empty() && stream.write_all(&more).await.is_err() {
                        break;
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends this request on a new connection and reads the beginning of its answer, again and again.
    async fn repeat(self, request: Arc<Vec<u8>>, expected: &'static [&'static str]) {
        loop {
            if let Some(mut stream) = self.connect().await {
                let _ = stream.write_all(&request).await;
                let mut answer = [0; 12];
                if stream.read_exact(&mut answer).await.is_ok() {
                    let answer = String::from_utf8_lossy(&answer).into_owned();
                    assert!(expected.iter().any(|status| answer.ends_with(status)), "{answer}");
                }
            }
            sleep(PAUSE).await;
        }
    }
}

/// A request with a body of JSON.
fn post(path: &str, credential: Option<&str>, more: &str, body: &[u8]) -> Arc<Vec<u8>> {
    let credential = credential.map(|c| format!("authorization: Bearer {c}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nidempotency-key: k\r\n{credential}content-type: application/json\r\n\
         content-length: {length}\r\n{more}\r\n"
    );
    Arc::new([head.as_bytes(), body].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_connections_leave_room_for_others() {
    let target = Target::start().await;
    target.under("idle", 200, |it| it.drip(Vec::new(), Vec::new(), Duration::from_secs(3600))).await;
    let head = b"GET /healthz HTTP/1.1\r\nhost: h\r\n".to_vec();
    target
        .under("slow heads", 100, move |it| it.drip(head.clone(), b"x: y\r\n".to_vec(), Duration::from_millis(200)))
        .await;
    let once = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n".to_vec();
    target.under("kept alive", 100, move |it| it.drip(once.clone(), Vec::new(), Duration::from_secs(3600))).await;
    let body =
        b"POST /v1/login HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n{";
    let stands = body.to_vec();
    target
        .under("bodies that stand", 100, move |it| it.drip(stands.clone(), Vec::new(), Duration::from_secs(3600)))
        .await;
    let body = body.to_vec();
    target.under("slow bodies", 40, move |it| it.drip(body.clone(), b" ".to_vec(), Duration::from_millis(300))).await;
    // what is answered with much and never read
    target
        .under("slow readers", 20, |it| async move {
            loop {
                if let Some(mut stream) = it.connect().await {
                    let head = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: h\r\n\r\n";
                    let _ = stream.write_all(&head.repeat(4)).await;
                    sleep(Duration::from_secs(2)).await;
                }
            }
        })
        .await;
    let metrics = String::from_utf8(target.deployment.anyone().get("/metrics").await.body).unwrap();
    for line in ["gpuledger_http_connections ", "closed_total{reason=\"room\"}", "closed_total{reason=\"stalled\"}"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_and_long_lists_are_refused_within_bounded_memory() {
    let target = Target::start().await;
    let secret = text(&target.deployment.secret(Some(&target.tenant.id), "member").await["secret"]);
    let refused = &[" 413", " 503"];
    let spaces = vec![b' '; 64 << 20];
    let (gzipped, zipped) = (gzip(&spaces), zstd::encode_all(&spaces[..], 3).unwrap());
    drop(spaces);
    let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    wide.window_log(27).unwrap();
    wide.write_all(&[b' '; 4096]).unwrap();
    wide.flush().unwrap();
    let wide = wide.finish().unwrap();
    for (name, path, credential, encoding, body) in [
        ("gzip", "/v1/allocations", Some(&*secret), "gzip", &gzipped),
        ("zstd", "/v1/allocations", Some(&*secret), "zstd", &zipped),
        ("zstd to all", "/v1/login", None, "zstd", &zipped),
    ] {
        let more = format!("content-encoding: {encoding}\r\n");
        let request = post(path, credential, &more, body);
        target.under(name, 2, |it| it.repeat(Arc::clone(&request), refused)).await;
    }
    let request = post("/v1/login", None, "content-encoding: zstd\r\n", &wide);
    target.under("a wide window", 8, |it| it.repeat(Arc::clone(&request), &[" 400"])).await;
    let deep = "[".repeat(BODY - 100);
    let request = post("/v1/allocations", Some(&secret), "", deep.as_bytes());
    target.under("deep JSON", 4, |it| it.repeat(Arc::clone(&request), &[" 400", " 503", " 422"])).await;
    target
        .under("long bodies of nobody", 8, |it| {
            it.repeat(post("/v1/login", None, "", &vec![b' '; (BODY - it.number) / 2]), &[" 413"])
        })
        .await;
}

#[tokio::test]
async fn each_list_has_a_bound_that_is_told() {
    let target = Target::start().await;
    let id = "01980000-0000-7000-8000-000000000001";
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let now = Clock::System.now();
    let alive = list(&format!("\"{id}\""), 4097);
    let exit = format!("{{\"allocation_id\":\"{id}\",\"at\":\"{now}\"}}");
    let gpu = "{\"uuid\":\"GPU-01980000-0000-7000-8000-000000000001\",\"model\":\"m\",\"memory_total\":1}";
    let report = |gpus: &str, alive: &str, exited: &str| {
        format!("{{\"boot_id\":\"b\",\"sent_at\":\"{now}\",\"gpus\":{gpus},\"alive\":{alive},\"exited\":{exited}}}")
    };
    // each as long as a body may be at all, but for those that are over by one
    let million = format!("[{}", "0,".repeat(BODY / 2 - 1000));
    let node = &target.node.client;
    let reports = "/v1/node-reports";
    for (path, body, field, rule) in [
        (reports, report("[]", &alive, "[]"), "alive", "more than 4096"),
        (reports, report("[]", "[]", &list(&exit, 4097)), "exited", "more than 4096"),
        (reports, report(&list(gpu, 65), "[]", "[]"), "gpus", "more than 64"),
        (reports, report("[]", &list(&format!("\"{id}\""), 40_000), "[]"), "alive", "more than 4096"),
        (reports, report("[]", &million, "[]"), "alive[0]", "invalid type"),
    ] {
        let request = node.request(Method::POST, path).header("content-type", "application/json").body(body);
        let problem = node.send(request).await.problem(422, "invalid", Some(field));
        assert!(problem["errors"][0]["rule"].as_str().unwrap().contains(rule), "{problem}");
    }
    let models: Vec<String> = (0..1001).map(|n| format!("\"m{n}\":{{\"reserved\":\"1\"}}")).collect();
    for (models, rule) in [
        (models.join(","), "more than 1000"),
        ("\"m\":{\"reserved\":\"1\"},\"m\":{\"reserved\":\"1\"}".to_owned(), "names m twice"),
    ] {
        let rates = format!("{{\"default\":{{\"reserved\":\"1\"}},\"models\":{{{models}}}}}");
        let body = format!("{{\"name\":\"p\",\"currency\":\"USD\",\"unit\":\"GB-hour\",\"rates\":{rates}}}");
        let operator = &target.deployment.operator;
        let request = operator.request(Method::POST, "/v1/plans").header("content-type", "application/json").body(body);
        let problem = operator.send(request).await.problem(422, "invalid", Some("rates.models"));
        assert!(problem["errors"][0]["rule"].as_str().unwrap().contains(rule), "{problem}");
    }
    assert!(resources(&target.deployment.server).peak < MOST_MEMORY);
}

/// The status of the answer to bytes that are sent as they are.
async fn status_of(target: &Target, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(target.address()).await.unwrap();
    // the server may have answered and left before all is sent
    let _ = stream.write_all(bytes).await;
    let mut answer = vec![0; 12];
    match timeout(Duration::from_secs(10), stream.read_exact(&mut answer)).await {
        Ok(Ok(_)) => String::from_utf8_lossy(&answer[9..]).into_owned(),
        Ok(Err(_)) => "closed".to_owned(),
        Err(_) => "nothing".to_owned(),
    }
}

#[tokio::test]
async fn heads_and_framing_that_break_the_rules_are_refused() {
    let target = Target::start().await;
    let get = |rest: &str| format!("GET /healthz HTTP/1.1\r\nhost: h\r\n{rest}\r\n");
    let login = |rest: &str, body: &str| {
        format!("POST /v1/login HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n{rest}\r\n{body}")
    };
    let chunked = "transfer-encoding: chunked\r\n";
    let ok = "{\"email\":\"a@b.example\",\"password\":\"x\"}";
    let whole = format!("{:x}\r\n{ok}\r\n0\r\n\r\n", ok.len());
    let length = format!("content-length: {}\r\n", ok.len());
    for (what, request, expected) in [
        ("a good one", get(""), &["200"][..]),
        ("many fields", get(&"a: b\r\n".repeat(101)), &["431"]),
        ("a large field", get(&format!("a: {}\r\n", "b".repeat(17 << 10))), &["431"]),
        ("a long URI", format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "a".repeat(9000)), &["414"]),
        ("a longer URI", format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "a".repeat(80_000)), &["414", "431"]),
        ("NUL in a field", get("a: b\0c\r\n"), &["400"]),
        ("no HTTP", "\x16\x03\x01\x02\0\x01\0\x01\x7c".to_owned(), &["400", "closed"]),
        ("chunks", login(chunked, &whole), &["401"]),
        ("two lengths", login(&format!("{length}content-length: 1\r\n"), ok), &["400"]),
        ("a negative length", login("content-length: -1\r\n", ok), &["400"]),
        ("a length that wraps", login("content-length: 18446744073709551616\r\n", ok), &["400", "413"]),
        ("the largest length", login("content-length: 18446744073709551614\r\n", ok), &["400", "413", "431"]),
        ("a chunk that wraps", login(chunked, "ffffffffffffffff\r\n"), &["400", "408", "413"]),
        ("a chunk of no number", login(chunked, "zz\r\n"), &["400"]),
        ("chunk extensions", login(chunked, &format!("1;{}\r\n", "a".repeat(40_000))), &["400"]),
        ("chunked twice", login("transfer-encoding: chunked, chunked\r\n", &whole), &["400", "401"]),
        ("chunked not last", login("transfer-encoding: chunked, gzip\r\n", &whole), &["400"]),
        ("too short a body", login("content-length: 100\r\n", ok), &["408"]),
        ("trailers", login(chunked, &format!("{}a: b\r\n\r\n", whole.strip_suffix("\r\n").unwrap())), &["401"]),
    ] {
        let status = status_of(&target, request.as_bytes()).await;
        assert!(expected.contains(&status.as_str()), "{what}: {status}");
    }
    target.is_served("after", 0).await;
}

#[tokio::test]
async fn texts_numbers_and_nesting_that_are_none_are_the_callers_fault() {
    let target = Target::start().await;
    let before = target.deployment.snapshot().await;
    let (operator, admin, member) = (&target.deployment.operator, &target.tenant.admin, &target.tenant.member);
    let nowhere = "01980000-0000-7000-8000-000000000001";
    let nul = "a\u{0}b";
    let anyone = target.deployment.anyone();
    // every free text that a body, a query or a path can hold
    let account =
        |email: &str, password: &str| json!({"name": "n", "email": email, "role": "viewer", "password": password});
    for (client, path, body) in [
        (&anyone, "/v1/login".to_owned(), json!({"email": nul, "password": "x"})),
        (&anyone, "/v1/login".to_owned(), json!({"email": "a@b.example", "password": nul})),
        (&anyone, "/v1/nodes/join".to_owned(), json!({"token": nul, "hostname": "h", "machine_id": "m"})),
        (admin, "/v1/users".to_owned(), account("a\u{0}@b.example", "long enough it is")),
        (admin, "/v1/users".to_owned(), account("a@b.example", "long enough\u{0} it is")),
        (operator, "/v1/tenants".to_owned(), json!({"name": "n", "zone": nul, "currency": "USD"})),
        (operator, "/v1/tenants".to_owned(), json!({"name": "n", "zone": "UTC", "currency": nul})),
        (operator, "/v1/invoices".to_owned(), json!({"tenant_id": target.tenant.id, "period": nul})),
        (
            operator,
            "/v1/invoices".to_owned(),
            json!({"tenant_id": target.tenant.id, "period": "2026-01", "waiver": nul}),
        ),
        (operator, format!("/v1/set-aside/{nowhere}/accept"), json!({"note": nul})),
        (operator, format!("/v1/set-aside/{nowhere}/reject"), json!({"note": nul})),
    ] {
        let answer = client.post(&path, &body).await;
        answer.problem(422, "invalid", None);
    }
    ask(member, "nul", &json!({"memory": "1GiB", "model": nul})).await.problem(422, "invalid", Some("model"));
    for path in ["/v1/tenants?cursor=a%00b", "/v1/audit?cursor=%00", "/v1/allocations?state=%00", "/v1/invoices/%00"] {
        operator.get(path).await.problem(422, "invalid", None);
    }

    let send = async |body: Vec<u8>| {
        let request = member.request(Method::POST, "/v1/allocations").header("idempotency-key", "k");
        member.send(request.header("content-type", "application/json").body(body)).await
    };
    for (what, body, status) in [
        ("a byte-order mark", b"\xef\xbb\xbf{\"memory\":1}".to_vec(), 400),
        ("UTF-16", b"\xff\xfe{\0}\0".to_vec(), 400),
        ("invalid UTF-8", b"{\"model\":\"\xff\xfe\",\"memory\":1}".to_vec(), 400),
        ("a surrogate alone", br#"{"model":"\ud800","memory":1}"#.to_vec(), 400),
        ("deep lists", "[".repeat(100_000).into_bytes(), 422),
        ("deep lists in a field", format!("{{\"memory\":{}", "[".repeat(100_000)).into_bytes(), 422),
        ("deep objects in an unknown field", format!("{{\"x\":{}", "{\"a\":".repeat(100_000)).into_bytes(), 422),
        ("a number of many digits", format!("{{\"memory\":{}}}", "9".repeat(100_000)).into_bytes(), 400),
        ("a large exponent", b"{\"memory\":1e999999999}".to_vec(), 400),
        (
            "a number that is a text of many digits",
            format!("{{\"memory\":\"{}GiB\"}}", "9".repeat(100_000)).into_bytes(),
            422,
        ),
        ("a long text", format!("{{\"memory\":1,\"model\":\"{}\"}}", "x".repeat(1_000_000)).into_bytes(), 422),
        ("a field twice", br#"{"memory":1,"memory":1}"#.to_vec(), 422),
        ("two values", br#"{"memory":1}{"memory":1}"#.to_vec(), 400),
        ("nothing", Vec::new(), 400),
    ] {
        let answer = send(body).await;
        assert_eq!(
            answer.status,
            status,
            "{what}: {}",
            String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>()
        );
        assert!(answer.body.len() < 10_000, "{what}: the answer repeats the request");
    }
    assert_eq!(target.deployment.snapshot().await, before);
}
