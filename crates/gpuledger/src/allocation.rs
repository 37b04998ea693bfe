//! What tenants do with memory: request, list, show, wait, confirm, renew, release, cancel.

use crate::{
    client::{Call, Client, ClientError, ServerArgs},
    duration,
    error::{CliError, exit},
    output, usage,
};
use placement::{Excluded, Nearest};
use quota::Violation;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant as Monotonic;
use types::{
    AllocationId, AllocationState, Bytes, GpuModel, GpuUuid, Instant, NodeId, PoolId, ProjectId, TenantId,
    allocation::Cause,
};

/// What is asked for.
#[derive(Debug, Clone, clap::Args)]
pub struct WhatArgs {
    /// Memory on each GPU: 20GiB, 20480MiB or 20GB
    #[arg(long)]
    pub memory: Bytes,
    /// How many GPUs, all on one node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: u32,
    /// Only GPUs of this model, as the driver names it
    #[arg(long)]
    pub model: Option<GpuModel>,
    /// The project, by name or id [default: the one named default]
    #[arg(long)]
    pub project: Option<String>,
    /// The longest it may run, such as 2h; it is released then
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub max_duration: Option<Duration>,
    /// Whose memory; needed by operators alone
    #[arg(long, value_name = "ID")]
    pub tenant: Option<TenantId>,
}

impl WhatArgs {
    /// The body of the request.
    pub(crate) async fn body(
        &self,
        client: &Client,
        place: Option<(PoolId, Option<NodeId>)>,
    ) -> Result<Value, CliError> {
        let mut body = json!({"memory": self.memory, "gpus": self.gpus});
        let mut set = |field: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[field] = value;
            }
        };
        set("model", self.model.as_ref().map(|model| json!(model)));
        set("max_duration_s", self.max_duration.map(|longest| json!(longest.as_secs())));
        set("tenant_id", self.tenant.map(|tenant| json!(tenant)));
        set("pool_id", place.map(|(pool, _)| json!(pool)));
        set("node_id", place.and_then(|(_, node)| node).map(|node| json!(node)));
        if let Some(project) = &self.project {
            set("project_id", Some(json!(self.project_id(client, project).await?)));
        }
        Ok(body)
    }

    async fn project_id(&self, client: &Client, wanted: &str) -> Result<String, CliError> {
        if wanted.parse::<ProjectId>().is_ok() {
            return Ok(wanted.to_owned());
        }
        let projects = usage::projects(client, self.tenant).await?;
        let found = projects.iter().find(|(_, name)| name == wanted);
        found.map(|(id, _)| id.clone()).ok_or_else(|| {
            let names: Vec<&str> = projects.iter().map(|(_, name)| name.as_str()).collect();
            CliError::Usage(format!("there is no project {wanted:?}; there are: {}", names.join(", ")))
        })
    }
}

/// How to request.
#[derive(Debug, clap::Args)]
pub struct RequestArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// Only this pool; needed where there are several
    #[arg(long, value_name = "ID")]
    pool: Option<PoolId>,
    /// Only this node; needs --pool
    #[arg(long, value_name = "ID", requires = "pool")]
    node: Option<NodeId>,
    /// Known per tenant: a repeat with the same key gets the same allocation [default: a new one]
    #[arg(long)]
    key: Option<String>,
    /// Wait so long for a place, such as 10m; without it a queued request is printed at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Only say what the request would get; nothing is held
    #[arg(long, conflicts_with_all = ["key", "wait"])]
    dry_run: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// One allocation, and how to print it.
#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The allocation's id
    id: AllocationId,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Waiting for one allocation.
#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    #[command(flatten)]
    one: OneArgs,
    /// The longest to wait; the exit status is 1 when it is still queued then
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait: Duration,
}

/// Which allocations.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Also those that have ended
    #[arg(long)]
    all: bool,
    /// Only in this state, such as queued or active
    #[arg(long, value_parser = state)]
    state: Option<AllocationState>,
    /// Whose; everybody's for operators where not given
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// How many at most, the newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

fn state(name: &str) -> Result<AllocationState, String> {
    AllocationState::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = AllocationState::ALL.iter().map(|state| state.name()).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// An allocation as the server shows it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Allocation {
    pub allocation_id: AllocationId,
    pub state: AllocationState,
    pub cause: Cause,
    pub request: types::Request,
    pub queue: Option<Queue>,
    pub parts: Vec<Part>,
    pub hold_until: Option<Instant>,
    pub ends_by: Option<Instant>,
    pub renew_within_s: Option<u32>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// One device of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Part {
    pub gpu_uuid: GpuUuid,
    pub model: GpuModel,
    pub bytes: Bytes,
}

