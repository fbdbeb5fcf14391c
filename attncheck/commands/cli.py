"""The command line; each command is imported when it is called, to keep ``--help`` fast."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO, cast

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.text import inert
from attncheck._lib.version import __version__

# Seconds that the threads of a subject may run on after the command.
_GRACE = 5.0
_HELP = "\n\n".join(
    [
        "Catch attention-initialisation bugs before training: wrong weight scales, wrong masks, broken μP scaling.",
        "Start with: attncheck init",
        "Exit codes: 0 consistent, 1 violated, 2 unusable input, 3 inconclusive, 4 incomplete.",
    ]
)

app = App(
    name="attncheck",
    help=_HELP,
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # main reports an interrupt in one line
)


#: Help of each command, in the order of the list.
COMMANDS = {
    "init": "Create a starter layer, test and GitHub workflow.",
    "run": "Test a simulator against the theorem and write a record.",
    "inspect": "Describe an attention layer, or every layer and parameter of a model, at initialisation.",
    "widths": "Check width scaling of a model against a prediction (standard or μP).",
    "check": "Test samples from files against the exact law at their width and the limit.",
    "gate": "Decide whether a run passes: complete, not violated, and no worse than a baseline.",
    "report": "Render a record as a self-contained HTML page.",
    "replay": "Reproduce one result of a record, digit for digit.",
    "explain": "Explain a claim, check or known-wrong simulator.",
    "power": "Measure with which probability known-wrong simulators are detected.",
    "calibrate": "Measure both error rates of a check: false alarms, and power against its paired fault.",
    "paper": "Reproduce the paper's experiments at full size, next to exact results.",
}
for _location, (_name, _help) in enumerate(COMMANDS.items()):
    app.command(f"attncheck.commands.{_name}:{_name}", name=_name, help=_help, sort_key=_location)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default, the arguments of this process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may be unable to show some characters
            stream.reconfigure(errors="replace")
    output = _Output(sys.stdout)
    with contextlib.redirect_stdout(cast("TextIO", output)):
        code = _outcome(list(sys.argv[1:] if arguments is None else arguments))
        output.flush()
    if output.failure is not None and code != ExitCode.UNUSABLE:
        return _refused(f"output cannot be written: {output.failure}")
    return code


class _Output:
    """Standard output that tolerates errors: after an error, further text is discarded, and the command continues.

    Attributes
    ----------
    failure : OSError or None
        The last error; None without one, or if the reader has closed the pipe, as ``head`` does.
    """

    def __init__(self, stream: TextIO) -> None:
        self.failure: OSError | None = None
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or discard it after an error."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard its content after an error."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        """Redirect the stream to the null device, because Python tries to write its buffer again on exit."""
        self.failure = None if isinstance(error, BrokenPipeError) else error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def program() -> NoReturn:
    """Run the command line as the program of this process, and exit with its exit code.

    A request to terminate the process (SIGTERM) counts as Ctrl-C, so that records stay readable. Threads that a subject
    left running get up to `_GRACE` seconds to end.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is None:  # the parent process has closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- until the process ends
    if sys.stderr is not None:
        faulthandler.enable()  # shows where a library crashed
    code = main()
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        sys.stdout.flush()
        last = threading.Timer(_GRACE, _end, [code, threads])
        last.daemon = True
        last.start()
    sys.exit(code)


def _end(code: int, threads: Sequence[threading.Thread]) -> None:
    name = next((t.name for t in sorted(threads, key=lambda t: t.daemon) if t.is_alive()), "something")
    _refused(f"ended although {name} still runs; end the threads that the subject starts")
    sys.stderr.flush()
    os._exit(code)


def _outcome(tokens: Sequence[str]) -> int:
    """Run a command and return its exit code; print errors in one line."""
    for token in tokens:
        if inert(token) != token:
            return _refused(f"argument={token!a}: has control characters or a workflow command; choose another name")
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        return ExitCode.CONSISTENT if code is None else int(code)
    except CycloptsError as error:
        if isinstance(error.__cause__, InputError):
            return _refused(str(error.__cause__))
        lists = " Lists have commas, e.g. 64,128,256." if isinstance(error, UnusedCliTokensError) else ""
        return _refused(f"{error}{lists} See: {_help_command(tokens)}")
    except InputError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        _refused("interrupted")
        return ExitCode.INTERRUPTED
    except (Exception, SystemExit) as error:
        if os.environ.get("ATTNCHECK_TRACEBACK"):
            traceback.print_exception(error)
        fault = f"{type(error).__name__}: {error}"
        return _refused(f"internal error: {fault}; set ATTNCHECK_TRACEBACK=1 for the traceback, and report it")


def _refused(message: str) -> ExitCode:
    """Print an error in one line; return the exit code for unusable input."""
    print("attncheck: " + " ".join(inert(message).split()), file=sys.stderr)
    return ExitCode.UNUSABLE


def _help_command(tokens: Sequence[str]) -> str:
    command = tokens[0] if tokens and tokens[0] in app else ""
    return " ".join(["attncheck", *([command] if command else []), "--help"])
