-- +goose Up
-- What happened, in order. Rows are added and purged, never changed. AUTOINCREMENT: a number is never given twice.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      BIGINT NOT NULL,
    account TEXT   NOT NULL,
    sandbox TEXT   NOT NULL,
    type    TEXT   NOT NULL,
    actor   TEXT   NOT NULL,
    cause   TEXT   NOT NULL,
    message TEXT   NOT NULL
);
CREATE INDEX events_account ON events (account, seq);
CREATE INDEX events_sandbox ON events (sandbox, seq) WHERE sandbox <> '';
CREATE INDEX events_at ON events (at);

-- +goose Down
DROP TABLE events;