/// Where it waits, and for what.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Queue {
    position: Option<usize>,
    #[serde(default)]
    violations: Vec<Violation>,
    #[serde(default)]
    reasons: Vec<Excluded>,
    nearest: Option<Nearest>,
}

impl Queue {
    /// In words.
    pub(crate) fn explain(&self) -> String {
        let mut said: Vec<String> = self.violations.iter().map(ToString::to_string).collect();
        said.extend(self.reasons.iter().map(ToString::to_string));
        said.extend(self.nearest.iter().map(ToString::to_string));
        let position = self.position.map(|p| format!("at place {p} of the queue")).unwrap_or_default();
        match (position.is_empty(), said.is_empty()) {
            (_, true) => position,
            (true, false) => said.join("; "),
            (false, false) => format!("{position}: {}", said.join("; ")),
        }
    }
}

impl Allocation {
    pub(crate) fn read(value: &Value) -> Result<Self, ClientError> {
        Self::deserialize(value).map_err(|e| ClientError::Answer(format!("an allocation: {e}")))
    }

    fn print(&self) -> Result<(), CliError> {
        let id = self.allocation_id;
        output::line(format_args!("{id} {} ({})", self.state, self.cause))?;
        if let Some(queue) = &self.queue {
            output::line(format_args!("  {}", queue.explain()))?;
        }
        for part in &self.parts {
            output::line(format_args!("  {} on {} ({})", part.bytes, part.gpu_uuid, part.model))?;
        }
        for (name, value) in &self.environment {
            output::line(format_args!("  {name}={value}"))?;
        }
        if let Some(until) = self.hold_until.filter(|_| self.state == AllocationState::Held) {
            output::line(format_args!("  held until {until}: `gpuledger confirm {id}` when the workload starts"))?;
        }
        if self.state == AllocationState::Active {
            if let Some(within) = self.renew_within_s {
                let what = "unless its node sees the workload";
                output::line(format_args!("  to be renewed within {within} s, {what}: `gpuledger renew {id}`"))?;
            }
            if let Some(end) = self.ends_by {
                output::line(format_args!("  will be released at {end}"))?;
            }
        }
        Ok(())
    }
}

fn print(value: &Value, as_json: bool) -> Result<(), CliError> {
    if as_json { output::json(value) } else { Allocation::read(value)?.print() }
}

/// A new idempotency key.
pub(crate) fn new_key() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

/// Asks for memory under a key.
pub(crate) async fn ask(client: &Client, body: &Value, key: &str) -> Result<Value, ClientError> {
    let call = Call { method: Method::POST, path: "/v1/allocations", query: &[], body: Some(body), key: Some(key) };
    client.call(call).await
}

/// Looks at an allocation; answers when it is no longer queued, or after `wait`, at most a minute.
pub(crate) async fn look(client: &Client, id: AllocationId, wait: Duration) -> Result<Value, ClientError> {
    let seconds = wait.as_secs().min(60);
    client.get(&format!("/v1/allocations/{id}"), &[("wait", format!("{seconds}s"))]).await
}

/// Changes an allocation: `confirm`, `renew`, `release` or `cancel`.
pub(crate) async fn change(client: &Client, id: AllocationId, verb: &str) -> Result<Value, ClientError> {
    client.post(&format!("/v1/allocations/{id}/{verb}"), None).await
}

/// Waits until an allocation is no longer queued, at most until `deadline`.
async fn wait_until(client: &Client, id: AllocationId, deadline: Monotonic) -> Result<Value, ClientError> {
    loop {
        let left = deadline.saturating_duration_since(Monotonic::now());
        let looked_at = Monotonic::now();
        let value = look(client, id, left.min(Duration::from_secs(30))).await?;
        if Allocation::read(&value)?.state != AllocationState::Queued || left < Duration::from_secs(1) {
            return Ok(value);
        }
        // a server on which very many wait answers at once
        tokio::time::sleep_until(looked_at + Duration::from_secs(1)).await;
    }
}

