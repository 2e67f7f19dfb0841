-- Version 4: where each worker runs, and when it last said that it is alive.
ALTER TABLE workers ADD COLUMN node      BLOB    NOT NULL DEFAULT x'';    -- empty in rows from before: the store's one node
ALTER TABLE workers ADD COLUMN host      TEXT    NOT NULL DEFAULT '';     -- hash of the machine id; empty: unknown, as below
ALTER TABLE workers ADD COLUMN boot      TEXT    NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN namespace TEXT    NOT NULL DEFAULT '';     -- of process ids: containers have their own
ALTER TABLE workers ADD COLUMN locks     TEXT    NOT NULL DEFAULT '';     -- the directory that holds its lock
ALTER TABLE workers ADD COLUMN beat      INTEGER NOT NULL DEFAULT 0;
UPDATE workers SET beat = started;
