-- Version 1: the tables of records.py, one each, and where large strings of bodies are kept.
--
-- Rowid tables throughout: with bodies of some KiB they are several times faster than WITHOUT ROWID.
-- Uniqueness is the schema's work: one active run per agent, one unread answer per call, one approval per call,
-- one run per request id.

PRAGMA application_id = 0x534F4A4E;  -- SOJN

CREATE TABLE agents (
    agent_id TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    activity INTEGER NOT NULL,
    conversation TEXT NOT NULL,
    config TEXT NOT NULL,
    title TEXT,
    labels TEXT NOT NULL,
    state TEXT NOT NULL,
    waiting_for TEXT,
    active_run_id TEXT,
    needs_reply INTEGER NOT NULL CHECK (needs_reply IN (0, 1)),
    last_seq INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    next_message INTEGER NOT NULL,
    pending_calls INTEGER NOT NULL,
    approvals INTEGER NOT NULL,
    inbox INTEGER NOT NULL,
    next_item INTEGER NOT NULL,
    parent_agent_id TEXT,
    parent_call_id TEXT,
    usage TEXT NOT NULL,
    deleted INTEGER NOT NULL CHECK (deleted IN (0, 1)),
    epoch INTEGER NOT NULL,
    PRIMARY KEY (agent_id)
) STRICT;
CREATE INDEX agents_by_parent_agent_id_deleted_activity ON agents (parent_agent_id, deleted, activity);
CREATE INDEX agents_by_state ON agents (state);

CREATE TABLE messages (
    conversation TEXT NOT NULL,
    position INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    role TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (conversation, position),
    UNIQUE (conversation, message_id)
) STRICT;

CREATE TABLE events (
    agent_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at TEXT NOT NULL,
    body TEXT NOT NULL,
    run_id TEXT,
    origin TEXT,
    ref_agent_id TEXT,
    ref_seq INTEGER,
    ref_call_id TEXT,
    PRIMARY KEY (agent_id, seq)
) STRICT;

CREATE TABLE runs (
    run_id TEXT NOT NULL,
    agent_id TEXT,
    conversation TEXT NOT NULL,
    base INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    state TEXT NOT NULL,
    revision INTEGER NOT NULL,
    machine TEXT NOT NULL,
    turn INTEGER NOT NULL,
    max_turns INTEGER NOT NULL,
    usage TEXT NOT NULL,
    active INTEGER NOT NULL CHECK (active IN (0, 1)),
    pass_open INTEGER NOT NULL CHECK (pass_open IN (0, 1)),
    driver TEXT,
    cause TEXT,
    pass_first_seq INTEGER NOT NULL,
    pass_first_message INTEGER NOT NULL,
    streaming_message TEXT,
    crashes INTEGER NOT NULL,
    stop_requested INTEGER NOT NULL CHECK (stop_requested IN (0, 1)),
    on_approval TEXT,
    origin TEXT,
    nested_agent_id TEXT,
    nested_call_id TEXT,
    outcome TEXT,
    PRIMARY KEY (run_id)
) STRICT;
CREATE UNIQUE INDEX runs_one_active ON runs (agent_id) WHERE active = 1;
CREATE INDEX runs_by_agent_id_created_at ON runs (agent_id, created_at);
CREATE INDEX runs_by_active_pass_open ON runs (active, pass_open);
CREATE INDEX runs_by_created_at ON runs (created_at);

CREATE TABLE model_calls (
    run_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) STRICT;

CREATE TABLE entries (
    run_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) STRICT;

CREATE TABLE calls (
    owner TEXT NOT NULL,
    call_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    tool_name TEXT NOT NULL,
    args TEXT NOT NULL,
    args_sha256 TEXT NOT NULL,
    state TEXT NOT NULL,
    since TEXT NOT NULL,
    on_interrupt TEXT NOT NULL,
    message_id TEXT,
    result TEXT,
    placeholder TEXT,
    client_id TEXT,
    sent INTEGER NOT NULL CHECK (sent IN (0, 1)),
    child_agent_id TEXT,
    answered_by TEXT,
    answered_at TEXT,
    read_at TEXT,
    PRIMARY KEY (owner, call_id)
) STRICT;
CREATE INDEX calls_by_run_id_position ON calls (run_id, position);
CREATE INDEX calls_by_owner_state ON calls (owner, state);
CREATE INDEX calls_by_client_id_state ON calls (client_id, state);

CREATE TABLE inbox (
    agent_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    at TEXT NOT NULL,
    state TEXT NOT NULL,
    call_id TEXT,
    run_id TEXT,
    is_prompt INTEGER NOT NULL CHECK (is_prompt IN (0, 1)),
    PRIMARY KEY (agent_id, position),
    UNIQUE (item_id)
) STRICT;
CREATE UNIQUE INDEX inbox_one_unread ON inbox (agent_id, call_id) WHERE state = 'unread';
CREATE INDEX inbox_by_agent_id_state_position ON inbox (agent_id, state, position);
CREATE INDEX inbox_by_state ON inbox (state);

