"""Tables, quartiles and versions for pages of measurements."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence

import numpy as np
import scipy

from attncheck._lib.arithmetic import in_use
from attncheck._lib.arrays import FloatArray
from attncheck._lib.version import __version__


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns.

    Examples
    --------
    >>> print(table(("what", "s"), [("a draw", "1")]))
    | what   | s |
    |--------|---|
    | a draw | 1 |
    """
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    padded = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))} |" for line in lines]
    return "\n".join([padded[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *padded[1:]])


def spread(values: FloatArray, unit: str, form: str) -> str:
    """Format the median and, in brackets, the quartiles of values; `form` is the format of a number.

    Examples
    --------
    >>> spread(np.array([1.0, 2.0, 3.0]), " s", ".1f")
    '2.0 s (1.5 to 2.5)'
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:{form}}{unit} ({low:{form}} to {high:{form}})"


def installed() -> str:
    """Return the versions of attncheck, Python and its libraries, and the platform; timings depend on these."""
    return (
        f"attncheck {__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"SciPy {scipy.__version__}, {in_use()}, "
        f"{platform.system()} {platform.machine()}"
    )
