-- Reference tables: small, the same for every tenant, copied to each node of a distributed database.
-- Three kinds of tables exist, kept apart from the first day so that the ledger can outgrow one machine: reference
-- (this file), control (0002: one writer, all that is unique across tenants) and tenant (0003: facts, append-only,
-- tenant_id first in every key). Constraints are named after the rule that they hold.

create extension if not exists btree_gist;

create table gpu_model (
    model text not null,
    first_seen_at timestamptz not null,
    constraint gpu_model_key primary key (model),
    constraint gpu_model_name_is_short check (octet_length(model) between 1 and 200)
);

create table plan (
    plan_id uuid not null,
    name text not null,
    currency text not null,
    created_at timestamptz not null,
    constraint plan_key primary key (plan_id),
    constraint plan_name_is_unique unique (name),
    constraint plan_name_is_short check (octet_length(name) between 1 and 200),
    constraint plan_currency_is_a_code check (currency ~ '^[A-Z]{3}$')
);

-- Prices are frozen: a change is a new version, in force from a whole minute on.
create table plan_version (
    plan_version_id uuid not null,
    plan_id uuid not null,
    version integer not null,
    unit text not null,
    valid_from timestamptz not null,
    created_at timestamptz not null,
    constraint plan_version_key primary key (plan_version_id),
    constraint plan_version_of_plan foreign key (plan_id) references plan (plan_id),
    constraint plan_version_number_is_unique unique (plan_id, version),
    constraint plan_version_starts_once unique (plan_id, valid_from),
    constraint plan_version_number_is_positive check (version > 0),
    constraint plan_version_unit_is_known check (unit in ('GB-second', 'GB-hour', 'GiB-hour')),
    constraint plan_version_starts_on_a_minute check (date_trunc('minute', valid_from at time zone 'UTC') = valid_from at time zone 'UTC')
);

-- One row per GPU model; the model '' is the rate of every model not named, so that a plan prices whatever runs.
create table plan_rate (
    plan_version_id uuid not null,
    model text not null,
    reserved numeric(28, 9) not null,
    above numeric(28, 9),
    constraint plan_rate_key primary key (plan_version_id, model),
    constraint plan_rate_of_version foreign key (plan_version_id) references plan_version (plan_version_id),
    constraint plan_rate_is_not_negative check (reserved >= 0 and (above is null or above >= 0))
);
