"""`Program`: a Netsor program with dot-product scores, written line by line, and what can be said of it as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.streams import digest
from attncheck.layers.program import text
from attncheck.layers.program.coverage import Coverage, coverage
from attncheck.layers.program.lines import Lines


class Program(Lines):
    """A Netsor program with dot-product scores, written line by line.

    Lines are never changed once written. Methods that write a line return its node, to be used in
    later lines.

    Examples
    --------
    >>> import numpy as np
    >>> program = Program()
    >>> h = program.initial("h")
    >>> W, Q, K = (program.weight(name) for name in "WQK")
    >>> x = program.nonlin(np.tanh, program.matmul(W, h))
    >>> p = program.score(program.matmul(Q, x), program.matmul(K, x))
    >>> print(program)
    h ~ N(0, 1)
    g1 = W h
    x1 = tanh(g1)
    g2 = Q x1
    g3 = K x1
    p1 = <g2, g3> / sqrt(n)
    """

    @property
    def key(self) -> str:
        """What the program is known by in streams, records and digests; it never changes."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the program as built-in types; `from_dict` gives it back where its functions can be found by name."""
        return text.to_dict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], trust: Sequence[str] = ()) -> Program:
        """Build a program from what `to_dict` returned.

        Parameters
        ----------
        fields : mapping
        trust : sequence of str
            Modules whose functions may be imported and called. attncheck's own functions, and those of NumPy and
            scipy.special, need none.

        Raises
        ------
        InputError
            If something is missing, unknown or of the wrong kind, or names code of a module that is not trusted; it
            names the line.
        """
        return text.from_dict(cls(), fields, trust)

    def to_toml(self) -> str:
        """Return the program as TOML text.

        Raises
        ------
        InputError
            If a function cannot be found by name, as with a lambda.
        """
        return text.to_toml(self)

    @classmethod
    def from_toml(cls, source: str | Path, trust: Sequence[str] = ()) -> Program:
        """Read a program from TOML text, or from the file at a `Path`; `trust` as for `from_dict`.

        Raises
        ------
        InputError
            If it cannot be read, or as for `from_dict`.
        """
        return text.from_toml(cls(), source, trust)

    def coverage(self) -> Coverage:
        """Return which statement of the paper covers each line, and why no better one."""
        return coverage(self)
