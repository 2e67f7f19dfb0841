"""The errors of the protocol, with the numbers of its specification (5.4), and how errors of ours become them."""

from typing import Any

from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, Usage

DOMAIN = "a2a-protocol.org"
PARSE, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
# The specification leaves the number of an authorisation error open; this is JSON-RPC's for errors of a server.
NOT_PERMITTED = -32000
_REASONS = {
    -32001: "TASK_NOT_FOUND",
    -32002: "TASK_NOT_CANCELABLE",
    -32003: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    -32004: "UNSUPPORTED_OPERATION",
    -32005: "CONTENT_TYPE_NOT_SUPPORTED",
    -32009: "VERSION_NOT_SUPPORTED",
    NOT_PERMITTED: "PERMISSION_DENIED",
}


class A2aError(HocketError):
    """A request is answered with this error of the protocol. `field` is the member of the request that is wrong."""

    def __init__(self, code: int, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.code, self.field = code, field

    @property
    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"code": self.code, "message": str(self)}
        if reason := _REASONS.get(self.code):
            kind = "type.googleapis.com/google.rpc.ErrorInfo"
            shown["data"] = [{"@type": kind, "reason": reason, "domain": DOMAIN}]
        elif self.field:
            violations = [{"field": self.field, "description": str(self)}]
            shown["data"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return shown


def task_not_found(task: str) -> A2aError:
    return A2aError(-32001, f"you have no task {task[:64]!r} here")


def task_not_cancelable(sentence: str) -> A2aError:
    return A2aError(-32002, sentence)


def unsupported(sentence: str) -> A2aError:
    return A2aError(-32004, sentence)


def bad_params(sentence: str, field: str = "") -> A2aError:
    return A2aError(INVALID_PARAMS, sentence, field)


def as_a2a_error(error: HocketError) -> A2aError | None:
    """None for an error that is not the request's: the caller must show its token, or come back later."""
    match error:
        case A2aError():
            return error
        case NotAuthorised():
            return A2aError(NOT_PERMITTED, str(error))
        case NotFound():
            return A2aError(-32001, str(error))
        case Usage() | Conflict():
            return bad_params(str(error))
    return None
