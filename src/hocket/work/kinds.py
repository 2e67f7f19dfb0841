"""A worker's handlers define the options of their kinds, so that jobs have them wherever they are submitted."""

from hocket.families.kinds.facts import DefineKind
from hocket.kernel.policy import encode_policy, is_placed
from hocket.kernel.reasons import Reason
from hocket.log import Transaction
from hocket.work.handlers import Handlers


def define(tx: Transaction, handlers: Handlers) -> list[str]:
    """Writes the options of the kinds that have other ones on the log. Returns the kinds that this node may not define,
    if that matters: their options also say how jobs wait, which only a submitter writes down. In a strict mesh nothing
    is written: Likewise v0.1 has no op for it.
    """
    refused = []
    for each in () if tx.is_strict else handlers.served():
        options = each.options
        if options == tx.projection.defaults(each.kind):
            continue
        if isinstance(tx.author(DefineKind(each.kind, encode_policy(options))), Reason) and is_placed(options):
            refused.append(each.kind)
    return refused
