-- Sessions of people that can be listed and ended, and credentials of machines that age, rotate and are missed when a
-- copy of them turns up.

-- A login. The token names it; without its row a token is worth nothing. No foreign key leads to the account, which lies
-- across tenants for people of the platform; accounts are never removed.
create table session (
    session_id uuid not null,
    tenant_id uuid,
    user_id uuid not null,
    address text,
    user_agent text,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    revoked_at timestamptz,
    constraint session_key primary key (session_id),
    constraint session_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint session_origin_is_short check (octet_length(address) <= 64 and octet_length(user_agent) <= 200),
    constraint session_ends_after_start check (expires_at > created_at)
);
create index session_of_user on session (user_id, session_id);
create index session_by_end on session (expires_at);

-- When a key was last used, to within some minutes, and until when it is good at most.
alter table api_key
    add column expires_at timestamptz,
    add column last_used_at timestamptz,
    add constraint api_key_ends_after_start check (expires_at > created_at);

-- A node's credential waits until it is first used; that use supersedes all others of its node.
alter table node_credential
    add column first_used_at timestamptz,
    add column superseded_at timestamptz;
update node_credential set first_used_at = created_at;
create index node_credential_of_node_valid on node_credential (node_id) where revoked_at is null and superseded_at is null;

-- Which run of the agent speaks for a node, how often it reports, and whether an operator wants its credential renewed.
alter table node
    add column run_id uuid,
    add column report_interval_ms integer,
    add column rotate_asked_at timestamptz,
    add constraint node_run_has_interval check ((run_id is null) = (report_interval_ms is null)),
    add constraint node_report_interval_is_positive check (report_interval_ms > 0);

-- Every boot of a node that was taken for it: one that is over never comes back.
create table node_boot (
    node_id uuid not null,
    boot_id text not null,
    first_heard timestamptz not null,
    constraint node_boot_key primary key (node_id, boot_id),
    constraint node_boot_of_node foreign key (node_id) references node (node_id)
);
insert into node_boot select node_id, boot_id, joined_at from node where boot_id is not null;

-- What was refused although it held a node's credential: a sign that the node was copied. One row for each reason.
create table node_refusal (
    node_id uuid not null,
    reason text not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    times bigint not null,
    constraint node_refusal_key primary key (node_id, reason),
    constraint node_refusal_of_node foreign key (node_id) references node (node_id),
    constraint node_refusal_reason_is_known check (reason in
        ('another_agent_reports', 'former_boot', 'superseded_credential')),
    constraint node_refusal_was_seen check (times > 0 and last_at >= first_at)
);

grant select, insert, update, delete on session to gpuledger_service;
grant select, insert, delete on node_boot to gpuledger_service;
grant select, insert, update on node_refusal to gpuledger_service;

alter table session enable row level security;
create policy tenant_wall on session to gpuledger_service
    using (current_setting('app.tenants', true) = '*'
        or tenant_id::text = any (string_to_array(current_setting('app.tenants', true), ',')));
