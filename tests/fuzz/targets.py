"""All targets by name."""

from tests.fuzz import codecs, commands, gitplane, tokens
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for target in (*codecs.TARGETS, *tokens.TARGETS, *commands.TARGETS, *gitplane.TARGETS)
}
