"""Run commands in this process, one after the other, and write what each did as a JSON line to standard output.

The commands are in a JSON file: a list of ``{"folder": str, "arguments": list of str}``. A command that hangs ends the
process, so that its outcome is missing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

# Seconds after which a command counts as hung, whatever else the machine does.
HANGS = 90
# Bytes of address space, so that a bomb ends in an error and not in swapping.
MOST = 4 * 2**30

_PICKLED: list[str] = []


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        _PICKLED.append(".".join(map(str, arguments)))


def _forget_peak() -> None:
    """Restart the measurement of the peak memory, where Linux allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Return the peak resident memory in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def called(arguments: list[str]) -> int:
    """Run a command, or read a TOML file as a stack or program, which no command does."""
    from attncheck import AttentionStack, InputError, Program
    from attncheck.commands.cli import main

    kinds: dict[str, Any] = {"stack": AttentionStack, "program": Program}
    if arguments[0] not in kinds:
        return main(arguments)
    try:
        print(len(repr(kinds[arguments[0]].from_toml(Path(arguments[1])))))
    except InputError as error:
        print(f"attncheck: {error}", file=sys.stderr)
        return 2
    return 0


def ran(folder: str, arguments: list[str]) -> dict[str, Any]:
    """Run one command in a folder; return its exit code, output, seconds and peak memory."""
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    _PICKLED.clear()
    _forget_peak()
    started = time.process_time()
    faulthandler.dump_traceback_later(HANGS, exit=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        code = called(arguments)
    faulthandler.cancel_dump_traceback_later()
    return {
        "code": int(code),
        "out": out.getvalue(),
        "err": err.getvalue(),
        "seconds": time.process_time() - started,
        "peak": _peak(),
        "pickled": list(_PICKLED),
    }


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    sys.addaudithook(_audited)
    results = sys.stdout
    for task in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(ran(**task)), file=results, flush=True)
