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
    expect: list[str] | None = None,
    theory: bool = False,
    json: bool = False,
    report: Path | None = None,
) -> int:
    """Describe a PyTorch, flax, Keras or equinox attention layer at initialisation.

    The exit code is 1 if something is wrong, or not as expected.

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
    expect
        What the layer should be, such as causal, mup, query=normal(0.02), query_std=1.0; may be given several times.
    theory
        Add the predictions of theory for the layer, which takes some seconds.
    json
        Print JSON.
    report
        Also write an HTML page to this path.
    """
    from attncheck.frameworks.expectations import check_declared
    from attncheck.frameworks.inspection import inspect as inspected
    from attncheck.report.inspection import render_inspection

    wanted = tuple(expect or ())
    check_declared(wanted)
    called = None if call is None else function_named("call", call)
    found = inspected(function_named("make", make), width, called, draws=draws, seed=seed)
    if report is not None:
        render_inspection(found, make, report, theory)
    unexpected = found.unmet(*wanted)
    if json:
        print(as_json(found.to_dict(theory) | {"unexpected": unexpected}))
    else:
        print("\n".join([*(f"NOT AS EXPECTED: {line}" for line in unexpected), found.text(theory)]))
    return ExitCode.VIOLATED if found.blamed or unexpected else ExitCode.CONSISTENT
