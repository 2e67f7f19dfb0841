"""All targets by name."""

from tests.fuzz import beats, bus, codecs, commands, gitplane, tokens
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*codecs.TARGETS, *tokens.TARGETS, *commands.TARGETS, *gitplane.TARGETS, *bus.TARGETS, *beats.TARGETS)
}
