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
