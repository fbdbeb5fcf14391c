"""The command line: what each command takes. What it does is imported when it is called.

So `attncheck --help` answers at once. Exit codes are those of `attncheck._lib.exit_codes`, the same everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.version import __version__
from attncheck.commands.output import lasting_output

_HELP = """Does this attention simulator behave as the infinite-width theorem says?

To begin: attncheck init.

Exit codes: 0 consistent, 1 violated, 2 unusable input, 3 inconclusive, 4 incomplete,
6 a failed statement of attncheck's own theory."""

app = App(
    name="attncheck",
    help=_HELP,
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # main says so in one line
)


#: Each command with its help, in the order of the list: a module of its own, imported when it is called.
COMMANDS = {
    "init": "Write files to begin with: a layer, a test of it, and a workflow of GitHub that runs both.",
    "run": "Hold a simulator to the theorem, and write a record of it.",
    "merge": "Make one record of the records of all shards of a run.",
    "inspect": "Say what an attention layer of torch, flax, keras or equinox is at initialisation.",
    "widths": "Hold how sizes in a model grow with its width to what is predicted, such as by μP.",
    "check": "Hold samples produced elsewhere to the exact law at their width and to the limit.",
    "replay": "Repeat one result of a record, to the digit.",
    "explain": "Say what a claim states, which checks examine it, and what they cannot see; or what a fault is.",
    "power": "Measure which known-wrong simulators are seen, and how surely.",
    "gate": "Decide whether a run may pass: complete, not violated, and no worse than a baseline.",
    "history": "Show what runs of a subject come to together, and which claim moves.",
    "report": "Render the record of a run as one HTML page that needs nothing else.",
    "paper": "Repeat the paper's experiments at full size, beside what is computed exactly.",
}
for _place, (_name, _help) in enumerate(COMMANDS.items()):
    app.command(f"attncheck.commands.{_name}:{_name}", name=_name, help=_help, sort_key=_place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of this process by default.
    """
    with lasting_output():
        return _outcome(list(sys.argv[1:] if arguments is None else arguments))


def _outcome(tokens: Sequence[str]) -> int:
    """Return the exit code of a command, after saying what is wrong where something is."""
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return ExitCode.CONSISTENT if code is None else int(code)
    except CycloptsError as error:
        return _refused(f"{error} See: {_help_command(tokens)}")
    except InputError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        _refused("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        if os.environ.get("ATTNCHECK_TRACEBACK"):
            raise
        fault = f"{type(error).__name__}: {error}"
        return _refused(f"a fault of attncheck: {fault}; set ATTNCHECK_TRACEBACK=1 to see where, and report it")


def _refused(message: str) -> ExitCode:
    """Say in one line what is wrong."""
    print("attncheck: " + " ".join(message.split()), file=sys.stderr)
    return ExitCode.UNUSABLE


def _help_command(tokens: Sequence[str]) -> str:
    command = tokens[0] if tokens and tokens[0] in app else ""
    return " ".join(["attncheck", *([command] if command else []), "--help"])
