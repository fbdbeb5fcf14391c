"""`attncheck inspect`: arguments and output."""

from __future__ import annotations

from typing import Any

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.text import as_json
from attncheck.commands.arguments import Integer, Natural


def inspect(
    make: str,
    /,
    *,
    width: Integer | None = None,
    inputs: str | None = None,
    call: str | None = None,
    draws: Integer = 8,
    seed: Natural = 0,
    expect: list[str] | None = None,
    strict: bool = False,
    json: bool = False,
) -> int:
    """Describe an attention layer, or every layer and parameter of a model, at initialisation.

    The exit code is 1 if something is wrong, or not as expected, and 3 if no attention in a model could be inspected.

    Parameters
    ----------
    make
        Function that returns a newly initialised module, MODULE:FUNCTION; searched in the current folder too.
    width
        Number of input neurons of a layer; omit it for a whole model.
    inputs
        Function that returns the inputs of a model, by argument name or in order, MODULE:FUNCTION; transformers
        models of text or images have defaults.
    call
        Function of (module, *inputs) that returns the outputs, MODULE:FUNCTION; default: call the module.
    draws
        Number of modules to initialise.
    seed
        Seed of the first module.
    expect
        Expected property of the layer, such as causal, mup, query=normal(0.02) or query_std=1.0; for a model also an
        initialiser by name pattern, such as "*.bias=zeros"; can be repeated.
    strict
        Fail on choices that no expectation declares, and that are errors unless they are intended. In a model, also
        fail if attention of some modules could not be inspected.
    json
        Print JSON.
    """
    from attncheck.frameworks.expectations import check_declared
    from attncheck.models.duties.registry import expectations
    from attncheck.models.inspection import inspect as inspected
    from attncheck.models.result import is_pattern
    from attncheck.subject.named import imported_by_name

    requirements = tuple(expect or ())
    check_declared(
        [text for text in requirements if width is not None or not (is_pattern(text) or expectations([text]))]
    )
    called = None if call is None else imported_by_name("call", call)
    input_function = None if inputs is None else imported_by_name("inputs", inputs)
    inspection = inspected(imported_by_name("make", make), width, called, inputs=input_function, draws=draws, seed=seed)
    levels: dict[str, Any] = {"asked": False} if strict else {}
    unexpected, inspection = inspection.unmet(*requirements, **levels), inspection.expecting(*requirements)
    if json:
        print(as_json(inspection.to_dict() | {"unexpected": unexpected}))
    else:
        print(inspection.text(unexpected))
    if inspection.blamed or unexpected:
        return ExitCode.VIOLATED
    return ExitCode.INCONCLUSIVE if inspection.not_examined else ExitCode.CONSISTENT
