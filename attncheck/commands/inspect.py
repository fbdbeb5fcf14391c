"""`attncheck inspect`: its arguments."""

from __future__ import annotations

from pathlib import Path

from attncheck.commands.arguments import seed_of, whole_of


def inspect(
    make: str,
    /,
    *,
    width: str,
    call: str | None = None,
    draws: str = "8",
    seed: str = "0",
    json: bool = False,
    report: Path | None = None,
) -> int:
    """Say what an attention layer of torch, flax, keras or equinox is at initialisation.

    The exit code is 1 where something is found to be wrong.

    Parameters
    ----------
    make
        A function that returns a freshly initialised module, as module:function; the current folder is searched too.
    width
        Neurons of an input.
    call
        A function of the module and inputs that returns outputs, where the module alone does not, as module:function.
    draws
        How many modules are initialised.
    seed
        The seed of the first of them.
    json
        Print all that is found as JSON.
    report
        Write what is printed as an HTML page too, to this path.
    """
    from attncheck.commands.inspecting import print_inspection

    numbers = whole_of("width", width), whole_of("draws", draws), seed_of(seed)
    return print_inspection(make, *numbers, json, call, report)
