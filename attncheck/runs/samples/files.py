"""Read samples of a layer from .npz, .npy and .csv files."""

from __future__ import annotations

import csv
import dataclasses
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError, naming, refuse, suggestion
from attncheck._lib.files import most_content
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer

# Magic bytes of .npy files.
_NPY = b"\x93NUMPY"
# Names of arrays in error messages about what a subject returns.
_RETURNED = re.compile(r"subject\['(\w+)'\]")
_MEND = "mend the simulator, or the program that wrote the file"


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Draws of a layer from a file.

    Attributes
    ----------
    sample : Sample
    source : str
        The file's name.
    """

    sample: Sample
    source: str

    def __len__(self) -> int:
        return len(self.sample)


def read_samples(path: Path, layer: AttentionLayer) -> Samples:
    """Read draws of `layer`.

    A .npz file holds ``outputs`` (N, s) or (N, s, k) and optionally ``scores`` (N, H, s, s), ``inputs`` like the
    outputs, and Gram matrices; see `attncheck.Draws`. A .npy file holds outputs alone. The columns of a .csv file are
    outputs too, in the order of positions or of the names ``y1`` … ``ys`` in its header.

    Raises
    ------
    InputError
        Naming file, array or column, problem and remedy.
    """
    readers = {
        ".npz": (_read_npz, "write arrays of numbers with numpy.savez"),
        ".npy": (_read_npy, "write an array of numbers with numpy.save"),
        ".csv": (_read_csv, "write numbers with decimal points, separated by commas"),
    }
    reader, remedy = readers.get(path.suffix.lower(), (None, ""))
    if reader is None:
        refuse("samples", str(path), "has an unknown format", "pass a file that ends in .npz, .npy or .csv")
    try:
        with naming(path):
            arrays = reader(path, layer)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"samples={path}: cannot be read ({error.strerror or error}); check the path") from None
    except Exception as error:  # numpy, zipfile and csv raise many kinds of errors
        raise InputError(f"samples={path}: cannot be read ({_first_line(error)}); {remedy}") from None
    shaped: dict[str, Any] = {name: _with_neurons(name, array) for name, array in arrays.items()}
    size = len(shaped["outputs"]) if "outputs" in shaped and shaped["outputs"].ndim else 0
    if not size and "outputs" in arrays and arrays["outputs"].ndim:
        refuse(f"samples={path}: outputs.shape", arrays["outputs"].shape, "holds no draws", "write one row per draw")
    try:
        return Samples(Sample.from_mapping(layer, shaped, size), path.name)
    except InputError as error:
        problem = _RETURNED.sub(r"\1", str(error)).replace("mend the simulator", _MEND)
        raise InputError(f"samples={path}: {problem}") from None


def _with_neurons(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Add a neuron axis to (N, s) outputs and inputs: (N, s, 1)."""
    return array[..., None] if name in ("outputs", "inputs") and array.ndim == 2 else array


def _read_npz(path: Path, layer: AttentionLayer) -> dict[str, NDArray[Any]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as members:
            if sum(member.file_size for member in members.infolist()) > most_content(path):
                refuse("samples", str(path), "expands to an implausible size", "write the file again")
    elif path.read_bytes()[:6] != _NPY:
        raise InputError(f"samples={path}: is not a .npz archive, or is truncated; write it with numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        if not hasattr(archive, "files"):
            refuse("samples", str(path), "is one array, not an archive", "rename it to end in .npy")
        unknown = [name for name in archive.files if name not in EVERY_FIELD]
        if unknown:
            refuse(f"samples={path}: array", unknown[0], "is not a known name", suggestion(unknown[0], EVERY_FIELD))
        # Members that are not arrays are read as bytes, whose type is refused later.
        return {name: np.asarray(archive[name]) for name in archive.files}


def _read_npy(path: Path, layer: AttentionLayer) -> dict[str, NDArray[Any]]:
    if path.read_bytes()[:6] != _NPY:
        raise InputError(f"samples={path}: is not a .npy file; write it with numpy.save")
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        refuse("samples", str(path), "is an archive, not one array", "rename it to end in .npz")
    return {"outputs": array}


def _read_csv(path: Path, layer: AttentionLayer) -> dict[str, NDArray[Any]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), None)
    if header is None:
        refuse("samples", str(path), "is empty", "write one row per draw")
    named = not all(_is_number(cell) for cell in header)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        table = np.loadtxt(path, delimiter=",", skiprows=int(named), ndmin=2, encoding="utf-8-sig")
    if not table.size:
        raise InputError(f"samples={path}: has no rows below its header; write one row per draw")
    names = [cell.strip() for cell in header]
    if len(names) != table.shape[1]:
        problem = f"has {len(names)} names in its header, but {table.shape[1]} columns"
        raise InputError(f"samples={path}: {problem}; name every column once")
    return {"outputs": table[:, _order(names, layer)] if named else table}


def _order(names: list[str], layer: AttentionLayer) -> list[int]:
    """Return the indices of the columns y1, y2, …, ys."""
    expected = [f"y{i + 1}" for i in range(layer.seq_len)]
    plain = [name.replace("_", "") for name in names]
    if sorted(plain) != sorted(expected):
        refuse("columns", names, "are not each output once", f"name them y1 to y{layer.seq_len}")
    return [plain.index(name) for name in expected]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
