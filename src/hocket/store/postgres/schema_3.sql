-- Version 3. The content of artifacts, if the nodes keep it in the store. It is not compressed: most of it is already.
CREATE TABLE blobs (
    hash    BYTEA  PRIMARY KEY,           -- BLAKE3 of the whole content
    size    BIGINT NOT NULL,
    content BYTEA  NOT NULL,              -- the first part
    made    BIGINT NOT NULL               -- when a node last wrote it, by the server's clock
) WITH (fillfactor = 70);
ALTER TABLE blobs ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE TABLE blob_parts (                 -- the others, from number 1
    hash    BYTEA   NOT NULL REFERENCES blobs ON DELETE CASCADE,
    number  INTEGER NOT NULL,
    content BYTEA   NOT NULL,
    PRIMARY KEY (hash, number)
);
ALTER TABLE blob_parts ALTER COLUMN content SET STORAGE EXTERNAL;
