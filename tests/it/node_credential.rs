//! Credentials of nodes: renewed in two steps, revoked, and missed when a copy of them turns up.

use crate::{
    agent::Agent,
    deployment::{Deployment, Node, eventually, text},
};
use serde_json::{Value, json};
use std::fs;
use support::{Answer, Client, Server};

async fn rotate(client: &Client) -> Answer {
    client.post("/v1/node-credential/rotate", &json!({})).await
}

/// A client with the credential that the node gets when it asks for another.
async fn renewed(deployment: &Deployment, client: &Client) -> Client {
    deployment.anyone().with(&text(&rotate(client).await.expect(200)["credential"]))
}

/// Time passes for what stands in the database.
async fn superseded_long_ago(deployment: &Deployment) {
    sqlx::query("update node_credential set superseded_at = superseded_at - interval '1 minute'")
        .execute(&mut deployment.owner().await)
        .await
        .unwrap();
}

async fn report(client: &Client, node: &Node) -> Answer {
    client.post("/v1/node-reports", &node.body(&[])).await
}

/// Waits until no server remembers that it looked something up before.
async fn refuses(client: &Client, node: &Node) -> Value {
    eventually("the credential is refused", 7, async || {
        let answer = report(client, node).await;
        (answer.status != 200).then(|| answer.problem(401, "unauthenticated", None))
    })
    .await
}

async fn node_view(deployment: &Deployment, node: &Node) -> Value {
    deployment.operator.get(&format!("/v1/nodes/{}", node.id)).await.expect(200)
}

#[tokio::test]
async fn the_former_credential_is_good_until_the_new_one_is_used() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 90).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    let first = node.client.clone();
    // the answer was lost on the way, again and again
    for _ in 0..3 {
        rotate(&first).await.expect(200);
        report(&first, &node).await.expect(200);
    }
    let second = renewed(&deployment, &first).await;
    report(&first, &node).await.expect(200);
    report(&second, &node).await.expect(200);
    // what was under way with the former one arrives
    report(&first, &node).await.expect(200);
    superseded_long_ago(&deployment).await;
    let problem = refuses(&first, &node).await;
    assert!(problem["detail"].as_str().unwrap().contains("replaced by a newer one"), "{problem}");
    report(&second, &node).await.expect(200);

    // the use of the former one is a sign of a copy
    let view = eventually("the node is marked", 5, async || {
        let view = node_view(&deployment, &node).await;
        (view["refused"] != json!([])).then_some(view)
    })
    .await;
    assert_eq!(view["refused"][0]["reason"], "superseded_credential");
    let audit = deployment.operator.get("/v1/audit").await.expect(200);
    let noted = audit["items"].as_array().unwrap().iter().find(|entry| entry["action"] == "node.refuse").unwrap();
    assert_eq!((&noted["object"], &noted["detail"]["reason"]), (&json!(node.id), &json!("superseded_credential")));
    let metrics = deployment.anyone().get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("gpuledger_node_refusals_total{reason=\"superseded_credential\"}"), "{metrics}");
    let doctor = crate::deployment::run(&["doctor", "--json"], &[("DATABASE_URL", &deployment.database_url)], "");
    assert!(doctor.out.contains("a credential that was replaced was used"), "{}", doctor.out);

    // those that waited end too
    let waiting: i64 =
        sqlx::query_scalar("select count(*) from node_credential where revoked_at is null and superseded_at is null")
            .fetch_one(&mut deployment.owner().await)
            .await
            .unwrap();
    assert_eq!(waiting, 1);
}

/// A wrong secret with a prefix that is superseded marks nobody: anyone could send it.
#[tokio::test]
async fn only_the_whole_credential_marks_a_node() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 90).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    let second = renewed(&deployment, &node.client).await;
    report(&second, &node).await.expect(200);
    superseded_long_ago(&deployment).await;
    let prefix: String = sqlx::query_scalar("select prefix from node_credential where superseded_at is not null")
        .fetch_one(&mut deployment.owner().await)
        .await
        .unwrap();
    let guess = deployment.anyone().with(&format!("gln_{prefix}_{}", "A".repeat(43)));
    report(&guess, &node).await.problem(401, "unauthenticated", None);
    assert_eq!(node_view(&deployment, &node).await["refused"], json!([]));
}

