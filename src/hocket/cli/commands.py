"""The list of commands and the module of each, and what runs before every command. A module is loaded only when its
command runs or shows its help, so that common commands start fast. A place in `api` is that of an operation, or of a
group of operations.

`hocket --help` shows the `EVERYDAY` commands, and then nouns: the others, and the `NOUNS` under which several stand.
`hocket mail send` is the command `send`.
"""

import os
from types import FunctionType

from hocket.cli.declarations import App, loaded
from hocket.kernel.extension import extensions

COMMANDS = {
    "init": ("keys:init", "Create a home: keys, database, and the node's first op."),
    "submit": ("submit:submit", "Submit a job, or many from a file."),
    "work": ("work:work", "Run a worker with the handlers of Python modules."),
    "logs": ("outputs:logs", "Show the output of a command or handler, ended or running."),
    "jobs": ("job_commands:jobs", "List jobs, newest first."),
    "show": ("derived:show_job", "Show everything about one job."),
    "cancel": ("job_commands:cancel", "Cancel a pending or running job, or many."),
    "retry": ("job_commands:retry", "Retry a failed or cancelled job, or many."),
    "erase": ("api.job_operations.job_erasure:erase", "Erase the content of a job on every node, for good."),
    "approve": ("api.job_operations.job_answers:approve", "Let a job start that waits for your approval."),
    "refuse": ("api.job_operations.job_answers:refuse", "Refuse a job that waits for your approval."),
    "question": ("inbox_commands:question", "Ask who submitted the job of this command, and wait for the answer."),
    "answer": ("api.job_operations.job_answers:answer", "Answer what a job asks while it runs."),
    "postpone": ("job_commands:postpone", "Move the start of a pending job, or of many."),
    "kinds": ("api.kinds:listing", "List the options of kinds, which their jobs have by default."),
    "artifacts": ("outputs:app", "List, read, store and evict artifacts."),
    "rows": ("api.rows:commands", "Read, write and watch rows that several agents share."),
    "conflicts": ("api.rows:conflict_commands", "List, show and resolve conflicts of rows."),
    "why": ("outputs:why", "Trace an output to its model, prompt, context and evidence."),
    "send": ("inbox_commands:send", "Send a message to an agent, a group of agents, or all."),
    "ask": ("inbox_commands:ask", "Send a message to an agent, and wait for the reply."),
    "reply": ("inbox_commands:reply", "Answer a message that you hold, and acknowledge it."),
    "inbox": ("inbox_commands:inbox", "List or claim the messages of an agent."),
    "ack": ("inbox_commands:ack", "Acknowledge a message that you hold."),
    "nack": ("inbox_commands:nack", "Return a message that you hold, to be delivered again."),
    "dead": ("api.inbox:dead_commands", "List and retry messages that could not be delivered."),
    "thread": ("api.inbox:thread", "Show the messages of a thread."),
    "claims": ("claim_commands:claims_app", "Show how jobs find their workers: explain a job, rank workers."),
    "derive": ("log:derive", "Run pure functions over the ops of the log, or repeat them and compare."),
    "grid": ("claim_commands:grid", "Show how ranked jobs spread over the workers, live."),
    "invite": ("invitations:invite", "Invite another machine: prints a token for it."),
    "join": ("invitations:join", "Join a mesh with an invitation token."),
    "nodes": ("node_commands:nodes", "List the nodes of the mesh, what each may do, and which are alive."),
    "agents": ("node_commands:agents_app", "List agents and what they do, or say what one does."),
    "drain": ("api.nodes:drain", "Let a node finish its jobs and take no new ones."),
    "quarantine": ("api.nodes:quarantine", "Take all work from a node."),
    "resume": ("api.nodes:resume", "Let a drained or quarantined node take jobs again."),
    "whoami": ("api.nodes:identity", "Show this node, its user, and what it may do."),
    "may": ("node_commands:may", "Check whether a node may do something, and which delegations grant it."),
    "revoke": ("node_commands:revoke", "Revoke all rights of a node."),
    "route": ("node_commands:route", "Send all jobs of a kind to one node."),
    "coordinator": ("node_commands:coordinator", "Show the node that decides claims, or designate another."),
    "succession": ("node_commands:succession", "Say which nodes may follow the coordinator, or show it."),
    "rules": ("rule_commands:app", "Show or change the mesh rules, which every node must share."),
    "keys": ("keys:app", "Show, back up, restore and lock the user's key; reissue the root delegation."),
    "worker": ("api.workers.claiming:commands", "Drain workers in other languages, which claim jobs over HTTP."),
    "serve": ("serve:serve", "Run the server that other nodes connect to, and sync with peers."),
    "page": ("invitations:page", "Open the page of this node in a browser."),
    "mcp": ("serve:mcp", "Serve the Model Context Protocol to one agent, over stdin and stdout."),
    "token": ("api.programs:commands", "Create, list and revoke the tokens of programs that use this node over HTTP."),
    "peers": ("api.peers:commands", "List, add, remove and find the nodes that this node syncs with."),
    "sync": ("node_commands:sync", "Sync with the peers once, now."),
    "lock": ("lock:app", "Lock files and other things that several agents use."),
    "cron": ("api.schedules:commands", "Submit jobs on a schedule."),
    "retain": ("rule_commands:retain", "Say how long ended jobs, messages and windows are kept, or list the rules."),
    "log": ("log:app", "Read, verify, rebuild, export and import the log."),
    "store": ("store:app", "Migrate the node's store, or move it to a database server or back."),
    "status": ("api.status:status", "Show the state of this node."),
    "testing": (
        "testing.workers.testing_commands:app",
        "Try out workers of yours, in any language, against a real server.",
    ),
    "doctor": ("store:doctor", "Check this node for problems and suggest fixes."),
}
EVERYDAY = ("init", "submit", "work", "run", "jobs", "show", "logs", "cancel", "retry", "status")
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "job": (
        "Approve, answer, postpone and erase jobs; the options of kinds.",
        ("approve", "refuse", "question", "answer", "postpone", "erase", "kinds"),
    ),
    "mail": (
        "Send messages to agents, ask and answer them, and read what came.",
        ("send", "ask", "reply", "inbox", "ack", "nack", "dead", "thread"),
    ),
    "mesh": (
        "Several machines: invite and join, serve and sync, nodes, agents, routes, rules.",
        ("invite", "join", "serve", "sync", "peers", "nodes", "agents", "route", "coordinator", "succession", "rules"),
    ),
    "node": (
        "This node and its rights: doctor, whoami, may, drain and quarantine, revoke.",
        ("doctor", "whoami", "may", "drain", "quarantine", "resume", "revoke"),
    ),
    # Commands under a noun that has some of its own.
    "artifacts": ("List, read, store and evict artifacts; where an output comes from.", ("why",)),
    "claims": ("Show how jobs find their workers: explain a job, rank workers, watch them.", ("grid",)),
    "log": ("Read, verify, rebuild, export and import the log; derive from it.", ("derive",)),
    "rows": ("Read, write and watch rows that several agents share; conflicts.", ("conflicts",)),
}
for _extension in extensions():
    COMMANDS.update(_extension.commands)
    if _extension.noun is not None:
        NOUNS[_extension.noun[0]] = (_extension.noun[1], tuple(_extension.commands))
