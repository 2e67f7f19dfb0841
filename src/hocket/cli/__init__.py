"""The entry point of the command line. It chooses the exit code and prints at most one sentence of error on stderr; no
traceback reaches the user. `commands` lists the commands; each group has a file of its own.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

INTERRUPTED = 130
PIPE_CLOSED = 141
CRASH_LOG_BYTES_MAX = 1024 * 1024
# A sentence about input of any length is cut in the middle.
SENTENCE_CHARS_MAX = 2_000


def main(arguments: list[str] | None = None) -> "NoReturn":
    """Runs one command and ends the process."""
    # Imports create no garbage, and collecting during them costs a tenth of a short command's time. `open_runtime`
    # enables the collector again.
    import gc

    gc.disable()
    if "t" in sys.abiflags:
        # A free-threaded Python warns that apsw turns the interpreter lock on again: right, and no news to a user.
        import warnings

        warnings.filterwarnings("ignore", "The global interpreter lock", RuntimeWarning)
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = PIPE_CLOSED
    code = _flushed(code)
    if _leaves_nothing():
        os._exit(code)
    # At exit, no object needs a last collection.
    gc.freeze()
    sys.exit(code)


def _leaves_nothing() -> bool:
    """Whether the process can end at once: no function wants to run at exit, and no thread is left. Otherwise the
    interpreter takes every module apart first.
    """
    threads = sys.modules.get("threading")
    return "atexit" not in sys.modules and (threads is None or threads.active_count() == 1)


class _AnswerForm:
    """Whether the command was asked for JSON, known before its options are read: a bad option is an error, too."""

    is_json = False


_answer = _AnswerForm()


def _run(arguments: list[str]) -> int:
    _answer.is_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    code = _by_shortcut(arguments)
    if code is not None:
        # A worker ran the command, so this process has nothing to shut down.
        os._exit(_flushed(code))
    from hocket.errors import HocketError

    _load_msgspec()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its code point instead of an error. Line by line also in a pipe:
        # what goes to stderr then stands in the right place.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace", line_buffering=True)
    if os.environ.get("HOCKET_TRACES"):
        import logging

        # An endpoint that is away must not fill the terminal.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        return run(arguments)
    except HocketError as error:
        _debug(error)
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        if callable(message := getattr(error, "format_message", None)):
            return _fail(_usage(error, str(message())), int(getattr(error, "exit_code", 2)))
        if isinstance(error, OSError) and error.strerror:
            _debug(error)
            return _fail(f"{error.strerror}{f': {error.filename}' if error.filename else ''}", 5)
        if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("hocket"):
            _debug(error)
            return _fail(f"the package {error.name} is missing in {sys.prefix}; install hocket again there", 2)
        return _crash(error)


def _by_shortcut(arguments: list[str]) -> int | None:
    """The exit code of a command that an extension can run before the program is loaded; None if it must be loaded."""
    from hocket.kernel.extension import extensions, loaded

    for each in extensions():
        if place := each.shortcuts.get(arguments[0] if arguments else ""):
            code: int | None = loaded(place)(arguments[1:])
            return code
    return None


def _load_msgspec() -> None:
    """Loads msgspec without typing_extensions, from which it would take what typing has as well: a tenth of a short
    command's time.
    """
    name = "typing_extensions"
    is_loaded = name in sys.modules
    if not is_loaded:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        if not is_loaded:
            del sys.modules[name]


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code: a plain line as it stands, and every other through typer. Raises
    errors.
    """
    from hocket.cli.declarations import NotPlain, call

    try:
        steps = _plain_steps(arguments)
    except NotPlain:
        from hocket.cli.typer_program import run_typer

        return run_typer(arguments)
    try:
        for function, values in steps:
            call(function, values)
    except EOFError:  # the answer to a question
        raise KeyboardInterrupt from None
    return 0


def _plain_steps(arguments: list[str]) -> "list[tuple[Callable[..., Any], dict[str, Any]]]":
    """What a plain command line runs, in this order. Raises NotPlain for every other line."""
    from hocket.cli.commands import COMMANDS, app_of, begin, hint, under_noun
    from hocket.cli.declarations import COMPLETION, NotPlain, chosen, read

    words, own = list(arguments), []
    while words and words[0].startswith("-"):
        own.append(words.pop(0))
        if own[-1] == "--home" and words:
            own.append(words.pop(0))
    if COMPLETION in os.environ:
        raise NotPlain
    # Programs that read stderr need no hint.
    if sys.stderr.isatty() and not _answer.is_json and (sentence := hint(words)):
        print(f"hocket: {sentence}", file=sys.stderr)
    words = words[1:] if under_noun(words) else words
    if not words or words[0] not in COMMANDS:
        raise NotPlain
    return [(begin, read(begin, own)), *chosen(app_of(words[0]), words[1:])]


def _usage(error: Exception, message: str) -> str:
    """Turns typer's usage error into one sentence that names the help to read."""
    path = getattr(getattr(error, "ctx", None), "command_path", None) or "hocket"
    sentence = " ".join(message.split()).rstrip(".?")
    return f"{sentence[:1].lower()}{sentence[1:]}; see `{path} --help`"


def _fail(sentence: str, code: int) -> int:
    from hocket.kernel.texts import clean

    shown = clean(sentence)
    if len(shown) > SENTENCE_CHARS_MAX:
        shown = f"{shown[: SENTENCE_CHARS_MAX // 2]} … {shown[-SENTENCE_CHARS_MAX // 2 :]}"
    if _answer.is_json:
        import json

        shown = json.dumps({"error": shown, "exit_code": code}, ensure_ascii=False)
    else:
        shown = f"hocket: {shown}"
    print(shown, file=sys.stderr)
    return code


def _debug(error: BaseException) -> None:
    if os.environ.get("HOCKET_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)


def _crash(error: Exception) -> int:
    """Reports a bug or unnoticed damage: one sentence on stderr, the traceback in a file."""
    import traceback

    sentence = f"internal error: {type(error).__name__}: {error}".rstrip(": ")
    from hocket.cli.environment import redacted

    sentence = redacted(sentence)
    text = "".join(traceback.format_exception(error))
    if os.environ.get("HOCKET_DEBUG") == "1":
        print(text, file=sys.stderr)
        return _fail(sentence, 1)
    kept = _keep(text)
    where = "set HOCKET_DEBUG=1 to see the traceback" if kept is None else f"the traceback is in {kept}"
    return _fail(f"{sentence}; {where}, and `hocket node doctor` checks for damage", 1)


def _keep(text: str) -> str | None:
    """Writes a traceback into the home if this user owns it. Secrets are removed: users send this file to others."""
    import time

    try:
        from hocket.cli.environment import redacted, redacted_words
        from hocket.cli.settings import settings
        from hocket.node.home import Home, default_home

        home = Home(settings.home or default_home()).path
        if not home.is_dir() or home.stat().st_uid != os.geteuid():
            return None
        path = home / "crash.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "a") as file:
            if os.fstat(file.fileno()).st_size >= CRASH_LOG_BYTES_MAX:
                file.truncate(0)
            said = " ".join(redacted_words(sys.argv))
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {said}\n{redacted(text)}\n")
        return str(path)
    except Exception:
        # This is the last resort: an error here must not hide the original one.
        return None


def _flushed(code: int) -> int:
    """Flushes both streams now, so that a closed pipe ends the program without noise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = PIPE_CLOSED
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except OSError as error:
            if stream is sys.stdout:
                code = code or _fail(f"cannot write the output: {error.strerror}", 5)
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code