#[tokio::test]
async fn there_is_an_end_to_what_may_wait() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 90).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    for _ in 0..8 {
        rotate(&node.client).await.expect(200);
    }
    rotate(&node.client).await.problem(409, "too_many_waiting", None);
    sqlx::query(
        "update node_credential set created_at = created_at - interval '11 minutes' where first_used_at is null",
    )
    .execute(&mut deployment.owner().await)
    .await
    .unwrap();
    let second = renewed(&deployment, &node.client).await;
    report(&second, &node).await.expect(200);
}

#[tokio::test]
async fn a_revoked_node_is_refused_at_once_here_and_soon_everywhere() {
    let deployment = Deployment::start().await;
    let other = Server::start_on(&deployment.database_url, &[]).await;
    let pool = deployment.pool(600, 90).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    let batch = json!({"stream_id": "01980000-0000-7000-8000-00000000000d", "sequence": 1,
        "sent_at": types::Clock::System.now(), "readings": []});
    let credential = text(&rotate(&node.client).await.expect(200)["credential"]);
    let (here, there) = (deployment.anyone().with(&credential), other.client().with(&credential));
    for client in [&here, &there] {
        client.post("/v1/reading-batches", &batch).await.expect(200);
    }
    let path = format!("/v1/nodes/{}/revoke-credential", node.id);
    deployment.operator.post(&path, &json!({})).await.expect(200);
    here.post("/v1/reading-batches", &batch).await.problem(401, "unauthenticated", None);
    eventually("the other server refuses", 6, async || {
        (there.post("/v1/reading-batches", &batch).await.status == 401).then_some(())
    })
    .await;
    deployment.operator.post(&path, &json!({})).await.expect(200);
    // it joins again, under its own id
    let again = deployment.node(&pool, "node", &[80 << 30]).await;
    assert_eq!(again.id, node.id);
}

/// A real agent renews its credential when the operator asks, and goes on with it after it was started anew.
#[tokio::test]
async fn an_agent_renews_its_credential_and_keeps_it() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 90).await;
    let mut agent = Agent::join(&deployment, &pool, &[]).await;
    let nodes = async || deployment.operator.get("/v1/nodes").await.expect(200)["items"][0].clone();
    let heard = async |after: &Value| {
        eventually("the agent is heard", 20, async || {
            let node = nodes().await;
            (node["last_heard"].as_str() > after.as_str()).then(|| node["last_heard"].clone())
        })
        .await
    };
    heard(&Value::Null).await;
    let file = agent.path("state/credential.json");
    let before = fs::read_to_string(&file).unwrap();
    let id = text(&nodes().await["node_id"]);
    let asked = deployment.operator.post(&format!("/v1/nodes/{id}/rotate-credential"), &json!({})).await.expect(200);
    assert!(asked["rotate_asked_at"].is_string(), "{asked}");
    let after = eventually("the file holds another credential", 20, async || {
        let text = fs::read_to_string(&file).unwrap();
        (text != before).then_some(text)
    })
    .await;
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(parsed(&before)["node_id"], parsed(&after)["node_id"]);
    eventually("the new one is used", 20, async || {
        let used: bool =
            sqlx::query_scalar("select exists (select from node_credential where superseded_at is not null)")
                .fetch_one(&mut deployment.owner().await)
                .await
                .unwrap();
        used.then_some(())
    })
    .await;
    assert!(nodes().await["rotate_asked_at"].is_null());
    superseded_long_ago(&deployment).await;
    agent.kill();
    agent.start_again();
    let last = nodes().await["last_heard"].clone();
    heard(&last).await;
    assert_eq!(nodes().await["refused"], json!([]));
    assert_eq!(fs::read_to_string(&file).unwrap(), after);
}

/// Two agents on one state folder: the second does not begin.
#[tokio::test]
async fn a_state_folder_has_one_agent() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 90).await;
    let agent = Agent::join(&deployment, &pool, &[]).await;
    eventually("the agent is heard", 20, async || {
        let nodes = deployment.operator.get("/v1/nodes").await.expect(200);
        nodes["items"][0]["last_heard"].is_string().then_some(())
    })
    .await;
    let second = agent.another("another.sock");
    assert!(second.complaint(1).contains("another agent uses the state in"));
}
