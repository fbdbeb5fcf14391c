"""Serialisation of programs as built-in types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from attncheck._lib.errors import InputError, check_choice, refuse
from attncheck._lib.imports import imported, path_of
from attncheck._lib.streams import set_fields
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.nonlinearity import DeclaredFunction, DeclaredMix, Nonlinearity, declared
from attncheck.layers.nonlinearity.families import known
from attncheck.layers.nonlinearity.function import FAMILIES
from attncheck.layers.program.functions import LinearCombination, PerArgumentFunction, name_of
from attncheck.layers.program.lines import Lines
from attncheck.layers.program.mixes import MIXES, AttentionRow
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Weight

_Program = TypeVar("_Program", bound=Lines)

# Each line is a table. For each kind of line: keys of the table besides the kind itself. "name" is optional.
_KINDS = {
    "initial": ("mean", "cov"),
    "matmul": ("of", "name"),
    "nonlin": ("of", "name"),
    "score": ("factor", "name"),
    "output": ("vectors", "scores", "name"),
}
_REMEDY = "see attncheck.Program.to_dict() for how programs are written"


def to_dict(program: Lines) -> dict[str, Any]:
    """Return a program as built-in types, with local functions by name only."""
    return {
        "weights": [_write_weight(weight) for weight in program.weights],
        "lines": [line for node in program.nodes for line in _write_line(node, program.nodes)],
    }


def from_dict(program: _Program, fields: Mapping[str, Any], trust: Sequence[str]) -> _Program:
    """Write the result of `to_dict` into an empty program; see `Program.from_dict` for `trust`."""
    if isinstance(trust, str) or not all(isinstance(module, str) for module in trust):
        refuse("trust", trust, "must be a list of module names", "pass e.g. trust=['mymodule']")
    _check_table("program", fields, required=("lines",), optional=("weights",))
    weights: dict[str, Weight] = {}
    for number, row in enumerate(_listed("program.weights", fields.get("weights", [])), 1):
        _check_table(f"program.weights[{number}]", row, required=("name",), optional=("std", "rows", "columns"))
        weights[str(row["name"])] = program.weight(**row)
    nodes: dict[str, Node] = {}
    for number, row in enumerate(_listed("program.lines", fields["lines"]), 1):
        where = f"program.lines[{number}]"
        try:
            for node in _read_line(program, weights, nodes, row, where, trust):
                nodes[node.name] = node
        except InputError as error:
            if str(error).startswith(where):
                raise
            raise InputError(f"{where}: {error}") from None
    return program


def _write_weight(weight: Weight) -> dict[str, Any]:
    sizes = {"rows": weight.rows, "columns": weight.columns}
    return {"name": weight.name, "std": weight.std, **{k: v for k, v in sizes.items() if v is not None}}


def _write_line(node: Node, nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Return the tables for a line; there are none if the line's group of initial vectors is already written."""
    parents = [parent.name for parent in node.parents]
    if isinstance(node, Initial):
        group = [member for member in nodes if isinstance(member, Initial) and member.group == node.group]
        if group[0] is not node:
            return []
        cov = [list(row) for row in node.covariance]
        return [{"initial": [member.name for member in group], "mean": [member.mean for member in group], "cov": cov}]
    if isinstance(node, MatMul):
        return [{"matmul": node.weight.name, "of": parents[0], "name": node.name}]
    if isinstance(node, Score):
        return [{"score": parents, "factor": node.factor, "name": node.name}]
    if isinstance(node, Nonlin):
        return [{"nonlin": _write_function(node.function), "of": parents, "name": node.name}]
    assert isinstance(node, Output)
    vectors, scores = [v.name for v in node.vectors], [p.name for p in node.scores]
    return [{"output": _write_function(node.function), "vectors": vectors, "scores": scores, "name": node.name}]


