-- +goose Up
-- The id of a Dayfly database in the file's header ("dfly"): another program's database is refused.
PRAGMA application_id = 1684434041;

-- Times are UTC microseconds since 1970, 0 for not yet; lease times are CLOCK_BOOTTIME nanoseconds.
CREATE TABLE accounts (
    id         TEXT    PRIMARY KEY NOT NULL,
    name       TEXT    NOT NULL UNIQUE,
    admin      BOOLEAN NOT NULL,
    max_live   BIGINT  NOT NULL,
    created_at BIGINT  NOT NULL
);

CREATE TABLE api_keys (
    id         TEXT    PRIMARY KEY NOT NULL,
    account    TEXT    NOT NULL REFERENCES accounts (id),
    admin      BOOLEAN NOT NULL,
    hash       TEXT    NOT NULL UNIQUE,
    hint       TEXT    NOT NULL,
    created_at BIGINT  NOT NULL
);
CREATE INDEX api_keys_account ON api_keys (account);

-- An image whose name was given to a newer one has no name.
CREATE TABLE images (
    id         TEXT   PRIMARY KEY NOT NULL,
    name       TEXT   UNIQUE,
    created_at BIGINT NOT NULL,
    body       TEXT   NOT NULL
);

-- No foreign key: a sandbox that was adopted from the host's truth may have lost its account or its image.
CREATE TABLE sandboxes (
    id             TEXT   PRIMARY KEY NOT NULL,
    account        TEXT   NOT NULL,
    rev            BIGINT NOT NULL,
    name           TEXT   NOT NULL,
    status         TEXT   NOT NULL,
    wanted         TEXT   NOT NULL,
    node           TEXT   NOT NULL,
    driver         TEXT   NOT NULL,
    end_reason     TEXT   NOT NULL,
    image          TEXT   NOT NULL,
    image_id       TEXT   NOT NULL,
    spec           TEXT   NOT NULL,
    labels         TEXT   NOT NULL,
    env_names      TEXT   NOT NULL,
    lease_boot     TEXT   NOT NULL,
    lease_born     BIGINT NOT NULL,
    lease_deadline BIGINT NOT NULL,
    lease_ceiling  BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    ready_at       BIGINT NOT NULL,
    ended_at       BIGINT NOT NULL
);
-- A page is merged from one ordered range of an index for each status, so no filter on it needs a scan or a sort.
CREATE INDEX sandboxes_account ON sandboxes (account, status, created_at, id);
CREATE INDEX sandboxes_status ON sandboxes (status, created_at, id);
CREATE INDEX sandboxes_account_name ON sandboxes (account, name, status, created_at, id) WHERE name <> '';
CREATE INDEX sandboxes_name ON sandboxes (name, status, created_at, id) WHERE name <> '';
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (account, name)
    WHERE name <> '' AND status NOT IN ('deleted', 'failed');
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE status IN ('deleted', 'failed');

-- Nothing but an index of sandboxes.labels: one row for each label of each sandbox, in the order of a page.
CREATE TABLE sandbox_labels (
    account    TEXT   NOT NULL,
    label      TEXT   NOT NULL,
    value      TEXT   NOT NULL,
    status     TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    sandbox    TEXT   NOT NULL,
    PRIMARY KEY (account, label, value, status, created_at, sandbox)
) WITHOUT ROWID;
CREATE INDEX sandbox_labels_all ON sandbox_labels (label, value, status, created_at, sandbox);

CREATE TABLE requests (
    account    TEXT    NOT NULL,
    idem_key   TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    resource   TEXT    NOT NULL,
    done       BOOLEAN NOT NULL,
    status     INTEGER NOT NULL,
    response   BLOB,
    created_at BIGINT  NOT NULL,
    PRIMARY KEY (account, idem_key)
) WITHOUT ROWID;
CREATE INDEX requests_created ON requests (created_at);

-- +goose Down
DROP TABLE requests;
DROP TABLE sandbox_labels;
DROP TABLE sandboxes;
DROP TABLE images;
DROP TABLE api_keys;
DROP TABLE accounts;
