"""Expectations on the results of an inspection: parsing, validation, and messages for those not met."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncheck._lib.errors import check_number, refuse, suggestion
from attncheck.frameworks.forward import AMONG_HEADS, AXES, BY_HEAD, LINEAR, NAMED, OTHER, RELU, SIGMOID, Forward, masks
from attncheck.frameworks.initialiser import MatrixStatistics
from attncheck.frameworks.laws import CONSTANT, LAWS, ORTHOGONAL

if TYPE_CHECKING:
    from attncheck.frameworks.result import Inspection

_ROLES = ("query", "key", "value", "output")
_OF_FORWARD = ("mask", "map", "scale", "positions", "rotary_base")
_OF_SHAPE = ("num_heads", "kv_heads", "head_dim")
#: Levels of notes that may be excluded: ``blamed=False`` allows no errors, ``asked=False`` no undeclared choices.
LEVELS = ("blamed", "asked")
_NAMES = (
    *(f"{role}_{quantity}" for quantity in ("std", "law", "bias") for role in _ROLES),
    "bias",
    *_OF_FORWARD,
    *_OF_SHAPE,
    *LEVELS,
)
# Relative tolerance within which a number of the formula meets an expectation.
_NEAR = 1e-3
# Messages list the names of the masks that are possible with this number of positions.
_MOST_CHOICES = 5
#: Other names for entry laws.
_SYNONYMS = {"gaussian": "normal"}
_CHOICES = {
    "law": (*(law.name for law in LAWS), ORTHOGONAL, CONSTANT, *_SYNONYMS),
    "mask": (*masks(_MOST_CHOICES), OTHER),
    "map": (*AXES, LINEAR, RELU, SIGMOID, AMONG_HEADS, OTHER),
    "scale": (*NAMED, OTHER),
    "positions": ("none", "rotary", OTHER),
}


# Single words that stand for an expectation with a value.
_KEYWORDS = {
    "causal": ("mask", "causal"),
    "unmasked": ("mask", "none"),
    "mup": ("scale", "1/head_dim"),
    "rotary": ("positions", "rotary"),
    "unbiased": ("bias", False),
}
_INITIALISER = re.compile(r"(query|key|value|output)=([a-z ]+)\((.+)\)")
#: Remedy for initialisers that cannot be parsed.
EXAMPLE = "write e.g. 'normal(0.02)', 'zeros', or by its standard deviation 'uniform(1/sqrt(3*fan_in))'"
# A whole number in an expression. It is converted to a float: large powers of floats overflow at once, while those of
# integers would take forever.
_FULL_MATCH = re.compile(r"(?<![\w.])(?<!e[+-])\d+(?![\w.])")


def declared(text: str, weights: Mapping[str, MatrixStatistics]) -> dict[str, Any]:
    """Parse an expectation: a keyword, ``name=value``, or an initialiser, such as ``query=normal(0.02)``.

    The argument of an initialiser is the standard deviation of an entry, an expression that may contain fan_in. Its
    value is taken from `weights`, the statistics of the matrices by role.

    Examples
    --------
    >>> declared("causal", {}), declared("query_std=1.0", {}), declared("mask=window of 4", {})
    ({'mask': 'causal'}, {'query_std': 1.0}, {'mask': 'window of 4'})
    >>> declared("output=normal(0.02/sqrt(4))", {})
    {'output_law': 'normal', 'output_std': 0.01}
    """
    if text in _KEYWORDS:
        return dict([_KEYWORDS[text]])
    if match := _INITIALISER.fullmatch(text):
        role, law, expression = match.groups()
        fan_in = weights[role].fan_in if role in weights else 1
        number = evaluated("expect", text, expression, {"fan_in": fan_in})
        return {f"{role}_law": law, f"{role}_std": number * fan_in**0.5}
    name, equals, value = text.partition("=")
    if not equals:
        remedy = f"use one of {', '.join(_KEYWORDS)}, a name with a value, e.g. query_std=1.0, or query=normal(0.02)"
        refuse("expect", text, "is not a known expectation", remedy)
    return {name: _number(value)}


def evaluated(field: str, text: str, expression: str, names: Mapping[str, float]) -> float:
    """Evaluate an arithmetic expression, which may contain the names of the numbers `names`.

    Errors quote `text`, the whole expectation, as the value of the argument `field`. The expression is evaluated as
    Python code. It must come from the user's own test or shell.
    """
    known = {"__builtins__": {}, "sqrt": math.sqrt, **{name: float(number) for name, number in names.items()}}
    try:
        value = eval(_FULL_MATCH.sub(r"\g<0>.0", expression.strip()), known)
        number = math.nan if isinstance(value, bool | str) else float(value)
    except NameError as error:
        use = f"use one of: {', '.join(sorted(names))}" if names else "only projections have a fan_in and a fan_out"
        refuse(field, text, f"{error.name} is not a known number", f"write the number itself, as in sqrt(2*12); {use}")
    except Exception:  # evaluation may raise any exception
        number = math.nan
    if not math.isfinite(number):
        refuse(field, text, "is not an arithmetic expression with a finite value", EXAMPLE)
    return number


def check_declared(texts: Sequence[str]) -> None:
    """Raise `InputError` for unknown expectations, so that they are reported before an inspection begins."""
    for text in texts:
        for name, value in declared(text, {}).items():
            _checked(name, value)


def _number(text: str) -> Any:
    """Convert a text to a number or truth value if possible."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def unmet(inspection: Inspection, expected: Mapping[str, Any]) -> list[str]:
    """Return one sentence per expectation that an inspected layer does not meet."""
    weights, forward = inspection.weights, inspection.forward
    sentences: list[str] = []
    for name, value in expected.items():
        value = _checked(name, value)
        if name in LEVELS:
            sentences += excluding(getattr(inspection, name), value)
        elif name == "bias":
            sentences.append(_of_biases(weights, bool(value)))
        elif name in _OF_SHAPE:
            actual = getattr(inspection, name)
            sentences.append("" if actual == value else f"{name} is {actual}, not {value:g}")
        elif name in _OF_FORWARD:
            sentences.append(_of_forward(forward, name, value))
        else:
            role, _, quantity = name.rpartition("_")
            message = f"{name} cannot be compared with {value}: the matrix is unknown"
            sentences.append(_of_matrix(weights[role], role, quantity, value) if role in weights else message)
    return [sentence for sentence in sentences if sentence]


