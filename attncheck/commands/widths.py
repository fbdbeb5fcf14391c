"""`attncheck widths`: arguments and output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.text import as_json
from attncheck.commands.arguments import Integer, Natural, integer_of


def widths(
    build: str,
    /,
    *,
    widths: str = "64,128,256,512,1024",
    expect: str = "standard",
    optimizer: str | None = None,
    loss: str | None = None,
    inputs: str | None = None,
    call: str | None = None,
    steps: Integer | None = None,
    seeds: Integer = 14,
    seed: Natural = 0,
    json: bool = False,
    report: Path | None = None,
) -> int:
    """Check width scaling of a model against a prediction (standard or μP).

    The exit code is 1 if an exponent is violated, and 3 if some are inconclusive.

    Parameters
    ----------
    build
        Function of the width that returns a newly initialised module, MODULE:FUNCTION; searched in the current folder
        too.
    widths
        At least three widths, separated by commas.
    expect
        standard, mup, or a table of your own, MODULE:NAME.
    optimizer
        Function of the module that returns an optimiser, MODULE:FUNCTION; also measures changes after steps.
    loss
        Function of outputs and inputs, MODULE:FUNCTION.
    inputs
        Function of the width and a generator that returns arrays, MODULE:FUNCTION.
    call
        Function of (module, *inputs) that returns the outputs, MODULE:FUNCTION; default: call the module.
    steps
        Number of optimiser steps; default: 2 with an optimiser.
    seeds
        Number of models of the largest width per look; smaller widths get more models.
    seed
        Seed of the measurement.
    json
        Print JSON.
    report
        Also write an HTML page with plots to this path.
    """
    numbers = [integer_of("widths", text.strip()) for text in widths.split(",")]
    from attncheck._lib.files import check_writable
    from attncheck.frameworks.widths import widths as measured
    from attncheck.report.widths import render_widths
    from attncheck.subject.named import imported_by_name

    check_writable({"report": report})
    named = {"optimizer": optimizer, "loss": loss, "inputs": inputs, "call": call}
    functions: dict[str, Any] = {name: imported_by_name(name, text) for name, text in named.items() if text is not None}
    expected: Any = imported_by_name("expect", expect) if ":" in expect else expect
    make = imported_by_name("build", build)
    measurement = measured(make, numbers, expected, **functions, seeds=seeds, seed=seed, steps=steps)
    if report is not None:
        render_widths(measurement, build, report)
    print(as_json(measurement.to_dict()) if json else measurement)
    return ExitCode.of(str(measurement.verdict))
