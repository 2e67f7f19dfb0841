"""Webhooks: the events of this node's log, sent to addresses that its owner has allowed."""
