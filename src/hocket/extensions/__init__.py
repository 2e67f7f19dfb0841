"""The extensions of this program, a folder each, and their records. The core names none of them."""

from hocket.kernel.extension import Extension, ExtensionKind, register

register(
    Extension(
        "command",
        commands={
            "run": ("extensions.command.run_command:app", "Run a command as a job, with a proof of what ran."),
            "proof": ("extensions.command.proof_commands:proof_app", "Show, verify and export proofs of execution."),
            "manifest": (
                "extensions.command.proof_commands:manifest_app",
                "Check a command manifest; print its content id or canonical form.",
            ),
        },
        shortcuts={"run": "extensions.command.local_client:ask_worker"},
        kinds=(
            ExtensionKind(
                "hocket.run",
                printed="extensions.command.proofs:printed",
                worker="extensions.command.job:command_runner",
                server="extensions.command.run_command:local_server",
                refusal="extensions.command.allowance:refusal",
                commands=True,
            ),
        ),
        tasks={"handing over secrets": "extensions.command.secrets:handing_over"},
        checks={
            "commands": "extensions.command.sandbox_probe:check_commands",
            "sandbox": "extensions.command.sandbox_probe:check_sandbox",
        },
        proof="extensions.command.proofs:proof_file",
    ),
    Extension(
        "git",
        commands={
            "git": ("extensions.git.git_commands:app", "Use a git repository as a job queue: submit, work, verify."),
        },
        kinds=(ExtensionKind("hocket.git", printed="extensions.command.proofs:printed", counts_fences=True),),
        tasks={"announcing git jobs": "extensions.git.pending_jobs:announcing"},
        watches={"git": "extensions.git.announcements:watching"},
    ),
    Extension(
        "tempo",
        counts=dict.fromkeys(
            ("BarReported", "BeatSent", "FrameRefused", "PulseFollows", "PulseLeads"), "extensions.tempo.metrics:count"
        ),
        watches={"pulse": "extensions.tempo.node_tempo:pulse_beside"},
        members={"score": "extensions.tempo.score:score_of"},
        pacers=dict.fromkeys(("score", "budget"), "extensions.tempo.run_pace:paced_alone"),
        context={
            name: f"extensions.tempo.run_pace:{name}"
            for name in ("beat", "phase", "beats_left", "set_fallback", "wait_for")
        }
        | {name: f"extensions.tempo.promises:{name}" for name in ("ask_help", "promise")},
        node={
            "hold_length": "extensions.tempo.node_tempo:hold_length",
            "secret": "extensions.tempo.window_secret:node_secret",
        },
        request_proofs={"window.secret": "extensions.tempo.window_secret:window_tokens"},
        views=("extensions.tempo.views.tempo_view:TEMPO", "extensions.tempo.views.score_sheet:SCORE_SHEET"),
        file="tempo.yaml",
        runtime="extensions.tempo.policy_file:keep_time",
        worker="extensions.tempo.node_tempo:in_tempo",
        noun=("tempo", "Keep a beat: send and show it, scores, promises, windows, and the mesh by the beat."),
        commands={
            "beat": (
                "extensions.tempo.beat_commands:beat_app",
                "Show which beat it is, as the frame that a pulse sends.",
            ),
            "score": (
                "extensions.tempo.beat_commands:score_app",
                "Check the score of a task: beats for phases and waits, retries, escalations.",
            ),
            "promise": (
                "extensions.tempo.beat_commands:promise_app",
                "Promise help to an agent that has asked for it, within some beats.",
            ),
            "secret": (
                "extensions.tempo.beat_commands:secret_app",
                "Print keys and tokens of a project and role that change on each downbeat.",
            ),
            "top": (
                "extensions.tempo.top_commands:top",
                "Watch the mesh: beat, nodes, holds, queue, alarms, cost.",
            ),
            "ucxl": (
                "extensions.tempo.beat_commands:ucxl_app",
                "Parse a UCXL address and show the time that it means.",
            ),
            "pulse": (
                "extensions.tempo.pulse_commands:pulse_app",
                "Send the beats of a cluster, or stand by to take over.",
            ),
            "reverb": (
                "extensions.tempo.pulse_commands:reverb_app",
                "Report what agents do, bar by bar, on the bus and on the log.",
            ),
            "report": (
                "extensions.tempo.report_commands:report_app",
                "Show the windows that reverb has reported, with key figures and alarms.",
            ),
            "replay": (
                "extensions.tempo.report_commands:replay_app",
                "Play a reported window again: its ops and messages by the beat.",
            ),
        },
    ),
    Extension(
        "cost",
        operations=("extensions.cost.cost_operations",),
        members={"budget": "extensions.cost.budgets:budget_of"},
        submits={"budget": "extensions.cost.costs:check_budgets"},
        pacers={"budget": "extensions.cost.run_meter:metered_run"},
        context={"used": "extensions.cost.run_meter:used"},
        node={
            "cost": "extensions.cost.costs:job_cost",
            "costs": "extensions.cost.costs:costs",
            "estimate": "extensions.cost.costs:estimate_of",
        },
        file="rates.yaml",
        variable="HOCKET_RATES",
        worker="extensions.cost.run_meter:priced",
        commands={
            "cost": ("extensions.cost.cost_commands:app", "Show what jobs used and cost."),
        },
    ),
    Extension(
        "webhooks",
        operations=("extensions.webhooks.operations",),
        tasks={"sending webhooks": "extensions.file_tasks:sending"},
        commands={
            "webhook": ("extensions.webhooks.operations:commands", "Send events to other programs."),
        },
    ),
    Extension(
        "agent_calls",
        operations=("extensions.agent_calls.operations",),
        tasks={"calling agents": "extensions.file_tasks:calling"},
        commands={
            "a2a": ("extensions.agent_calls.operations:commands", "Have agents of other makers do jobs, over A2A."),
        },
    ),
    Extension(
        "agent_programs",
        commands={
            "agent": (
                "extensions.agent_programs.agent_commands:app",
                "Set up a program of an agent, such as Claude Code, and answer its hooks.",
            ),
        },
    ),
    Extension(
        "sim",
        commands={
            "sim": (
                "extensions.sim.sim_commands:app",
                "Simulate a mesh with faults, from a seed, and check that nothing was lost or held twice.",
            ),
        },
    ),
)
