//! Every route, and what stands around them.

use crate::{
    allocation, api_key, audit, balance, gpu, guard::Guard, health, invitation, invoice, layers, node, oidc, plan,
    pool, problem::ProblemBody, project, quota, reading, server, session, set_aside, subscription, tenant, usage, user,
};
use app::App;
use axum::{
    Router,
    response::Html,
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::time::Duration;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::SwaggerUi;

/// What every handler works with; cheap to clone.
#[derive(Clone)]
pub struct ApiState {
    pub app: App,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    pub limits: HttpLimits,
    pub guard: Guard,
}

impl std::fmt::Debug for ApiState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiState").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What one request, and all of them together, may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a body, after decompression.
    pub body: usize,
    /// From the first byte of a request to its answer; longer than any `wait`.
    pub duration: Duration,
    /// Requests in work at once; more get 503. What nodes send is counted apart. A quarter of them may be a `wait`.
    pub in_flight: usize,
    /// How long a body may stand still.
    pub stall: Duration,
    /// Bytes of all bodies together.
    pub body_memory: usize,
    /// Bytes of a URI.
    pub uri: usize,
}

impl Default for HttpLimits {
    /// 8 MiB, which a full batch of readings keeps well under; 90 seconds; 2,048 requests; 10 seconds; 512 MiB; 8 KiB.
    fn default() -> Self {
        Self {
            body: 8 << 20,
            duration: Duration::from_secs(90),
            in_flight: 2048,
            stall: Duration::from_secs(10),
            body_memory: 512 << 20,
            uri: 8 << 10,
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Gpuledger",
        description = "Meters GPU memory per tenant, admits workloads within quotas, and bills what was held.\n\n\
            Memory is in bytes; on input also as a text such as `20GiB`. Use over time is in byte-milliseconds and money \
            in decimals, both as strings. Instants are UTC in RFC 3339. Lists come in pages: pass `next_cursor` back as \
            `cursor`. Every error is a problem (RFC 9457) with a stable `code` and the request's id."
    ),
    components(schemas(ProblemBody)),
    modifiers(&Bearer)
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A person's token from login or from a configured issuer, an API key (`glk_…`), or a node's credential (`gln_…`)."))
            .build();
        document
            .components
            .get_or_insert_with(Default::default)
            .add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

// tidy: long function: a table, one line per path
/// Every documented route: one line per path, in the order of the document.
fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(Document::openapi())
        // who calls
        .routes(routes!(session::login))
        .routes(routes!(session::list_sessions))
        .routes(routes!(session::revoke_other_sessions))
        .routes(routes!(session::revoke_session))
        .routes(routes!(oidc::list_login_providers))
        .routes(routes!(oidc::start_login))
        .routes(routes!(oidc::finish_login))
        .routes(routes!(invitation::accept_invitation))
        .routes(routes!(user::get_me))
        // who is billed
        .routes(routes!(tenant::create_tenant, tenant::list_tenants))
        .routes(routes!(tenant::get_tenant))
        .routes(routes!(project::create_project, project::list_projects))
        .routes(routes!(user::create_user, user::list_users))
        .routes(routes!(user::disable_user))
        .routes(routes!(user::set_password))
        .routes(routes!(invitation::create_invitation, invitation::list_invitations))
        .routes(routes!(invitation::revoke_invitation))
        .routes(routes!(api_key::create_key, api_key::list_keys))
        .routes(routes!(api_key::revoke_key))
        // what there is: pools, nodes, GPUs
        .routes(routes!(pool::create_pool, pool::list_pools))
        .routes(routes!(pool::get_pool, pool::update_pool))
        .routes(routes!(pool::create_join_token))
        .routes(routes!(node::join_node))
        .routes(routes!(node::report_node))
        .routes(routes!(node::list_nodes))
        .routes(routes!(node::get_node))
        .routes(routes!(node::cordon_node))
        .routes(routes!(node::uncordon_node))
        .routes(routes!(node::remove_node))
        .routes(routes!(node::rotate_node_credential))
        .routes(routes!(node::ask_credential_rotation))
        .routes(routes!(node::revoke_node_credential))
        .routes(routes!(gpu::list_gpus))
        .routes(routes!(balance::get_balance))
        // what is asked and granted: quotas, allocations
        .routes(routes!(quota::list_quotas))
        .routes(routes!(quota::set_tenant_quota))
        .routes(routes!(quota::set_project_quota))
        .routes(routes!(allocation::request::create_allocation, allocation::list_allocations))
        .routes(routes!(allocation::request::dry_run_allocation))
        .routes(routes!(allocation::get_allocation))
        .routes(routes!(allocation::get_allocation_history))
        .routes(routes!(allocation::confirm_allocation))
        .routes(routes!(allocation::renew_allocation))
        .routes(routes!(allocation::release_allocation))
        .routes(routes!(allocation::cancel_allocation))
        // what was measured: reading batches, usage, rows set aside
        .routes(routes!(reading::take_reading_batch))
        .routes(routes!(usage::get_usage))
        .routes(routes!(usage::get_usage_csv))
        .routes(routes!(set_aside::list_set_aside))
        .routes(routes!(set_aside::accept_set_aside))
        .routes(routes!(set_aside::reject_set_aside))
        // what it costs: plans, subscriptions, invoices
        .routes(routes!(plan::create_plan, plan::list_plans))
        .routes(routes!(plan::get_plan))
        .routes(routes!(plan::create_plan_version))
        .routes(routes!(subscription::create_subscription, subscription::list_subscriptions))
        .routes(routes!(invoice::issue_invoice, invoice::list_invoices))
        .routes(routes!(invoice::preview_invoice))
        .routes(routes!(invoice::get_invoice))
        .routes(routes!(invoice::list_charges))
        .routes(routes!(invoice::get_facts))
        .routes(routes!(invoice::get_invoice_csv))
        .routes(routes!(invoice::verify_invoice))
        // what happened
        .routes(routes!(audit::list_audit))
        .routes(routes!(health::get_health))
        .routes(routes!(health::get_readiness))
        .routes(routes!(health::get_metrics))
}

/// The OpenAPI document, which needs neither state nor database.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

/// The whole HTTP service.
pub fn router(state: ApiState) -> Router {
    let (documented, document) = routes().split_for_parts();
    let page = SwaggerUi::new("/docs").url("/v1/openapi.json", document.clone());
    let all = documented.route("/", get(welcome)).route(server::COMMANDS, post(server::take_command)).merge(page);
    layers::around(all, &state, &document).with_state(state)
}

async fn welcome() -> Html<&'static str> {
    Html(include_str!("welcome.html"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Operations that nobody needs a credential for. This list may only shrink. Those of logging in and joining carry
    /// their proof in the body: a password, a token for one join, an invitation, a code of another issuer; where to get
    /// that code one must know before.
    const PUBLIC: [&str; 9] = [
        "login",
        "list_login_providers",
        "start_login",
        "finish_login",
        "accept_invitation",
        "join_node",
        "get_health",
        "get_readiness",
        "get_metrics",
    ];

    fn operations() -> Vec<(String, String, Value)> {
        let document = serde_json::to_value(openapi()).unwrap();
        let paths = document["paths"].as_object().unwrap().clone();
        paths
            .into_iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().clone().into_iter().map(move |(verb, op)| (path.clone(), verb, op))
            })
            .collect()
    }

