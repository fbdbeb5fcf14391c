"""`attncheck inspect`: its arguments."""

from __future__ import annotations

from attncheck.commands.arguments import seed_of, whole_of


def inspect(make: str, /, *, width: str, draws: str = "8", seed: str = "0", json: bool = False) -> int:
    """Say what an attention layer of torch, flax, keras or equinox is at initialisation.

    The exit code is 1 where something is found to be wrong.

    Parameters
    ----------
    make
        A function that returns a freshly initialised module, as module:function; the current folder is searched too.
    width
        Neurons of an input.
    draws
        How many modules are initialised.
    seed
        The seed of the first of them.
    json
        Print all that is found as JSON.
    """
    from attncheck.commands.inspecting import print_inspection

    return print_inspection(make, whole_of("width", width), whole_of("draws", draws), seed_of(seed), json)
