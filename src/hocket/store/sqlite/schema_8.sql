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
