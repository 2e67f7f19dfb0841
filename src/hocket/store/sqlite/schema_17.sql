-- Version 17: what stands in the place of ops that retention let go.
CREATE TABLE heads (                      -- the last settled entry of each author
    author BLOB PRIMARY KEY,
    hlc    BLOB    NOT NULL,              -- the time of its last op
    entry  BLOB    NOT NULL,
    size   INTEGER NOT NULL,              -- the author's tree up to that entry
    peaks  BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE bases (                      -- what a subject was at the horizon, in place of the settled ops about it
    of_node BLOB NOT NULL,                -- the node that has computed it
    family  TEXT NOT NULL,
    key     BLOB NOT NULL,
    last    BLOB NOT NULL,                -- the time of the latest settled op about it
    state   BLOB NOT NULL,
    mac     BLOB NOT NULL,
    PRIMARY KEY (family, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE gaps (                       -- runs of rows that were deleted
    of_node BLOB NOT NULL,                -- the node that has deleted them
    first INTEGER NOT NULL,                -- the numbers of their first and their last op
    last  INTEGER NOT NULL,
    chain BLOB NOT NULL,                  -- the link of their last entry
    mac   BLOB NOT NULL,
    PRIMARY KEY (first)
) STRICT, WITHOUT ROWID;
CREATE TABLE pruning (                    -- what is left to do until a horizon is in force for every subject
    family TEXT NOT NULL,                 -- empty: the key is that of an op without a subject, which goes
    key    BLOB NOT NULL,
    last   BLOB,                          -- the time and the state of the new base; nothing for a subject that goes
    state  BLOB,
    kept   BLOB NOT NULL,                 -- the ids of the settled ops that stay, one after the other
    PRIMARY KEY (family, key)
) STRICT, WITHOUT ROWID;
