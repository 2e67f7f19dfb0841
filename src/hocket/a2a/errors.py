"""The errors of the protocol, with the numbers of its specification (5.4), and how errors of ours become them."""

from enum import IntEnum
from typing import Any

from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, Usage

DOMAIN = "a2a-protocol.org"
PARSE, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603


class ErrorReason(IntEnum):
    """The errors of which the specification wants the name in `data`."""

    TASK_NOT_FOUND = -32001
    TASK_NOT_CANCELABLE = -32002
    PUSH_NOTIFICATION_NOT_SUPPORTED = -32003
    UNSUPPORTED_OPERATION = -32004
    CONTENT_TYPE_NOT_SUPPORTED = -32005
    VERSION_NOT_SUPPORTED = -32009
    # The specification leaves the number of an authorisation error open; this is JSON-RPC's for errors of a server.
    PERMISSION_DENIED = -32000


class A2aError(HocketError):
    """The answer to a request is this error of the protocol. `field` is the member of the request that is wrong."""

    def __init__(self, code: int, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.code, self.field = code, field

    @property
    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"code": self.code, "message": str(self)}
        if isinstance(self.code, ErrorReason):
            kind = "type.googleapis.com/google.rpc.ErrorInfo"
            shown["data"] = [{"@type": kind, "reason": self.code.name, "domain": DOMAIN}]
        elif self.field:
            violations = [{"field": self.field, "description": str(self)}]
            shown["data"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return shown


def task_not_found(task: str) -> A2aError:
    return A2aError(ErrorReason.TASK_NOT_FOUND, f"you have no task {task[:64]!r} here")


def task_not_cancelable(sentence: str) -> A2aError:
    return A2aError(ErrorReason.TASK_NOT_CANCELABLE, sentence)


def unsupported(sentence: str) -> A2aError:
    return A2aError(ErrorReason.UNSUPPORTED_OPERATION, sentence)


def no_push_notifications() -> A2aError:
    sentence = "this agent sends no push notifications; stream the task, or ask for it again"
    return A2aError(ErrorReason.PUSH_NOTIFICATION_NOT_SUPPORTED, sentence)


def bad_params(sentence: str, field: str = "") -> A2aError:
    return A2aError(INVALID_PARAMS, sentence, field)


def as_a2a_error(error: HocketError) -> A2aError | None:
    """None for an error that is not the request's: the caller must show its token, or come back later."""
    match error:
        case A2aError():
            return error
        case NotAuthorised():
            return A2aError(ErrorReason.PERMISSION_DENIED, str(error))
        case NotFound():
            return A2aError(ErrorReason.TASK_NOT_FOUND, str(error))
        case Usage() | Conflict():
            return bad_params(str(error))
    return None
