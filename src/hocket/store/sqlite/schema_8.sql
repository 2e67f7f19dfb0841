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
CREATE INDEX deliveries_dead ON deliveries (queue, message) WHERE stage = 3;

CREATE TABLE group_cursors (                      -- how far a queue has its share of the messages to groups
    queue  TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
