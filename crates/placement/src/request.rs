//! What makes a request bad input for a pool.

use crate::{
    gpu::{Gpu, Service},
    inventory::Inventory,
};
use types::{Bytes, Request};

/// A field of a request and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The field's name in the request.
    pub field: &'static str,
    /// What must hold, to stand after the field's name.
    pub rule: String,
}

/// Checks a request against the ranges of its fields and against what the pool has, busy or not.
///
/// A request that passes may still be unsatisfiable, where no one node has all that it asks for;
/// [`NoRoom::ever`](crate::NoRoom) tells.
///
/// # Errors
/// Every rule that is broken; never an empty list.
pub fn validate(request: &Request, inv: &Inventory) -> Result<(), Vec<Invalid>> {
    let mut broken = Vec::new();
    let mut must = |field, holds: bool, rule: &dyn Fn() -> String| {
        if !holds {
            broken.push(Invalid { field, rule: rule() });
        }
    };
    let gpus = || inv.gpus().filter(|gpu| gpu.service != Service::Removed);
    let has = |matches: &dyn Fn(&Gpu) -> bool| gpus().any(matches);

    must("memory", request.memory > Bytes::ZERO, &|| "must be more than 0".to_owned());
    must("gpus", (1..=Request::MAX_GPUS).contains(&request.gpus), &|| {
        format!("must be from 1 to {}", Request::MAX_GPUS)
    });
    if let Some(seconds) = request.max_duration_s {
        let range = 1..=Request::MAX_DURATION_S;
        must("max_duration_s", range.contains(&seconds), &|| format!("must be from 1 to {}", Request::MAX_DURATION_S));
    }
    match gpus().map(|gpu| gpu.allocatable).max() {
        // which model or node is meant is no question then
        None => must("memory", false, &|| "cannot be had: the pool has no GPUs".to_owned()),
        Some(most) => {
            must("memory", request.memory <= most, &|| {
                format!("must be at most {most}, which is what the pool's largest GPU can give")
            });
            if let Some(model) = &request.model {
                must("model", has(&|gpu| gpu.model == *model), &|| {
                    format!("must be a model that the pool has; it has no {model}")
                });
            }
            if let Some(node) = request.node_id {
                must("node_id", has(&|gpu| gpu.node == node), &|| {
                    format!("must be a node of the pool with GPUs; {node} is none")
                });
            }
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{card, model, node_id, request};

    fn fields(request: &Request, inv: &Inventory) -> Vec<&'static str> {
        validate(request, inv).err().unwrap_or_default().iter().map(|invalid| invalid.field).collect()
    }

    #[test]
    fn every_broken_rule_is_named() {
        let mut inv = Inventory::new();
        inv.upsert_gpu(card(1, 1, 10)).unwrap();
        let good = Request {
            model: Some(card(1, 1, 1).model),
            node_id: Some(node_id(1)),
            max_duration_s: Some(1),
            ..request(10, 64)
        };
        assert_eq!(fields(&good, &inv), [""; 0]);
        let bad = Request {
            memory: Bytes::ZERO,
            gpus: 0,
            model: Some(model("no such card")),
            node_id: Some(node_id(2)),
            max_duration_s: Some(0),
        };
        assert_eq!(fields(&bad, &inv), ["memory", "gpus", "max_duration_s", "model", "node_id"]);
        let too_much = Request { max_duration_s: Some(Request::MAX_DURATION_S + 1), ..request(11, 65) };
        assert_eq!(fields(&too_much, &inv), ["gpus", "max_duration_s", "memory"]);
    }

    #[test]
    fn a_pool_without_gpus_says_so_and_blames_no_model() {
        let mut inv = Inventory::new();
        let asked = Request { model: Some(card(1, 1, 1).model), ..request(1, 1) };
        let none = [Invalid { field: "memory", rule: "cannot be had: the pool has no GPUs".to_owned() }];
        assert_eq!(validate(&asked, &inv).unwrap_err(), none);
        inv.upsert_gpu(Gpu { service: Service::Removed, ..card(1, 1, 10) }).unwrap();
        assert_eq!(validate(&asked, &inv).unwrap_err(), none);
    }

    #[test]
    fn what_is_out_of_service_for_a_while_is_still_there() {
        for service in [Service::Cordoned, Service::Silent, Service::NotYetReported] {
            let mut inv = Inventory::new();
            inv.upsert_gpu(Gpu { service, ..card(1, 1, 10) }).unwrap();
            assert_eq!(validate(&request(10, 1), &inv), Ok(()));
        }
    }
}
