//! What `/metrics` tells is what the operator's guide says it tells.

use crate::deployment::{Deployment, ask, change, eventually, start};
use api::metric::{METRICS, Metric};
use serde_json::json;
use std::{collections::BTreeMap, fs, path::Path};
use types::Clock;
use uuid::Uuid;

const GIB: u64 = 1 << 30;
/// What needs TLS, a token issuer, or somebody who attacks the server.
const ELSEWHERE: [&str; 5] = [
    "gpuledger_oidc_reads_total",
    "gpuledger_node_refusals_total",
    "gpuledger_http_connections_refused_total",
    "gpuledger_http_connections_closed_total",
    "gpuledger_tls_certificate_ends_timestamp_seconds",
];

/// Name, kind and labels, as the guide's table has them.
fn documented() -> Vec<(String, String, Vec<String>)> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operator.md");
    let guide = fs::read_to_string(guide).unwrap();
    let plain = |cell: &str| cell.trim().trim_matches('`').to_owned();
    guide
        .lines()
        .filter(|line| line.starts_with("| `gpuledger_"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
            let labels = cells[2].split(',').map(plain).filter(|label| !label.is_empty()).collect();
            (plain(cells[0]), plain(cells[1]), labels)
        })
        .collect()
}

#[test]
fn the_guide_lists_every_metric_and_no_other() {
    let of = |metric: &Metric| {
        let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
        (metric.name.to_owned(), metric.kind.name().to_owned(), labels)
    };
    assert_eq!(documented(), METRICS.iter().map(of).collect::<Vec<_>>());
    for Metric { name, kind, .. } in METRICS {
        assert_eq!(name.ends_with("_total"), kind.name() == "counter", "{name}");
    }
}

/// From the text of `/metrics`: what each name's samples have as labels, and what its TYPE says.
fn served(text: &str) -> BTreeMap<String, (String, Vec<BTreeMap<String, String>>)> {
    let mut found: BTreeMap<String, (String, Vec<BTreeMap<String, String>>)> = BTreeMap::new();
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            found.entry(name.to_owned()).or_default().0 = kind.to_owned();
            continue;
        }
        let Some(at) = line.find(['{', ' ']).filter(|_| !line.starts_with('#')) else { continue };
        let (name, rest) = line.split_at(at);
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let base = if found.contains_key(base) { base } else { name };
        let labels = rest.strip_prefix('{').and_then(|rest| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
        let labels = labels.map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned()));
        found.entry(base.to_owned()).or_default().1.push(labels.filter(|(name, _)| name != "le").collect());
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_tells_every_metric_with_bounded_labels() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(60, 60).await;
    let node = deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let id = start(&tenant.member, "one", &json!({"memory": "1GiB"})).await;
    change(&tenant.member, &id, "release").await.expect(200);
    ask(&tenant.member, "two", &json!({"memory": "1GiB"})).await.expect(201);
    let now = Clock::System.now();
    let reading = json!({"part_id": Uuid::from_u128(7), "start": now.plus_secs(-60), "end": now, "granted": GIB,
        "covered_ms": 0, "quality": "unknown"});
    let batch = json!({"stream_id": Uuid::from_u128(8), "sequence": 1, "sent_at": now, "readings": [reading]});
    assert_eq!(node.client.post("/v1/reading-batches", &batch).await.expect(200)["set_aside"], 1);
    deployment.anyone().get("/v1/no/such/path").await.problem(404, "no_such_path", None);
    deployment.anyone().get(&format!("/v1/allocations/{id}?secret=x")).await.problem(401, "unauthenticated", None);

    let metrics = eventually("every metric has a sample", 30, async || {
        let text = String::from_utf8(deployment.anyone().get("/metrics").await.body).unwrap();
        let found = served(&text);
        let missing: Vec<&str> = METRICS
            .iter()
            .map(|m| m.name)
            .filter(|name| !found.contains_key(*name) && !ELSEWHERE.contains(name))
            .collect();
        if !missing.is_empty() {
            eprintln!("still missing: {missing:?}");
        }
        missing.is_empty().then_some(text)
    })
    .await;
    for (name, (kind, samples)) in served(&metrics) {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is in no table"));
        assert_eq!(kind, metric.kind.name(), "{name}");
        for labels in samples {
            let names: Vec<&str> = labels.keys().map(String::as_str).collect();
            let mut due = metric.labels.to_vec();
            due.sort_unstable();
            assert_eq!(names, due, "{name}");
            for value in labels.values() {
                assert!(!value.contains('/') && !value.is_empty(), "{name}: {value}");
                assert!(Uuid::parse_str(value).is_err(), "{name}: {value}");
            }
        }
    }
    let count = |line: &str| {
        let line = metrics.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("no {line}"));
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    let create = "gpuledger_http_requests_total{operation=\"create_allocation\",method=\"POST\",status=\"2xx\"}";
    assert_eq!(count(create), 2);
    let denied = "gpuledger_http_requests_total{operation=\"get_allocation\",method=\"GET\",status=\"4xx\"}";
    assert_eq!(count(denied), 1);
    assert!(count("gpuledger_transactions_total{name=\"pool_batch\",outcome=\"committed\"}") >= 3);
    assert_eq!(count("gpuledger_take_overs_total"), 1);
    assert_eq!(count("gpuledger_scheduler_leads{pool=\"pool\"}"), 1);
    assert_eq!(count("gpuledger_scheduler_open_allocations{pool=\"pool\"}"), 1);
    assert_eq!(count("gpuledger_readings_set_aside_total{reason=\"unknown_part\"}"), 1);
}
