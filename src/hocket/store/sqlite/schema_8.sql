-- Version 8: contested rows with recorded conflicts. The first byte of a row's state says so.
CREATE INDEX rows_in_conflict ON subjects (key) WHERE family = 'row' AND substr(state, 1, 1) = x'01';
