-- Version 11: rows beside the log have a node and its MAC (`store.row_macs`). Those from before get both when their
-- node opens its file; in a server that nodes share nobody can tell whose they were.
CREATE TABLE to_mac (one INTEGER PRIMARY KEY) STRICT;
INSERT INTO to_mac SELECT 1 FROM head WHERE seq > 0;

ALTER TABLE tokens RENAME TO tokens_before;
CREATE TABLE tokens (
    of_node BLOB NOT NULL,
    name    TEXT NOT NULL,
    id      TEXT NOT NULL,                    -- the public part of the token
    hash    BLOB NOT NULL,                    -- of the whole token
    grants  BLOB NOT NULL,                    -- its capabilities, as JSON
    made    INTEGER NOT NULL,
    expires INTEGER,                          -- null: never
    revoked INTEGER,
    used    INTEGER,                          -- roughly when it was last used; the MAC does not cover it
    mac    BLOB NOT NULL,
    PRIMARY KEY (of_node, name),
    UNIQUE (of_node, id)
) STRICT;
INSERT INTO tokens SELECT x'', name, id, hash, grants, made, expires, revoked, used, x'' FROM tokens_before;
DROP TABLE tokens_before;

ALTER TABLE answers RENAME TO answers_before;
CREATE TABLE answers (                        -- to requests with an Idempotency-Key
    of_node BLOB NOT NULL,
    token   TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BLOB NOT NULL,                    -- the hash of the request
    status  INTEGER,                          -- null: no answer is known yet
    body    BLOB,
    made    INTEGER NOT NULL,
    mac    BLOB NOT NULL,
    PRIMARY KEY (of_node, token, key)
) STRICT, WITHOUT ROWID;
INSERT INTO answers SELECT x'', token, key, request, status, body, made, x'' FROM answers_before;
DROP TABLE answers_before;
CREATE INDEX answers_by_age ON answers (of_node, made);

ALTER TABLE invitations RENAME TO invitations_before;
CREATE TABLE invitations (
    of_node     BLOB NOT NULL,
    secret_hash BLOB NOT NULL,
    name        TEXT NOT NULL,
    grants      BLOB NOT NULL,
    expires     INTEGER NOT NULL,
    used_by     BLOB,
    made        INTEGER NOT NULL,
    mac        BLOB NOT NULL,
    PRIMARY KEY (of_node, secret_hash)
) STRICT, WITHOUT ROWID;
INSERT INTO invitations SELECT x'', secret_hash, name, grants, expires, used_by, made, x'' FROM invitations_before;
DROP TABLE invitations_before;

ALTER TABLE peers RENAME TO peers_before;
CREATE TABLE peers (
    of_node BLOB NOT NULL,
    address TEXT NOT NULL,
    node    BLOB,                         -- of the peer; known from the first exchange on
    pulled  BLOB NOT NULL,                -- the frontier that its last answer ended with
    state   TEXT NOT NULL,
    detail  TEXT NOT NULL,
    seen    INTEGER NOT NULL,             -- when the last exchange went well; 0: never
    added   INTEGER NOT NULL,
    mac    BLOB NOT NULL,
    PRIMARY KEY (of_node, address)
) STRICT, WITHOUT ROWID;
INSERT INTO peers SELECT x'', address, node, pulled, state, detail, seen, added, x'' FROM peers_before;
DROP TABLE peers_before;

DROP INDEX held_by_wall;
DROP INDEX held_by_author;
ALTER TABLE held RENAME TO held_before;
CREATE TABLE held (                       -- ops from a clock that is too far ahead; they are on no log yet
    of_node BLOB NOT NULL,
    id      BLOB NOT NULL,
    wall    INTEGER NOT NULL,
    body    BLOB NOT NULL,
    author  BLOB NOT NULL,
    mac    BLOB NOT NULL,
    PRIMARY KEY (of_node, id)
) STRICT, WITHOUT ROWID;
INSERT INTO held SELECT x'', id, wall, body, author, x'' FROM held_before;
DROP TABLE held_before;
CREATE INDEX held_by_wall ON held (of_node, wall);
CREATE INDEX held_by_author ON held (of_node, author);

ALTER TABLE lock_requests ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
ALTER TABLE workers ADD COLUMN mac BLOB NOT NULL DEFAULT x'';

-- The newest progress note of each running job. It is on no log; it counts while the job has this fence.
CREATE TABLE progress (
    job   BLOB PRIMARY KEY,
    node  BLOB    NOT NULL,               -- of the worker that runs the job
    fence INTEGER NOT NULL,
    note  BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
