"""Default inputs for transformers models of text or images, whose configurations determine them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.errors import refuse

Array = np.ndarray[Any, Any]
# Batch size and number of positions.
_BATCH, _POSITIONS = 2, 12


def default_inputs(model: Any) -> Mapping[str, Array]:
    """Return inputs for a transformers model of text or images; refuse other models.

    Examples
    --------
    >>> default_inputs(object())
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: inputs=None: are unknown for a model of class object; pass the inputs of one ...
    """
    name = getattr(model, "main_input_name", None)
    config = getattr(model, "config", None)
    if not isinstance(name, str) or name not in _DEFAULTS or config is None:
        problem = f"are unknown for a model of class {type(model).__name__}"
        remedy = 'pass the inputs of one call, such as inputs={"input_ids": ids} or (x,), --inputs module:function '
        remedy += "in the shell; for a layer, pass width"
        refuse("inputs", None, problem, remedy)
    inputs = {name: _DEFAULTS[name](config)}
    if getattr(config, "is_encoder_decoder", False) and hasattr(model, "get_decoder"):
        inputs["decoder_input_ids"] = _ids(config)
    return inputs


def _ids(config: Any) -> Array:
    """Return token ids without padding."""
    vocabulary = int(_number(config, "vocab_size") or 2)
    padding = _number(config, "pad_token_id")
    ids = np.arange(_BATCH * _POSITIONS) % vocabulary
    return np.where(ids == padding, (ids + 1) % vocabulary, ids).reshape(_BATCH, _POSITIONS)


def _pixels(config: Any) -> Array:
    size = _of(config, "image_size", "vision_config") or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = int(_of(config, "num_channels", "vision_config") or 3)
    return _normal((_BATCH, channels, height, width))


def _number(config: Any, name: str) -> Any:
    return _of(config, name, "text_config")


def _of(config: Any, name: str, nested: str) -> Any:
    """Return an attribute of a configuration, or of one within it."""
    attribute = getattr(config, name, None)
    return attribute if attribute is not None else getattr(getattr(config, nested, None), name, None)


def _normal(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape)


_DEFAULTS: Mapping[str, Callable[[Any], Array]] = {"input_ids": _ids, "pixel_values": _pixels}
