-- Control: how people come in without a password of ours, and how they are let in at all.

alter table user_account alter column password_hash drop not null;
alter table user_account add constraint user_account_is_known_within_tenant unique (tenant_id, user_id);

-- A person as a token issuer knows them. An issuer gives a subject to nobody else, ever; an email address it may give
-- to another person tomorrow, so nobody is recognised by one.
create table membership (
    issuer text not null,
    subject text not null,
    tenant_id uuid,
    user_id uuid not null,
    created_at timestamptz not null,
    constraint membership_key primary key (issuer, subject),
    constraint membership_of_user foreign key (tenant_id, user_id) references user_account (tenant_id, user_id),
    constraint membership_issuer_is_short check (octet_length(issuer) between 1 and 500),
    constraint membership_subject_is_short check (octet_length(subject) between 1 and 255)
);
create index membership_of_one_user on membership (user_id);

-- Lets one person make one account. The secret itself is shown once; of its 256 random bits only the SHA-256 is kept.
create table invitation (
    invitation_id uuid not null,
    tenant_id uuid,
    email text not null,
    role text not null,
    prefix text not null,
    hash bytea not null,
    created_at timestamptz not null,
    created_by text not null,
    expires_at timestamptz not null,
    accepted_at timestamptz,
    revoked_at timestamptz,
    constraint invitation_key primary key (invitation_id),
    constraint invitation_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint invitation_prefix_is_unique unique (prefix),
    constraint invitation_hash_is_sha256 check (octet_length(hash) = 32),
    constraint invitation_email_is_lower_case check (email = lower(email) and octet_length(email) between 3 and 254),
    constraint invitation_expires_after_it_is_made check (expires_at > created_at),
    constraint invitation_is_accepted_or_revoked check (accepted_at is null or revoked_at is null),
    constraint invitation_role_fits_tenant check (
        (tenant_id is null and role in ('operator', 'billing_clerk'))
        or (tenant_id is not null and role in ('tenant_admin', 'member', 'viewer')))
);

grant select on membership, invitation to gpuledger_service;
grant insert on membership to gpuledger_service;
grant insert, update on invitation to gpuledger_service;

do $$
declare
    tenant_table text;
begin
    foreach tenant_table in array array['membership', 'invitation']
    loop
        execute format('alter table %I enable row level security', tenant_table);
        execute format($policy$
            create policy tenant_wall on %I to gpuledger_service
            using (current_setting('app.tenants', true) = '*'
                or tenant_id::text = any (string_to_array(current_setting('app.tenants', true), ',')))
        $policy$, tenant_table);
    end loop;
end
$$;
