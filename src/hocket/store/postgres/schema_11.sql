-- Version 11: entries of a coordinator that a named node keeps for it, until they are on the log.
CREATE TABLE witnessed (
    of_node BYTEA NOT NULL,                -- the node that keeps them
    author  BYTEA NOT NULL,
    hlc     BYTEA NOT NULL,                -- the time of the entry's last op
    body    BYTEA NOT NULL,
    mac     BYTEA NOT NULL,
    PRIMARY KEY (of_node, author, hlc)
);
-- What the owner says of who may follow the coordinator, and who has taken over.
CREATE TABLE successions (op BYTEA PRIMARY KEY, hlc BYTEA NOT NULL, pin BYTEA, payload BYTEA NOT NULL);
