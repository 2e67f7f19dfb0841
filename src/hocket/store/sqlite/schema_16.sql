-- Version 16: the trees over the entries of authors, and what authors have signed of them.
CREATE TABLE checkpoints (
    of_node BLOB NOT NULL,                 -- the node that has computed, or received, this
    author  BLOB NOT NULL,
    state   TEXT NOT NULL,                 -- as in `store.checkpoint_rows`
    place   INTEGER NOT NULL,
    size    INTEGER NOT NULL,              -- so many entries of the author
    hlc     BLOB NOT NULL,                 -- the time of the last one
    peaks   BLOB NOT NULL,                 -- the roots of the complete subtrees
    note    BLOB NOT NULL,
    made    INTEGER NOT NULL,              -- in milliseconds
    mac     BLOB NOT NULL,
    PRIMARY KEY (of_node, author, state, place)
) STRICT, WITHOUT ROWID;
