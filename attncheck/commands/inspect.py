"""`attncheck inspect`: arguments, and what it prints."""

from __future__ import annotations

from pathlib import Path

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Natural, Whole, function_named
from attncheck.commands.output import as_json


def inspect(
    make: str,
    /,
    *,
    width: Whole,
    call: str | None = None,
    draws: Whole = 8,
    seed: Natural = 0,
    json: bool = False,
    report: Path | None = None,
) -> int:
    """Describe a PyTorch, flax, Keras or equinox attention layer at initialisation.

    The exit code is 1 if something is wrong.

    Parameters
    ----------
    make
        Function that returns a newly initialised module, MODULE:FUNCTION; searched in the current folder too.
    width
        Number of input neurons.
    call
        Function of (module, *inputs) that returns the outputs, MODULE:FUNCTION; default: call the module.
    draws
        Number of modules to initialise.
    seed
        Seed of the first module.
    json
        Print JSON.
    report
        Also write an HTML page to this path.
    """
    from attncheck.frameworks.inspection import inspect as inspected
    from attncheck.report.inspection import render_inspection

    called = None if call is None else function_named("call", call)
    found = inspected(function_named("make", make), width, called, draws=draws, seed=seed)
    if report is not None:
        render_inspection(found, make, report)
    print(as_json(found.to_dict()) if json else found)
    return ExitCode.VIOLATED if found.blamed else ExitCode.CONSISTENT
