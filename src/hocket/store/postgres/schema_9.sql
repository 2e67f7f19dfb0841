-- Version 9: the trees over the entries of authors, and what authors have signed of them.
CREATE TABLE checkpoints (
    of_node BYTEA NOT NULL,                -- the node that has computed, or received, this
    author  BYTEA NOT NULL,
    state   TEXT NOT NULL,                 -- as in `store.checkpoint_rows`
    place   BIGINT NOT NULL,
    size    BIGINT NOT NULL,               -- so many entries of the author
    hlc     BYTEA NOT NULL,                -- the time of the last one
    peaks   BYTEA NOT NULL,                -- the roots of the complete subtrees
    note    BYTEA NOT NULL,
    made    BIGINT NOT NULL,               -- in milliseconds
    mac     BYTEA NOT NULL,
    PRIMARY KEY (of_node, author, state, place)
);
