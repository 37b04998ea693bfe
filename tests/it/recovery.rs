//! What goes away and comes back: Postgres, and the server itself.

use crate::deployment::{Deployment, ask, change, eventually, start, text};
use postgres::{Place, Settings};
use reqwest::header;
use serde_json::json;
use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt};
use types::{Clock, Instant};

const GIB: u64 = 1 << 30;

/// A Postgres of this test alone, that can be stopped and started again where it was.
fn own_postgres(folder: &std::path::Path) -> postgres::Running {
    postgres::find(&Settings::new(None, Place::Folder(folder.join("postgres")))).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_everything_answers_503_and_recovers_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    // the server may run as another user
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let running = own_postgres(folder.path());
    let url = running.url().to_owned();
    let mut deployment = Deployment::at(url.clone(), &[("GPULEDGER_DATABASE__ACQUIRE_TIMEOUT", "500ms")]).await;
    let pool = deployment.pool(60, 60).await;
    let node = deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let active = start(&tenant.member, "active", &json!({"memory": "1GiB", "max_duration_s": 1000})).await;
    let held = ask(&tenant.member, "held", &json!({"memory": "2GiB"})).await.expect(201);
    let before = deployment.snapshot().await;
    let hold_until: Instant = text(&held["hold_until"]).parse().unwrap();

    drop(running);
    let gone_at = Clock::System.now();
    eventually("readiness says so", 10, async || {
        (deployment.anyone().get("/readyz").await.status == 503).then_some(())
    })
    .await;
    let answers = [
        deployment.anyone().get("/readyz").await,
        tenant.member.get("/v1/allocations").await,
        tenant.viewer.get(&format!("/v1/allocations/{active}")).await,
        ask(&tenant.member, "meanwhile", &json!({"memory": "1GiB"})).await,
        change(&tenant.member, &active, "release").await,
        deployment.operator.post("/v1/pools", &json!({"name": "another"})).await,
        deployment.anyone().post("/v1/login", &json!({"email": "a@b.example", "password": "x"})).await,
    ];
    // what a node repeats is taken as long as the leader is sure to lead
    let report = eventually("the lease has run out", 10, async || {
        let answer = node.report(&[]).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    for answer in answers.into_iter().chain([report]) {
        assert!(answer.headers.contains_key(header::RETRY_AFTER), "{answer}");
        answer.problem(503, "unavailable", None);
    }
    assert_eq!(deployment.anyone().get("/healthz").await.status, 200);
    assert_eq!(deployment.anyone().get("/metrics").await.status, 200);

    let again = own_postgres(folder.path());
    assert_eq!(again.url(), url);
    let pid = deployment.server.pid();
    eventually("readiness comes back", 15, async || {
        (deployment.anyone().get("/readyz").await.status == 200).then_some(())
    })
    .await;
    eventually("the pool is led again", 15, async || (node.report(&[&active]).await.status == 200).then_some(())).await;
    assert_eq!(deployment.server.pid(), pid);
    // nothing was lost, nothing was done by halves, and no deadline ran out meanwhile
    let after = deployment.snapshot().await;
    for table in ["tenant", "project", "request_key", "gpu", "quota", "interval", "history", "unbilled_span"] {
        assert_eq!(after[table], before[table], "{table}");
    }
    let held = deployment.allocation(held["allocation_id"].as_str().unwrap()).await;
    let still_until: Instant = text(&held["hold_until"]).parse().unwrap();
    let away_ms = Clock::System.now().since(gone_at);
    let put_off_ms = still_until.since(hold_until);
    assert!((0..=away_ms + 5000).contains(&put_off_ms), "put off by {put_off_ms} ms over {away_ms} ms");
    assert_eq!(change(&tenant.member, held["allocation_id"].as_str().unwrap(), "confirm").await.status, 200);
    assert_eq!(change(&tenant.member, &active, "release").await.expect(200)["state"], "released");
    ask(&tenant.member, "meanwhile", &json!({"memory": "1GiB"})).await.expect(201);
    assert!(deployment.server.stop().await.success());
    drop(again);
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_killed_server() {
    let mut deployment = Deployment::start_with(&[("GPULEDGER_SCHEDULER__LEASE", "1s")]).await;
    let pool = deployment.pool(60, 60).await;
    let node = deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let mut acknowledged = Vec::new();
    for n in 0..6 {
        let id = text(
            &ask(&tenant.member, &format!("key {n}"), &json!({"memory": "1GiB"})).await.expect(201)["allocation_id"],
        );
        if n % 2 == 0 {
            change(&tenant.member, &id, "confirm").await.expect(200);
        }
        if n % 3 == 0 {
            change(&tenant.member, &id, "release").await.expect(200);
        }
        acknowledged.push(deployment.allocation(&id).await);
    }
    let before = deployment.snapshot().await;
    deployment.start_again().await;
    eventually("the pool is led again", 15, async || (node.report(&[]).await.status == 200).then_some(())).await;
    for table in ["request_key", "quota", "interval", "history", "part"] {
        assert_eq!(deployment.snapshot().await[table], before[table], "{table}");
    }
    for (n, allocation) in acknowledged.iter().enumerate() {
        let now = deployment.allocation(allocation["allocation_id"].as_str().unwrap()).await;
        for field in ["state", "cause", "parts", "active_since", "ended_at", "request"] {
            assert_eq!(now[field], allocation[field], "{field}");
        }
        // whoever got no answer asks again, and gets the one there was
        let repeat = ask(&tenant.member, &format!("key {n}"), &json!({"memory": "1GiB"})).await.expect(200);
        assert_eq!(repeat["allocation_id"], allocation["allocation_id"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_asked_to_end_answers_what_is_under_way() {
    let mut deployment = Deployment::start_with(&[("GPULEDGER_LOG__FILTER", "debug")]).await;
    let pool = deployment.pool(60, 60).await;
    deployment.node(&pool, "node", &[GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let id = start(&tenant.member, "all", &json!({"memory": "1GiB"})).await;
    let queued = text(&ask(&tenant.member, "queued", &json!({"memory": "1GiB"})).await.expect(202)["allocation_id"]);
    // two that are under way when the signal comes; each statement that they run is logged
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let (member, path) = (tenant.member.clone(), format!("/v1/allocations/{queued}?wait=3s"));
            tokio::spawn(async move { member.get(&path).await })
        })
        .collect();
    eventually("both are under way", 10, async || {
        let log = deployment.server.log();
        let lines = log.lines().filter(|line| line.contains("operation=\"get_allocation\"") && line.contains(&queued));
        let ids = lines.filter_map(|line| Some(line.split_once("request_id=")?.1.split_once(' ')?.0));
        (ids.collect::<BTreeSet<_>>().len() == 2).then_some(())
    })
    .await;
    let status = deployment.server.stop().await;
    assert_eq!(status.code(), Some(0), "{}", deployment.server.log());
    for answer in waiting {
        assert_eq!(answer.await.unwrap().expect(200)["state"], "queued");
    }
    deployment.start_again().await;
    eventually("it is there still", 15, async || {
        (tenant.viewer.get(&format!("/v1/allocations/{id}")).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(deployment.allocation(&id).await["state"], "active");
}
