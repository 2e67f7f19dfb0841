-- Version 13: the facts of a bundle follow it on the log, each in a row of its own, without bytes and without a link.
-- Their bytes are taken from those of the bundle (`kernel.bundles`), which is `place` + 1 rows before.
ALTER TABLE ops ADD COLUMN place INTEGER;
CREATE INDEX ops_bundles ON ops (seq) WHERE variant = 1051;