    #[test]
    fn every_variable_of_a_path_is_declared() {
        for (path, verb, operation) in operations() {
            let declared: BTreeSet<&str> = operation["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|p| p["in"] == "path")
                .map(|p| p["name"].as_str().unwrap())
                .collect();
            let in_path: BTreeSet<&str> =
                path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(declared, in_path, "{verb} {path}");
        }
    }

    #[test]
    fn every_list_declares_cursor_and_limit() {
        let mut lists = 0;
        for (path, verb, operation) in operations() {
            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
            if !schema.as_str().is_some_and(|s| s.contains("/Page_")) {
                continue;
            }
            lists += 1;
            let parameters = operation["parameters"].as_array().unwrap();
            for name in ["cursor", "limit"] {
                let parameter = parameters.iter().find(|p| p["name"] == name).unwrap();
                assert_eq!(
                    (&parameter["in"], &parameter["required"]),
                    (&"query".into(), &false.into()),
                    "{verb} {path}"
                );
            }
        }
        assert!(lists >= 9, "only {lists} lists were found");
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let mut seen = BTreeSet::new();
        for (path, verb, operation) in operations() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(seen.insert(id.clone()), "{verb} {path} repeats {id}");
        }
    }

    #[test]
    fn every_operation_needs_a_credential_or_is_on_the_list() {
        let mut open = BTreeSet::new();
        for (path, verb, operation) in operations() {
            let id = operation["operationId"].as_str().unwrap();
            match operation["security"].as_array().map(Vec::as_slice) {
                None | Some([]) => {
                    open.insert(id.to_owned());
                }
                Some(list) => assert!(list.iter().all(|s| s.get("bearer").is_some()), "{verb} {path}"),
            }
        }
        assert_eq!(open, PUBLIC.map(str::to_owned).into());
    }

    #[test]
    fn every_operation_documents_its_errors_as_problems() {
        for (path, verb, operation) in operations() {
            let id = operation["operationId"].as_str().unwrap();
            let responses = operation["responses"].as_object().unwrap();
            let errors: Vec<_> = responses.iter().filter(|(status, _)| status.as_str() >= "400").collect();
            assert!(
                errors.iter().any(|(status, _)| status.starts_with('4'))
                    || path.ends_with('z')
                    // neither takes anything that could be wrong
                    || ["/metrics", "/v1/oidc"].contains(&path.as_str()),
                "{verb} {path} documents no 4xx"
            );
            for (status, response) in errors {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem", "{id} {status}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn collect(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        found.insert(target.clone());
                    }
                    map.values().for_each(|v| collect(v, found));
                }
                Value::Array(list) => list.iter().for_each(|v| collect(v, found)),
                _ => {}
            }
        }
        let document = serde_json::to_value(openapi()).unwrap();
        let mut found = BTreeSet::new();
        collect(&document, &mut found);
        for target in found {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target} is not in the document");
        }
    }
}
