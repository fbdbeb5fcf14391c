"""Read samples of a layer from .npz, .npy and .csv files, and say what is wrong with those that cannot be used."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.attention_map import visible
from attncheck.checks.sample import FIELDS, FILE_FIELDS, Sample
from attncheck.errors import InputError, refuse

FloatArray = NDArray[np.float64]
Entry = tuple[int, int, int]

_OUTPUT_COLUMN = re.compile(r"y_?(\d+)$")
# How .npy files start.
_NPY = b"\x93NUMPY"
_SCORE_COLUMN = re.compile(r"p_?(\d+)_(\d+)_(\d+)$")


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Draws of a layer from a file.

    Attributes
    ----------
    sample : Sample
        What the file holds of the fields that a subject may expose.
    source : str
        The file's name.
    """

    sample: Sample
    source: str

    def __len__(self) -> int:
        return len(self.sample)


def read_samples(path: Path, layer: AttentionLayer) -> Samples:
    """Read draws of `layer`.

    A .npz file holds ``outputs`` (N, s) or (N, s, k) and optionally ``scores`` (N, H, s, s), ``inputs`` like
    the outputs, and Gram matrices; see `attncheck.Draws`. A .npy file holds outputs alone. A .csv file has
    a header with columns ``y1`` … ``ys`` and optionally scores of single entries, ``p1_1_2`` for head 1,
    row 1, column 2; without a header its columns are the outputs.

    Raises
    ------
    InputError
        Naming the file, the array or column, what is wrong, and the remedy.
    """
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        refuse("samples", str(path), "is not of a known kind", "pass a file that ends in .npz, .npy or .csv")
    try:
        arrays, entries = reader(path, layer)
    except OSError as error:
        raise InputError(f"samples={path}: cannot be read ({error.strerror or error}); check the path") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"samples={path}: is damaged ({_first_line(error)}); write the file again") from None
    shaped: dict[str, Any] = {name: _with_neurons(name, array) for name, array in arrays.items()}
    size = len(shaped["outputs"]) if "outputs" in shaped and shaped["outputs"].ndim else 0
    try:
        shaped["score_entries"] = entries or None
        return Samples(Sample.from_mapping(layer, shaped, size, FILE_FIELDS), path.name)
    except InputError as error:
        raise InputError(f"samples={path}: " + str(error).replace("subject[", "[")) from None


def _with_neurons(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return (N, s) outputs and inputs as one neuron each, (N, s, 1)."""
    return array[..., None] if name in ("outputs", "inputs") and array.ndim == 2 else array


def _read_npz(path: Path, layer: AttentionLayer) -> tuple[dict[str, NDArray[Any]], dict[Entry, FloatArray]]:
    if not zipfile.is_zipfile(path) and not path.read_bytes()[:6] == _NPY:
        raise InputError(f"samples={path}: is no .npz archive, or was cut short; write it with numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        if not hasattr(archive, "files"):
            refuse("samples", str(path), "is one array, not an archive", "rename it to end in .npy")
        unknown = [name for name in archive.files if name not in FIELDS]
        if unknown:
            close = difflib.get_close_matches(unknown[0], FIELDS, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "name arrays " + ", ".join(FIELDS)
            refuse(f"samples={path}: array", unknown[0], "is not a known name", remedy)
        return {name: archive[name] for name in archive.files}, {}


def _read_npy(path: Path, layer: AttentionLayer) -> tuple[dict[str, NDArray[Any]], dict[Entry, FloatArray]]:
    if path.read_bytes()[:6] != _NPY:
        raise InputError(f"samples={path}: is no .npy file; write it with numpy.save")
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        refuse("samples", str(path), "is an archive, not one array", "rename it to end in .npz")
    return {"outputs": array}, {}


def _read_csv(path: Path, layer: AttentionLayer) -> tuple[dict[str, NDArray[Any]], dict[Entry, FloatArray]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), None)
    if header is None:
        refuse("samples", str(path), "is empty", "write one row per draw")
    named = not all(_is_number(cell) for cell in header)
    table = np.loadtxt(path, delimiter=",", skiprows=int(named), ndmin=2, encoding="utf-8-sig")
    if not named:
        return {"outputs": table}, {}
    names = [cell.strip() for cell in header]
    if len(names) != table.shape[1]:
        refuse("samples", len(names), f"header cells for {table.shape[1]} columns", "name every column once")
    return _named_columns(names, table, layer)


def _named_columns(
    names: list[str], table: FloatArray, layer: AttentionLayer
) -> tuple[dict[str, NDArray[Any]], dict[Entry, FloatArray]]:
    outputs: dict[int, FloatArray] = {}
    entries: dict[Entry, FloatArray] = {}
    for name, column in zip(names, table.T, strict=True):
        if match := _OUTPUT_COLUMN.match(name):
            outputs[int(match[1])] = column
        elif match := _SCORE_COLUMN.match(name):
            entries[_entry(name, match, layer)] = _finite(name, column)
        else:
            refuse("column", name, "is not known", "name outputs y1, y2, … and scores p1_1_2 (head, row, column)")
    if sorted(outputs) != list(range(1, layer.seq_len + 1)) or len(outputs) + len(entries) != len(names):
        refuse("columns", names, "are not each output once", f"name them y1 to y{layer.seq_len}")
    return {"outputs": np.stack([outputs[i] for i in sorted(outputs)], axis=1)}, entries


def _entry(name: str, match: re.Match[str], layer: AttentionLayer) -> Entry:
    head, i, j = (int(part) - 1 for part in match.groups())
    inside = 0 <= head < layer.num_heads and 0 <= i < layer.seq_len and 0 <= j < layer.seq_len
    if not inside or not visible(layer)[i, j]:
        problem = "is no visible score of the layer"
        refuse("column", name, problem, f"heads go to {layer.num_heads}, positions to {layer.seq_len}")
    return head, i, j


def _finite(name: str, column: FloatArray) -> FloatArray:
    if not np.isfinite(column).all():
        row = int(np.argmin(np.isfinite(column)))
        refuse(f"column {name}, row {row + 1}", float(column[row]), "is not finite", "mend the simulator")
    return column


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
