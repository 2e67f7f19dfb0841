"""All targets by name."""

from tests.fuzz import beats, bus, codecs, commands, gitplane, libsql, objects, snapshots, tokens
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (codecs, tokens, commands, gitplane, bus, beats, libsql, objects, snapshots)
    for target in module.TARGETS
}
