"""Grants as people write and read them: `job:claim:acme.render.` on a command line becomes a capability of a
delegation, and capabilities become words. The kernel decides whether a capability may be delegated and what it admits.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from hocket.errors import Usage
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.families.locks.rules import NAME_CHARS_MAX
from hocket.kernel.family import Family, by_resource, derived
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import CAPABILITIES_MAX, ROOT, Capability, Quota

_RESOURCES = derived(
    {
        name.lower(): name
        for name in (
            *("Ops", "Evidence", "Entity", "Claim", "Job", "Episode", "Artifact", "Action", "Mesh", "UserAssertion"),
            *("Registration", "Account"),
        )
    },
    lambda family: {} if family.resource is None else {family.resource.name.lower(): family.resource.name},
)
_OF_JOBS = {
    **{"read": "Read", "schedule": "Schedule", "claim": "Claim", "complete": "Complete"},
    **{"define": "Define", "approve": "Approve", "erase": "Erase", "all": "*"},
}
_OF_OTHERS = {"read": "Read", "write": "Write", "all": "*"}
_OF_ACCOUNTS = {"charge": "Charge"}
_ACTIONS = derived({"Job": _OF_JOBS, "Account": _OF_ACCOUNTS}, by_resource(lambda each: each.spelled))
# Whose grants may end with a prefix, and what it is a prefix of.
_KEYED = derived({"Account": "name"}, by_resource(lambda each: each.word))
# Without these, a node could not verify the ops that it receives.
_NEEDED = ("Registration", "Mesh")
_OF_A_WORKER = ("job:claim", "job:complete", "job:read", "artifact:read")
_READ_BY_DEFAULT = ("Job", "Artifact", *_NEEDED)
_OUTPUTS = ("Claim", "Artifact", "Episode", "Action")
_AUDITED = frozenset({("Job", "Claim"), ("Job", "Complete"), *((resource, "Write") for resource in _OUTPUTS)})
_MANY: dict[str, str] = {
    "Ops": "everything",
    "Evidence": "evidence",
    "Entity": "entities",
    "Claim": "claims",
    "Job": "jobs",
    "Episode": "episodes",
    "Artifact": "artifacts",
    "Action": "suggested actions",
    "Mesh": "routes",
    "UserAssertion": "user assertions",
    "Registration": "delegations",
    "Account": "accounts",
}
derived(_MANY, by_resource(lambda each: each.plural))


def _verbs(family: Family) -> dict[str, str]:
    actions = () if family.resource is None else family.resource.actions.values()
    return {action: action.lower() for action in actions}


_VERBS: dict[str, str] = {
    **{"Read": "read", "Write": "write", "Schedule": "submit", "Claim": "claim", "Complete": "complete"},
    **{"Define": "set the options of", "Approve": "approve", "Erase": "erase the content of", "Charge": "charge"},
}
derived(_VERBS, _verbs)

# A grant about locks may name the scope that it is for; the default scope has no name.
_SCOPED = re.compile(rf"lock@(.*?):({'|'.join(_ACTIONS['Lock'])})(:.*)?", re.IGNORECASE | re.DOTALL)

# The prefixes by resource, action and scope; no prefixes and no scope mean "without restriction".
_Wanted = dict[tuple[str, str, str | None], list[str] | None]


def parse_action(text: str) -> tuple[str, str]:
    """A resource and an action from `resource:action`; a job action may omit `job:`."""
    resource, colon, action = text.partition(":")
    if not colon and resource.lower() in _OF_JOBS:
        resource, action = "job", resource
    return _pair(text, resource, action)


def parse_grants(
    texts: Iterable[str],
    *,
    worker: Iterable[str] = (),
    audit: bool = False,
    sanitize: Sequence[str] = (),
    of_node: bool = True,
    is_strict: bool = False,
) -> tuple[Capability, ...]:
    """The capabilities of these grants, plus those that every node needs. A node that may complete jobs may write
    artifacts. Every node reads delegations, routes and coordinators; it also reads all jobs and artifacts unless the
    grants name a read. `worker` has kind prefixes: the node may claim, complete and read jobs of these kinds, set their
    options (which a strict mesh does not have), and read their artifacts. The grants of a program, which is no node,
    are these alone.
    """
    from hocket.kernel.sanitise import parse_rule

    for rule in sanitize:
        try:
            parse_rule(rule)
        except Malformed:
            raise Usage(
                f"{rule!r} is not a sanitisation rule; known are StripGeo, RedactParticipants, TruncateContent(N)"
                " and StripCustomMetadata"
            ) from None
    wanted: _Wanted = {}
    for text in texts:
        _want(wanted, text)
    for prefix in worker:
        for grant in _OF_A_WORKER if is_strict else (*_OF_A_WORKER, "job:define"):
            _want(wanted, f"{grant}:{prefix}")
    if not wanted:
        example = "--worker acme.render. or --may job:schedule" if of_node else "--may lock:acquire:file:src/"
        raise Usage(f"no grants; give at least one, like {example}")
    if ("Job", "Complete", None) in wanted or ("Job", "*", None) in wanted:
        wanted.setdefault(("Artifact", "Write", None), None)
    for (resource, action, scope), prefixes in list(wanted.items()):
        if resource in _KEYED and action not in ("Read", "*", "Charge"):
            # Who acquires a lock reads all locks of its scope; who writes or receives something reads that.
            known = wanted.setdefault((resource, "Read", scope), [])
            if prefixes is None or resource == "Lock":
                wanted[resource, "Read", scope] = None
            elif known is not None:
                known += [prefix for prefix in prefixes if prefix not in known]
    # Every action on all jobs is not a read by name; a read action or a prefix is.
    reads = {
        resource
        for (resource, action, _), prefixes in wanted.items()
        if resource not in _KEYED
        and (action == "Read" or (action == "*" and (resource != "Job" or prefixes is not None)))
    }
    if of_node and "Ops" not in reads:
        for resource in _NEEDED if reads else _READ_BY_DEFAULT:
            wanted.setdefault((resource, "Read", None), None)
    if len(wanted) > CAPABILITIES_MAX:
        raise Usage(f"{len(wanted)} grants are too many for one node; at most {CAPABILITIES_MAX}")
    return tuple(
        Capability(resource, action, _caveats(resource, action, scope, prefixes, audit, list(sanitize)))
        for (resource, action, scope), prefixes in wanted.items()
    )


def _want(wanted: _Wanted, text: str) -> None:
    if text.strip().lower() == "all":
        wanted[ROOT[0].resource, ROOT[0].action, None] = None
        return
    scope: str | None = None
    if (scoped := _SCOPED.fullmatch(text.strip())) is not None:
        scope = unicodedata.normalize("NFC", scoped[1])
        text = f"lock:{scoped[2]}{scoped[3] or ''}"
        if len(scope) > NAME_CHARS_MAX or (scope and not scope.isprintable()):
            raise Usage(f"bad scope {scope!a}: use at most {NAME_CHARS_MAX} printable characters")
    resource, _, rest = text.strip().partition(":")
    action, colon, prefix = rest.partition(":")
    pair = _pair(text, resource, action)
    place = (*pair, scope)
    if not colon:
        wanted[place] = None
    elif pair[0] not in ("Job", *_KEYED) and pair != ("Artifact", "Read"):
        raise Usage(
            f"bad grant {text!r}: only artifact:read and actions on jobs, locks, inboxes, rows and accounts take a"
            f" prefix; leave out {prefix!r}"
        )
    elif prefix.endswith("*"):
        raise Usage(f"bad grant {text!r}: write the prefix without a star: {prefix.rstrip('*')!r}")
    elif not prefix or len(prefix) > KIND_LENGTH_MAX or not prefix.isprintable():
        raise Usage(f"bad grant {text!r}: a prefix has 1 to {KIND_LENGTH_MAX} printable characters")
    elif (known := wanted.setdefault(place, [])) is not None and prefix not in known:
        known.append(prefix)


def _pair(text: str, resource: str, action: str) -> tuple[str, str]:
    name = _RESOURCES.get(resource.strip().lower())
    if name is None:
        raise Usage(
            f"bad grant {text!r}: unknown resource {resource!r}; write `all`, or resource:action with one of "
            + ", ".join(_RESOURCES)
        )
    actions = _ACTIONS.get(name, _OF_OTHERS)
    if action.strip().lower() not in actions:
        raise Usage(f"bad grant {text!r}: {resource} has no action {action!r}; it has " + ", ".join(actions))
    return name, actions[action.strip().lower()]


def _caveats(
    resource: str, action: str, scope: str | None, prefixes: list[str] | None, audit: bool, sanitize: list[str]
) -> dict[str, object]:
    caveats: dict[str, object] = {} if scope is None else {"scopes": [scope]}
    if prefixes is not None:
        caveats["key_prefix" if resource in _KEYED else "kind_prefix"] = prefixes
    is_write = action == "*" and resource in ("Job", *_OUTPUTS)
    if audit and (is_write or (resource, action) in _AUDITED or (resource == "Ops" and action != "Read")):
        caveats["audit_inference"] = True
    if sanitize and action in ("Read", "*") and resource not in _NEEDED:
        caveats["sanitize"] = sanitize
    return caveats


def words(capabilities: Iterable[Capability]) -> list[str]:
    """What the capabilities allow, each in a few words; read-only ones come last, joined."""
    reads: dict[str, list[str]] = {}
    said = []
    for capability in capabilities:
        what, conditions = _what(capability), _conditions(capability)
        if capability.action == "Read":
            reads.setdefault(conditions, []).append(what)
        elif (capability.resource, capability.action) == ("Ops", "*"):
            said.append("do everything" + conditions)
        elif capability.resource == "Store":
            said.append(f"decide in the store of {_founders(capability)}")
        elif capability.resource == "Registration":
            said.append("invite others, and revoke them" + conditions)
        else:
            said.append(f"{_VERBS.get(capability.action, 'do everything with')} {what}{conditions}")
    return said + [f"read {_joined(what)}{conditions}" for conditions, what in reads.items()]


def _what(capability: Capability) -> str:
    what = _MANY.get(capability.resource, capability.resource)
    keyed = _KEYED.get(capability.resource)
    prefixes = capability.caveats.get("kind_prefix" if keyed is None else "key_prefix")
    if isinstance(prefixes, list):
        what += " of jobs" if capability.resource == "Artifact" else ""
        what += f" with {keyed} " if keyed else " of kind "
        what += " or ".join(f"{prefix}*" for prefix in prefixes) or "(none)"
    scopes = capability.caveats.get("scopes")
    if isinstance(scopes, list):
        what += " in " + (" or ".join(f"the scope {scope}" if scope else "the default scope" for scope in scopes))
    return what


def _founders(capability: Capability) -> str:
    named = capability.caveats.get("key_prefix")
    return _joined([f"node {each}" for each in named]) if isinstance(named, list) and named else "no node"


def _conditions(capability: Capability) -> str:
    said = []
    for name, value in sorted(capability.caveats.items()):
        if name == "audit_inference" and value is True:
            said.append("every model call recorded")
        elif name == "sanitize" and isinstance(value, list):
            said.append("after " + _joined([str(rule) for rule in value]))
        elif name not in ("kind_prefix", "key_prefix", "scopes", "audit_inference"):
            said.append(f"{name} {value}")
    return f" ({', '.join(said)})" if said else ""


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# Quotas as people write and read them: `ops=50/s,bytes=1M/s,ops=1M,bytes=2G`.

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_PART = re.compile(r"(ops|bytes)\s*=\s*([0-9]{1,15})\s*([kmgt]i?|)\s*(/s|)", re.IGNORECASE)
_FIELDS = {("ops", "/s"): "ops_per_s", ("bytes", "/s"): "bytes_per_s", ("ops", ""): "ops", ("bytes", ""): "bytes"}
_NUMBER_MAX = 2**53 - 1


def parse_quota(text: str) -> Quota:
    """A number with `/s` is a rate, a number without it is a total. An unnamed limit takes the mesh's default."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise Usage(
                f"bad quota {part.strip()!r}: write ops=N/s, bytes=N/s, ops=N or bytes=N, several with commas between,"
                " like ops=50/s,bytes=1M/s,bytes=2G"
            )
        what, number, unit, rate = match.groups()
        field, value = _FIELDS[what.lower(), rate.lower()], int(number) * _UNITS[unit.lower()]
        if field in found:
            raise Usage(f"bad quota {text!r}: {what}{rate} is given twice")
        if not 0 < value <= _NUMBER_MAX:
            raise Usage(f"bad quota {part.strip()!r}: a quota must be more than 0 and at most 2^53 - 1")
        found[field] = value
    return Quota(**found)


def quota_words(quota: Quota) -> str:
    """What a quota allows, in a few words; empty if it sets no limit."""
    rates = _amounts(quota.ops_per_s, quota.bytes_per_s)
    totals = _amounts(quota.ops, quota.bytes)
    said = ([f"{rates} a second"] if rates else []) + ([f"{totals} in all"] if totals else [])
    return ", ".join(said)


def _amounts(ops: int | None, size: int | None) -> str:
    said = ([] if ops is None else [f"{ops:,} ops"]) + ([] if size is None else [size_words(size)])
    return " and ".join(said)


def size_words(size: int) -> str:
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + " " + units[0]