def _read_line(
    program: Lines,
    weights: Mapping[str, Weight],
    nodes: Mapping[str, Node],
    row: Any,
    where: str,
    trust: Sequence[str],
) -> Iterable[Node]:
    if not isinstance(row, Mapping) or sum(kind in row for kind in _KINDS) != 1:
        refuse(where, row, "must be a table with one of " + ", ".join(_KINDS), _REMEDY)
    kind = next(kind for kind in _KINDS if kind in row)
    required = {"initial": (), "score": ()}.get(kind, _KINDS[kind][:1])
    _check_table(where, row, required=(kind, *required), optional=_KINDS[kind])
    value, name = row[kind], row.get("name")

    def line(key: Any) -> Node:
        if not isinstance(key, str) or key not in nodes:
            refuse(f"{where}.{kind}", key, "is not the name of an earlier line", "write that line first")
        return nodes[key]

    def lines(field: str, names: Any) -> list[Node]:
        return [line(entry) for entry in _listed(f"{where}.{field}", names)]

    if kind == "initial":
        names = [str(entry) for entry in _listed(where, value)]
        zeros, unit = [0.0] * len(names), [[float(i == j) for j in range(len(names))] for i in range(len(names))]
        return program.initials(names, _listed(where, row.get("mean", zeros)), row.get("cov", unit))
    if kind == "matmul":
        return [program.matmul(weights[check_choice(f"{where}.matmul", value, tuple(weights))], line(row["of"]), name)]
    if kind == "score":
        sides = lines("score", value)
        if len(sides) != 2:
            refuse(f"{where}.score", value, "must name two lines", "write score = ['g1', 'g2']")
        return [program.score(sides[0], sides[1], row.get("factor", 1.0), name)]
    function = _read_function(f"{where}.{kind}", value, trust)
    if kind == "nonlin":
        return [program.nonlin(function, *lines("of", row["of"]), name=name)]
    return [program.output(function, lines("vectors", row["vectors"]), lines("scores", row.get("scores", [])), name)]


def _write_function(function: Any) -> dict[str, Any]:
    if isinstance(function, PerArgumentFunction):
        return _write_function(function.function)
    if isinstance(function, LinearCombination):
        return {"linear": list(function.coefficients)}
    if isinstance(function, AttentionRow):
        return {"attention": function.position, "layer": set_fields(function.layer)}
    if isinstance(function, DeclaredFunction | DeclaredMix):  # before `Nonlinearity`, its base class
        promise = {"order": function.order, "bounded": function.bounded}
        return {"path": function.path, **promise} if function.path else {"local": function.name, **promise}
    if isinstance(function, Nonlinearity):
        return {"name": function.name, "parameters": list(function.parameters)}
    name = next((name for name, known in MIXES.items() if known is function), "")
    if name:
        return {"name": name}
    path = path_of(function)
    return {"path": path} if path else {"local": name_of(function)}


def _read_function(where: str, fields: Any, trust: Sequence[str]) -> Any:
    if isinstance(fields, str):
        fields = {"path": fields} if ":" in fields else {"name": fields}
    if not isinstance(fields, Mapping):
        refuse(where, fields, "must be a table or a name", _REMEDY)
    match sorted(fields):
        case ["name"] | ["name", "parameters"]:
            return _known_function(where, fields["name"], fields.get("parameters", []))
        case ["linear"]:
            return LinearCombination(tuple(float(c) for c in _listed(where, fields["linear"])))
        case ["attention", "layer"]:
            return AttentionRow(AttentionLayer.from_dict(fields["layer"]), int(fields["attention"]))
        case ["path"]:
            return imported(where, str(fields["path"]), trust)
        case ["bounded", "order", "path"]:
            function = imported(where, str(fields["path"]), trust)
            return declared(function, order=fields["order"], bounded=fields["bounded"])
        case _ if "local" in fields:
            remedy = "define it at the top level of a module and build the program again"
            refuse(where, fields["local"], "was a local function, which cannot be imported", remedy)
    refuse(where, dict(fields), "is not a valid function table", _REMEDY)


def _known_function(where: str, name: Any, parameters: Any) -> Callable[..., Any]:
    check_choice(f"{where}.name", name, (*FAMILIES, *MIXES))
    values = _listed(where, parameters)
    if name in FAMILIES:
        return known(name, *values)
    if values:
        refuse(f"{where}.parameters", values, f"does not fit {name}, which has none", _REMEDY)
    return MIXES[name]


def _listed(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        refuse(where, value, "must be a list", _REMEDY)
    return list(value)


def _check_table(where: str, row: Any, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    if not isinstance(row, Mapping):
        refuse(where, row, "must be a table", _REMEDY)
    for name in required:
        if name not in row:
            refuse(f"{where}.{name}", None, "is missing", _REMEDY)
    for name in row:
        if name not in (*required, *optional):
            refuse(f"{where}.{name}", row[name], "is not known", "use " + ", ".join((*required, *optional)))
