"""Keyed random streams.

The same run seed and key give the same digits on every platform, whatever ran before. A stream belongs to one case,
look and role. Keys contain no names of modules, functions or properties, so renaming changes no draws.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from attncheck._lib.errors import check_integer, refuse

_REMEDY = "use None, bool, int, float, str, bytes, or lists and mappings of them"


def encode(value: Any) -> bytes:
    """Return the canonical bytes of a value of built-in types.

    Every item carries its type and length, so different values have different bytes, except that a list has the bytes
    of a tuple with equal items. Mappings are sorted by key. A value therefore has the same bytes after a JSON round
    trip.

    Parameters
    ----------
    value : None, bool, int, float, str, bytes, list, tuple or mapping
        NumPy scalars count as Python numbers.

    Raises
    ------
    InputError
        If the value, or an item of it, is NaN or of another type.

    Examples
    --------
    >>> encode(["ab", "c"]) == encode(["a", "bc"])
    False
    >>> encode({"width": 8, "heads": 2}) == encode({"heads": 2, "width": 8})
    True
    """
    tag, body = _tagged(value)
    return tag + str(len(body)).encode() + b":" + body


def digest(value: Any, length: int = 12) -> str:
    """Return a short, stable identifier of a value that `encode` accepts.

    Parameters
    ----------
    value : object
    length : int
        Hexadecimal digits, 1 to 64.

    Examples
    --------
    >>> digest({"width": 64, "heads": 4})
    '42db097e6cac'
    """
    if check_integer("length", length, 1, "pass 1 to 64 digits") > 64:
        refuse("length", length, "must be at most 64", "pass 1 to 64 digits")
    return hashlib.sha256(encode(value)).hexdigest()[:length]


def set_fields(description: Any) -> dict[str, Any]:
    """Return the non-default fields of a dataclass, from which the key of a layer or stack is computed.

    Adding a field with a default to the class thus leaves existing keys unchanged.

    Examples
    --------
    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Layer:
    ...     width: int
    ...     heads: int = 2
    >>> set_fields(Layer(8)), set_fields(Layer(8, heads=4))
    ({'width': 8}, {'width': 8, 'heads': 4})
    """
    values = ((field, getattr(description, field.name)) for field in dataclasses.fields(description))
    return {field.name: value for field, value in values if value != field.default}


def seed_sequence(run_seed: int, *key: Any, look: int = 1, role: str = "draws") -> np.random.SeedSequence:
    """Return the seed sequence of a stream of random numbers.

    Parameters
    ----------
    run_seed : int
    *key : object
        What the numbers are for, such as the key of a layer; each item is a value that `encode` accepts.
    look : int
        Number of the look (interim analysis of a group-sequential test), at least 1.
    role : str
        Purpose of the numbers within the look, e.g. ``"inputs"``.

    Examples
    --------
    >>> seed_sequence(0, "scores", look=2).entropy == seed_sequence(0, "scores", look=3).entropy
    False
    """
    seed = check_integer("run_seed", run_seed, 0, "pass a whole number of at least 0")
    number = check_integer("look", look, 1, "number the looks from 1")
    if not isinstance(role, str):
        refuse("role", role, "must be a string", "name what the numbers are for, e.g. role='inputs'")
    hashed = hashlib.sha256(encode([seed, list(key), number, role])).digest()
    return np.random.SeedSequence(int.from_bytes(hashed, "big"))


def stream(run_seed: int, *key: Any, look: int = 1, role: str = "draws") -> np.random.Generator:
    """Return the random generator whose seed is `seed_sequence` with the same arguments.

    Generators for different keys are independent.

    Examples
    --------
    >>> stream(0, "scores", {"width": 64}).integers(1000, size=4)
    array([714, 921, 868, 267])
    """
    return generator(seed_sequence(run_seed, *key, look=look, role=role))


def generator(sequence: np.random.SeedSequence) -> np.random.Generator:
    """Return the random generator of a seed sequence: SFC64, which draws normals faster than NumPy's default.

    Examples
    --------
    >>> generator(np.random.SeedSequence(0)).integers(1000, size=4)
    array([724, 568, 353, 234])
    """
    return np.random.Generator(np.random.SFC64(sequence))


def _tagged(value: Any) -> tuple[bytes, bytes]:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return b"n", b""
    if isinstance(value, bool):
        return b"b", b"1" if value else b"0"
    if isinstance(value, int):
        return b"i", str(int(value)).encode()
    if isinstance(value, float):
        if math.isnan(value):
            refuse("key", value, "NaN identifies nothing", "use a number or None")
        return b"f", struct.pack(">d", value)
    if isinstance(value, str):
        return b"s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"y", value
    if isinstance(value, list | tuple):
        return b"l", b"".join(encode(entry) for entry in value)
    if isinstance(value, Mapping):
        pairs = sorted((encode(key), encode(entry)) for key, entry in value.items())
        return b"m", b"".join(key + entry for key, entry in pairs)
    refuse("key", value, f"a {type(value).__name__} has no canonical encoding", _REMEDY)
