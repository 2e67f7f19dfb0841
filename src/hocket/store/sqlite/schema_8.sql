-- Version 8: tokens of programs, and the answers to their requests.
CREATE TABLE tokens (
    name    TEXT PRIMARY KEY,
    id      TEXT NOT NULL UNIQUE,             -- the public part of the token
    hash    BLOB NOT NULL,                    -- of the whole token
    grants  BLOB NOT NULL,                    -- its capabilities, as JSON
    made    INTEGER NOT NULL,
    expires INTEGER,                          -- null: never
    revoked INTEGER,
    used    INTEGER                           -- roughly when it was last used
) STRICT;

CREATE TABLE answers (                        -- to requests with an Idempotency-Key
    token   TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BLOB NOT NULL,                    -- the hash of the request
    status  INTEGER,                          -- null: no answer is known yet
    body    BLOB,
    made    INTEGER NOT NULL,
    PRIMARY KEY (token, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX answers_by_age ON answers (made);
-- Version 8: requests for locks that end with the process that made them.
CREATE TABLE lock_requests (
    op        BLOB PRIMARY KEY,           -- the AcquireLocks op of this node
    node      BLOB NOT NULL,
    scope     TEXT NOT NULL,
    process   TEXT NOT NULL,              -- the name of the process's OS lock; empty: the request was given up
    until     INTEGER NOT NULL,           -- after this the arbiter no longer accepts the request
    host      TEXT NOT NULL,
    boot      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    locks     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- Version 8: contested rows with recorded conflicts. The first byte of a row's state says so.
CREATE INDEX rows_in_conflict ON subjects (key) WHERE family = 'row' AND substr(state, 1, 1) = x'01';
-- Version 8: what nodes and agents say about themselves. These rows expire.
DROP TABLE presence;
CREATE TABLE presence (                   -- what other nodes last said
    node  BLOB PRIMARY KEY,
    said  TEXT NOT NULL,                  -- as coordination.presence writes it
    heard INTEGER NOT NULL,
    seen  TEXT NOT NULL                   -- JSON: when each of the agents in `said` was last seen
) STRICT, WITHOUT ROWID;
CREATE TABLE agents (                     -- the agents of nodes that use this store
    node     BLOB NOT NULL,
    name     TEXT NOT NULL,
    doing    TEXT NOT NULL,
    every_ms INTEGER NOT NULL,            -- how often the agent says what it does
    seen     INTEGER NOT NULL,
    PRIMARY KEY (node, name)
) STRICT, WITHOUT ROWID;
-- Version 8: messages and their queues.
CREATE TABLE messages (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,   -- the order of arrival here
    id       BLOB    NOT NULL UNIQUE,
    receiver TEXT    NOT NULL,
    thread   BLOB,
    reply_to BLOB,
    depth    INTEGER NOT NULL,                    -- how many replies lead to it, as far as was known at its arrival
    last     BLOB    NOT NULL,                    -- HLC of the latest op about it
    state    BLOB    NOT NULL
) STRICT;
CREATE INDEX messages_of_thread ON messages (thread, id) WHERE thread IS NOT NULL;
CREATE INDEX messages_replies ON messages (reply_to) WHERE reply_to IS NOT NULL;
CREATE INDEX messages_to_groups ON messages (receiver, number) WHERE receiver = 'all' OR substr(receiver, -1) = '/';

CREATE TABLE deliveries (                         -- what is not acknowledged, by the address that receives it
    queue    TEXT    NOT NULL,
    message  BLOB    NOT NULL,
    stage    INTEGER NOT NULL,                    -- 0 ready, 1 resting, 2 blocked, 3 dead
    due      INTEGER NOT NULL,                    -- when its stage must be looked at again
    priority INTEGER NOT NULL,
    sent     BLOB    NOT NULL,
    thread   BLOB    NOT NULL,
    PRIMARY KEY (queue, message)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_of_message ON deliveries (message);
CREATE INDEX deliveries_ready ON deliveries (queue, priority DESC, sent) WHERE stage = 0;
CREATE INDEX deliveries_of_thread ON deliveries (queue, thread, sent) WHERE stage < 3;
CREATE INDEX deliveries_due ON deliveries (due) WHERE stage < 3;
CREATE INDEX deliveries_resting ON deliveries (due) WHERE stage = 1;
CREATE INDEX deliveries_dead ON deliveries (queue, message) WHERE stage = 3;

CREATE TABLE group_cursors (                      -- how far a queue has its share of the messages to groups
    queue  TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
