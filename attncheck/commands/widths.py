"""`attncheck widths`: its arguments."""

from __future__ import annotations

from pathlib import Path

from attncheck.commands.arguments import seed_of, whole_of


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
    steps: str | None = None,
    seeds: str = "8",
    seed: str = "0",
    json: bool = False,
    report: Path | None = None,
) -> int:
    """Hold how sizes in a model grow with its width to what is predicted.

    The exit code is 1 where an exponent is violated, and 3 where some are inconclusive.

    Parameters
    ----------
    build
        A function of the width that returns a freshly initialised module, as module:function; the current folder is
        searched too.
    widths
        At least three, with commas between them.
    expect
        standard, mup, or a table of one's own as module:name.
    optimizer
        A function of the module that returns an optimiser, as module:function: changes after steps are measured too.
    loss
        A function of outputs and inputs, as module:function.
    inputs
        A function of the width and a generator that returns arrays, as module:function.
    call
        A function of the module and inputs that returns outputs, where the module alone does not, as module:function.
    steps
        Of the optimiser; two where there is one.
    seeds
        Models for each width in one look.
    seed
        What all seeds come from.
    json
        Print all that is found as JSON.
    report
        Write it as an HTML page with pictures too, to this path.
    """
    from attncheck.commands.over_widths import print_widths

    options = {
        "seeds": whole_of("seeds", seeds),
        "seed": seed_of(seed),
        "steps": None if steps is None else whole_of("steps", steps),
    }
    functions = {"optimizer": optimizer, "loss": loss, "inputs": inputs, "call": call}
    numbers = [whole_of("widths", each.strip()) for each in widths.split(",")]
    return print_widths(build, numbers, expect, functions, options, json, report)
