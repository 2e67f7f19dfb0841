-- Version 18: entries of a coordinator that a named node keeps for it, until they are on the log.
CREATE TABLE witnessed (
    of_node BLOB NOT NULL,                -- the node that keeps them
    author  BLOB NOT NULL,
    hlc     BLOB NOT NULL,                -- the time of the entry's last op
    body    BLOB NOT NULL,
    mac     BLOB NOT NULL,
    PRIMARY KEY (of_node, author, hlc)
) STRICT, WITHOUT ROWID;
-- What the owner says of who may follow the coordinator, and who has taken over.
CREATE TABLE successions (op BLOB PRIMARY KEY, hlc BLOB NOT NULL, pin BLOB, payload BLOB NOT NULL) STRICT, WITHOUT ROWID;