CREATE TABLE approvals (
    approval_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    since TEXT NOT NULL,
    body TEXT NOT NULL,
    decided INTEGER NOT NULL CHECK (decided IN (0, 1)),
    expires_at TEXT,
    PRIMARY KEY (approval_id),
    UNIQUE (agent_id, call_id)
) STRICT;
CREATE INDEX approvals_by_agent_id_decided ON approvals (agent_id, decided);
CREATE INDEX approvals_by_decided_since ON approvals (decided, since);

CREATE TABLE requests (
    client_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    at TEXT NOT NULL,
    answer TEXT,
    agent_id TEXT,
    run_id TEXT,
    item_id TEXT,
    PRIMARY KEY (client_id, request_id)
) STRICT;
CREATE INDEX requests_by_at ON requests (at);

CREATE TABLE client_tools (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    client_id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT;

CREATE TABLE jobs (
    job_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL,
    since TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job_id)
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state);

CREATE TABLE meta (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
) STRICT;

-- The strings that were taken out of bodies (_bodies.py), and how many bodies quote each. A body that quotes blobs is
-- 'blobs:' and a JSON object whose "blobs" lists their digests. Whoever writes such a body counts it; the triggers
-- below count it off when it goes or is replaced. What nobody quotes is removed later, in pieces.

CREATE TABLE blobs (
    sha256 TEXT NOT NULL PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE blob_uses (
    sha256 TEXT NOT NULL PRIMARY KEY,
    uses INTEGER NOT NULL
) STRICT;
CREATE INDEX blob_uses_none ON blob_uses (sha256) WHERE uses <= 0;

CREATE TRIGGER messages_body_deleted AFTER DELETE ON messages WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER messages_body_replaced AFTER UPDATE OF body ON messages WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER events_body_deleted AFTER DELETE ON events WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER events_body_replaced AFTER UPDATE OF body ON events WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER runs_machine_deleted AFTER DELETE ON runs WHEN OLD.machine GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.machine, 7), '$.blobs'));
END;

CREATE TRIGGER runs_machine_replaced AFTER UPDATE OF machine ON runs WHEN OLD.machine GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.machine, 7), '$.blobs'));
END;

CREATE TRIGGER runs_outcome_deleted AFTER DELETE ON runs WHEN OLD.outcome GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.outcome, 7), '$.blobs'));
END;

CREATE TRIGGER runs_outcome_replaced AFTER UPDATE OF outcome ON runs WHEN OLD.outcome GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.outcome, 7), '$.blobs'));
END;

CREATE TRIGGER entries_value_deleted AFTER DELETE ON entries WHEN OLD.value GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.value, 7), '$.blobs'));
END;

CREATE TRIGGER entries_value_replaced AFTER UPDATE OF value ON entries WHEN OLD.value GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.value, 7), '$.blobs'));
END;

CREATE TRIGGER calls_args_deleted AFTER DELETE ON calls WHEN OLD.args GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.args, 7), '$.blobs'));
END;

CREATE TRIGGER calls_args_replaced AFTER UPDATE OF args ON calls WHEN OLD.args GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.args, 7), '$.blobs'));
END;

CREATE TRIGGER calls_result_deleted AFTER DELETE ON calls WHEN OLD.result GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.result, 7), '$.blobs'));
END;

CREATE TRIGGER calls_result_replaced AFTER UPDATE OF result ON calls WHEN OLD.result GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.result, 7), '$.blobs'));
END;

CREATE TRIGGER calls_placeholder_deleted AFTER DELETE ON calls WHEN OLD.placeholder GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.placeholder, 7), '$.blobs'));
END;

CREATE TRIGGER calls_placeholder_replaced AFTER UPDATE OF placeholder ON calls WHEN OLD.placeholder GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.placeholder, 7), '$.blobs'));
END;

CREATE TRIGGER inbox_body_deleted AFTER DELETE ON inbox WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER inbox_body_replaced AFTER UPDATE OF body ON inbox WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER approvals_body_deleted AFTER DELETE ON approvals WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER approvals_body_replaced AFTER UPDATE OF body ON approvals WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER requests_answer_deleted AFTER DELETE ON requests WHEN OLD.answer GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.answer, 7), '$.blobs'));
END;

CREATE TRIGGER requests_answer_replaced AFTER UPDATE OF answer ON requests WHEN OLD.answer GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.answer, 7), '$.blobs'));
END;

CREATE TRIGGER client_tools_body_deleted AFTER DELETE ON client_tools WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER client_tools_body_replaced AFTER UPDATE OF body ON client_tools WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER jobs_body_deleted AFTER DELETE ON jobs WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;

CREATE TRIGGER jobs_body_replaced AFTER UPDATE OF body ON jobs WHEN OLD.body GLOB 'blobs:*' BEGIN
    UPDATE blob_uses SET uses = uses - 1
    WHERE sha256 IN (SELECT value FROM json_each(substr(OLD.body, 7), '$.blobs'));
END;
