-- Version 10: what stands in the place of ops that retention let go.
CREATE TABLE heads (                      -- the last settled entry of each author
    author BYTEA PRIMARY KEY,
    hlc    BYTEA  NOT NULL,              -- the time of its last op
    entry  BYTEA  NOT NULL,
    size   BIGINT NOT NULL,              -- the author's tree up to that entry
    peaks  BYTEA  NOT NULL
);
CREATE TABLE bases (                      -- what a subject was at the horizon, in place of the settled ops about it
    of_node BYTEA NOT NULL,                -- the node that has computed it
    family  TEXT NOT NULL,
    key     BYTEA NOT NULL,
    last    BYTEA NOT NULL,                -- the time of the latest settled op about it
    state   BYTEA NOT NULL,
    mac     BYTEA NOT NULL,
    PRIMARY KEY (family, key)
);
CREATE TABLE gaps (                       -- runs of rows that were deleted
    of_node BYTEA NOT NULL,                -- the node that has deleted them
    first BIGINT NOT NULL,                -- the numbers of their first and their last op
    last  BIGINT NOT NULL,
    chain BYTEA NOT NULL,                  -- the link of their last entry
    mac   BYTEA NOT NULL,
    PRIMARY KEY (first)
);
CREATE TABLE pruning (                    -- what is left to do until a horizon is in force for every subject
    family TEXT NOT NULL,                 -- empty: the key is that of an op without a subject, which goes
    key    BYTEA NOT NULL,
    last   BYTEA,                          -- the time and the state of the new base; nothing for a subject that goes
    state  BYTEA,
    kept   BYTEA NOT NULL,                 -- the ids of the settled ops that stay, one after the other
    PRIMARY KEY (family, key)
);
