"""Where commands write to: a reader that leaves, or a terminal that lacks a character, changes no exit code."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TextIO

from attncheck._lib.errors import InputError, refuse

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The file descriptor of standard error.
_ERRORS = 2
# Ways to write what a terminal cannot show that fail.
_FAILING = ("strict", "surrogateescape")


class _PersistentStream(io.FileIO):
    """An open file that takes what is written to it, also after its reader has left."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self._discard()
            # Where standard error cannot be written, there is nobody to tell.
            if not isinstance(error, BrokenPipeError) and self.fileno() != _ERRORS:
                remedy = "make room, or write elsewhere"
                refuse("output", "standard output", f"cannot be written ({error.strerror})", remedy)
        return memoryview(data).nbytes

    def _discard(self) -> None:
        """Lead what is still to come nowhere, as it cannot be kept."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Keep what is written to standard output and standard error from failing a command.

    A reader that closes the pipe, ``head`` for example, has seen enough: the rest is thrown away, and the command goes
    on to its exit code. Characters that the encoding of the terminal does not have are replaced by question marks.

    Raises
    ------
    InputError
        From what writes, where standard output is a file on a full disk.
    """
    with (
        _lasting(sys.stdout) as output,
        _lasting(sys.stderr) as errors,
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        yield


@contextmanager
def _lasting(stream: TextIO | None) -> Iterator[TextIO]:
    if stream is None:  # closed by whoever started this process
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if type(stream) is not io.TextIOWrapper:  # such as of a notebook: no file that is written to directly
        yield stream
        return
    stream.flush()
    lasting = io.TextIOWrapper(
        io.BufferedWriter(_PersistentStream(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace" if stream.errors in _FAILING else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    try:
        yield lasting
    finally:
        with suppress(InputError):  # the command has said what it came to
            lasting.close()


def as_json(document: Any) -> str:
    """Return indented JSON for people."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