NOUN_OF = {command: noun for noun, (_, commands) in NOUNS.items() for command in commands}


def under_noun(words: list[str]) -> tuple[str, ...]:
    """The noun and the command with which a line begins, if it begins so."""
    return tuple(words[:2]) if len(words) > 1 and NOUN_OF.get(words[1]) == words[0] else ()


def hint(words: list[str]) -> str | None:
    """What to write instead, for a line that begins with a command without its noun."""
    noun = NOUN_OF.get(words[0]) if words else None
    if noun is None:
        return None
    return f"`hocket {words[0]}` is `hocket {noun} {words[0]}` now; the short name will go in version 0.2"


def app_of(command: str) -> App:
    """The app of a command. A place may be that of an app, of a function, of an operation, or of a group of them."""
    found = loaded(COMMANDS[command][0])
    if isinstance(found, App):
        return found
    if not isinstance(found, FunctionType):
        from hocket.api.operation import OperationGroup
        from hocket.cli.derived import OperationCommand, app_of_group

        if isinstance(found, OperationGroup):
            return app_of_group(found)
        found = OperationCommand(found)
    app = App()
    app.command()(found)
    return app


def begin() -> None:
    """Runs before every command."""
    if any(name.startswith("HOCKET_") and name != "HOCKET_HOME" for name in os.environ):
        from hocket.cli.environment import check_variables

        check_variables()
