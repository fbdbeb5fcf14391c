"""Layers of the benchmark on public bugs, of all frameworks, with inputs and outputs as arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.wild_bugs import MODULES

FloatArray = NDArray[np.float64]
POSITIONS = 5


def array(values: Any) -> FloatArray:
    values = getattr(values, "value", values) if hasattr(values, "path") else values
    values = values.detach().float().numpy() if hasattr(values, "detach") else values
    return np.asarray(values, dtype=np.float64)


def inputs_of(name: str, width: int, dtype: Any = None, shape: tuple[int, int] = (3, POSITIONS)) -> Any:
    """Return sequences as an array of a framework, or of that of a module of the benchmark."""
    values = np.random.default_rng(3).standard_normal((*shape, width)).astype(np.float32)
    if MODULES.get(name, (name,))[0] == "jax":
        return importlib.import_module("jax").numpy.asarray(values)
    return importlib.import_module("torch").as_tensor(values).to(dtype)


def dtype_of(layer: Any) -> Any:
    return next(layer.parameters()).dtype if hasattr(layer, "named_modules") else None


def outputs_of(fixture: Any, layer: Any, x: Any) -> Any:
    """Return the outputs of a layer, in evaluation mode if it has one."""
    layer = layer.eval() if hasattr(layer, "named_modules") and hasattr(layer, "eval") else layer
    if fixture.call is not None:
        outputs = fixture.call(layer, x)
    elif type(layer).__name__ == "MultiheadAttention":
        outputs = layer(x, x, x)
    elif "keras" in type(layer).__module__:
        outputs = layer(x, x)
    else:
        outputs = layer(x)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def assert_runs(fixture: Any, layer: Any, x: Any) -> None:
    outputs = array(outputs_of(fixture, layer, x))
    assert outputs.shape == x.shape, fixture.name
    assert np.isfinite(outputs).all(), fixture.name
