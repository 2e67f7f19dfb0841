-- Version 7: what workers run, here and on other nodes.
ALTER TABLE workers ADD COLUMN serves TEXT NOT NULL DEFAULT '';    -- as work.serving writes it; empty: not known

CREATE TABLE presence (                   -- what other nodes last said about their workers
    node   BLOB PRIMARY KEY,
    serves TEXT NOT NULL,
    heard  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