def excluding(texts: Sequence[str], allowed: Any) -> list[str]:
    """Return the texts that are not allowed: all if `allowed` is False, else those that contain no allowed part.

    Examples
    --------
    >>> excluding(["layers share weights", "KV heads are tiled (0, 1, 0, 1)"], "KV heads are tiled")
    ['layers share weights']
    """
    if isinstance(allowed, bool):
        return [] if allowed else [*texts]
    parts = [allowed] if isinstance(allowed, str) else allowed
    return [text for text in texts if not any(part in text for part in parts)]


def _checked(name: str, value: Any) -> Any:
    """Return the value of the expectation `name` in the form that inspections use.

    Unknown names and values raise `InputError`.
    """
    if name in _KEYWORDS:
        refuse("expect", f"{name}={value}", "has a value", f"write {name} alone")
    if name not in _NAMES:
        refuse(name, value, "is not a known expectation", suggestion(name, _NAMES))
    if name in _OF_SHAPE:
        return check_number(name, value, "pass a whole number, e.g. 8", above=0.0)
    field = name.rpartition("_")[2] if name.endswith("_law") else name
    if field == "rotary_base":
        return None if value is None else check_number(name, value, "pass the base, e.g. 10000, or None")
    if field not in _CHOICES or (field == "scale" and not isinstance(value, str)):
        return value
    # The choices contain only windows of small size. Therefore, the size of a window is replaced by the largest one
    # among the choices before it is validated.
    canonical = (
        re.sub(r"\b[1-9]\d*$", str(_MOST_CHOICES - 1), value) if field == "mask" and isinstance(value, str) else value
    )
    if value not in _CHOICES[field] and canonical not in _CHOICES[field]:
        more = ", or a number, e.g. 0.25" if field == "scale" else ""
        refuse(name, value, "is not known", "use one of " + ", ".join(map(repr, _CHOICES[field])) + more)
    return _SYNONYMS.get(value, value) if field == "law" else value


def _of_biases(weights: Mapping[str, MatrixStatistics], expects_bias: bool) -> str:
    biased = [m.name for m in weights.values() if m.bias_std > 0]
    if bool(biased) == expects_bias:
        return ""
    return f"biases: {', '.join(biased)} have one" if biased else "biases: all are 0"


def _of_forward(forward: Forward, name: str, value: Any) -> str:
    if not forward.known:
        return f"{name} cannot be compared with {value!r}: the attention weights are {forward}"
    if name == "scale" and value != OTHER and forward.unlike == BY_HEAD:
        return f"scores are multiplied by a number for each head, not {value}: to declare this, pass {OTHER!r}"
    is_ = getattr(forward, name)
    if name == "scale" and not isinstance(value, str):
        near = abs(forward.factor - check_number(name, value, "pass a name or a number")) <= _NEAR * abs(value)
        return "" if near else f"scores are multiplied by {forward.factor:.4g}, not {value:g}"
    if name == "rotary_base" and None not in (is_, value):
        return "" if abs(is_ - value) <= _NEAR * value else f"rotary_base is {is_:g}, not {value:g}"
    ties = forward.ties if name == "scale" else ()
    return "" if value in (is_, *ties) else f"{name} is {is_!r}, not {value!r}"


def _of_matrix(m: MatrixStatistics, role: str, quantity: str, value: Any) -> str:
    if quantity == "law":
        return "" if value in m.laws else f"{m.name}: the law is {m.law}, not {value}"
    if quantity == "bias":
        has = m.bias_std > 0
        return "" if has == bool(value) else f"{m.name}: the bias is {m.bias_std:.3g}/sqrt(fan_in)"
    std = check_number(f"{role}_std", value, "pass a standard deviation times √fan-in, e.g. 1.0", minimum=0.0)
    if m.low <= std <= m.high:
        return ""
    return f"{m.name}: std·√fan-in is {m.std:.4g}, from {m.low:.4g} to {m.high:.4g}, not {std:g}"
