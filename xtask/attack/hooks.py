"""What the OpenAPI document cannot say of good input, so that everything else can be held against it.

Schemathesis' own check `positive_data_acceptance` takes any 422 for a fault. Some rules of the API have no form in a
schema: they speak of two fields, of bytes instead of characters, of a table of names, or of who asks. This check is the
same but for them: a good request that is refused must break one of these rules, and say so.
"""

import re

import schemathesis
from schemathesis.core.failures import Failure

# field, rule and why no schema says it; the first two as regular expressions
UNSAID = [
    # a schema calls 3.0 an integer and has no way to ask for 3
    (r".*", r"^invalid type: floating point"),
    # a schema counts characters, the ledger bytes
    (r".*", r"is \d+ bytes long; at most \d+ are allowed|^must have [\d to]+ bytes|^must be 1 to 200 bytes"),
    # a header of bytes that are no UTF-8 is no string at all
    (r"^Idempotency-Key$", r"is not UTF-8"),
    # tables of names: ISO 4217 and IANA
    (r"(^|\.)currency$", r"is not an ISO 4217 currency code"),
    (r"(^|\.)zone$", r"is not the IANA name of a time zone"),
    # an instant that has the form and no place in the calendar, or lies an hour outside by its offset
    (r".*", r"is not an RFC 3339 instant|the instant lies outside the years"),
    # an amount of memory over 2^63-1 bytes that is written with a unit; no memory at all is no request
    (r".*", r"is more than 2\^63-1 bytes"),
    (r"^memory$", r"must be more than 0"),
    # text that is nothing but white space
    (r"^(note|waiver)$", r"is empty: say why"),
    # two fields
    (r"^to$", r"must be later than from|at most \d+ days"),
    (r"^lost_after_s$", r"must not be less than silence_grace_s"),
    (r"^password$", r"is needed, or oidc_token, or oidc_code: exactly one of them"),
    (r"^all$", r"cannot be given together with user_id"),
    (r"^expires_at$", r"must lie in the future|at most"),
    (r"^role$", r"belongs to (a tenant|the platform)"),
    (r"^(starts_at|valid_from)$", r"must be a whole minute|lies in |must be later than|time that has passed"),
    # who asks, and what is there
    (r"^tenant_id$", r"is needed when the caller belongs to the platform"),
    (r"^pool_id$", r"is needed: there are several pools|there is no pool yet"),
    (r"^plan_id$", r"is priced in \w+, but|has no prices yet"),
    (r"^gpus$", r"memory_total must be above 0 and driver_overhead within it|must not name a GPU twice"),
    (r"^(memory|model|node_id)$", r"cannot be had|which is what the pool's largest|must be a (model|node)"),
    (r"^current_password$", r"is needed for one's own account|is wrong"),
    (r"^period$", r"is not over"),
]


@schemathesis.check
def good_input_is_taken(ctx, response, case):
    """A request that keeps to the document is not refused as one that breaks a rule."""
    meta = case.meta
    if response.status_code not in (400, 422) or meta is None or not meta.generation.mode.is_positive:
        return
    problem = response.json()
    if problem.get("code") == "key_reused":
        return
    for error in problem.get("errors") or [{"field": "", "rule": problem.get("detail", "")}]:
        known = any(re.search(field, error["field"]) and re.search(rule, error["rule"]) for field, rule in UNSAID)
        if not known:
            raise Failure(
                operation=case.operation.label,
                title="Good input is refused",
                message=f"{error['field']} {error['rule']}",
            )