/// `gpuledger request`
pub(crate) async fn request(args: &RequestArgs) -> Result<u8, CliError> {
    let client = args.server.client()?;
    let body = args.what.body(&client, args.pool.map(|pool| (pool, args.node))).await?;
    if args.dry_run {
        let outcome = client.post("/v1/allocations/dry-run", Some(&body)).await?;
        return dry_run(&outcome, args.json);
    }
    let key = args.key.clone().unwrap_or_else(new_key);
    let mut value = ask(&client, &body, &key).await?;
    let allocation = Allocation::read(&value)?;
    if let Some(wait) = args.wait
        && allocation.state == AllocationState::Queued
    {
        let id = allocation.allocation_id;
        output::note(format_args!("{id} waits {}", allocation.queue.unwrap_or_default().explain()));
        value = wait_until(&client, id, Monotonic::now() + wait).await?;
    }
    print(&value, args.json)?;
    let waited_in_vain = args.wait.is_some() && Allocation::read(&value)?.state == AllocationState::Queued;
    Ok(if waited_in_vain { exit::FAILED } else { exit::DONE })
}

/// Prints what a request would get; the exit status is that of a refusal where it would be refused.
fn dry_run(outcome: &Value, as_json: bool) -> Result<u8, CliError> {
    let name = outcome["outcome"].as_str().unwrap_or_default();
    if as_json {
        output::json(outcome)?;
    } else if name == "placed" {
        let gpus: Vec<String> = outcome["gpu_uuids"].as_array().into_iter().flatten().map(output::text).collect();
        let measured = if outcome["measured"] == true { "" } else { ", going by the ledger alone" };
        output::line(format_args!("would be placed on {}{measured}", gpus.join(", ")))?;
    } else {
        let queue = Queue::deserialize(outcome).map_err(|e| ClientError::Answer(e.to_string()))?;
        let verb = if name == "queued" { "would wait" } else { "would be refused:" };
        output::line(format_args!("{verb} {}", queue.explain()))?;
    }
    Ok(if matches!(name, "placed" | "queued") { exit::DONE } else { exit::REFUSED })
}

/// `gpuledger list`
pub(crate) async fn list(args: &ListArgs) -> Result<(), CliError> {
    let mut query = vec![("open", (!args.all && args.state.is_none()).to_string())];
    query.extend(args.state.map(|state| ("state", state.to_string())));
    query.extend(args.tenant.map(|tenant| ("tenant_id", tenant.to_string())));
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let found = args.server.client()?.list("/v1/allocations", &query, most).await?;
    if args.json {
        return output::json(&Value::Array(found));
    }
    let rows = found
        .iter()
        .map(|value| {
            let a = Allocation::read(value)?;
            let gpus: Vec<&str> = a.parts.iter().map(|part| part.gpu_uuid.as_str()).collect();
            Ok(vec![
                a.allocation_id.to_string(),
                a.state.to_string(),
                a.cause.to_string(),
                format!("{} x {}", a.request.gpus, a.request.memory),
                output::text(&value["requested_at"]),
                if gpus.is_empty() { "-".to_owned() } else { gpus.join(",") },
            ])
        })
        .collect::<Result<Vec<_>, ClientError>>()?;
    output::table(&["ID", "STATE", "CAUSE", "MEMORY", "REQUESTED", "GPUS"], &rows)
}

/// `gpuledger show`, with what happened to it
pub(crate) async fn show(args: &OneArgs) -> Result<(), CliError> {
    let client = args.server.client()?;
    let mut value = look(&client, args.id, Duration::ZERO).await?;
    let history = client.get(&format!("/v1/allocations/{}/history", args.id), &[]).await?;
    if args.json {
        value["history"] = history;
        return output::json(&value);
    }
    print(&value, false)?;
    let text = |v: &Value, fields: &[&str]| fields.iter().map(|f| output::text(&v[f])).collect::<Vec<String>>();
    let changes = history["changes"].as_array().into_iter().flatten();
    let changes: Vec<_> = changes.map(|v| text(v, &["at", "to_state", "cause", "actor"])).collect();
    output::table(&["AT", "STATE", "CAUSE", "BY"], &changes)
}

/// `gpuledger wait`
pub(crate) async fn wait(args: &WaitArgs) -> Result<u8, CliError> {
    let client = args.one.server.client()?;
    let value = wait_until(&client, args.one.id, Monotonic::now() + args.wait).await?;
    print(&value, args.one.json)?;
    let is_queued = Allocation::read(&value)?.state == AllocationState::Queued;
    Ok(if is_queued { exit::FAILED } else { exit::DONE })
}

/// `gpuledger confirm`, `renew`, `release` and `cancel`
pub(crate) async fn change_one(args: &OneArgs, verb: &str) -> Result<(), CliError> {
    print(&change(&args.server.client()?, args.id, verb).await?, args.json)
}
