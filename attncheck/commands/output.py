"""Robust output of commands: closed pipes and unencodable characters do not change exit codes."""

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
# Encoding error handlers that raise an error for characters that a terminal cannot show.
_FAILING = ("strict", "surrogateescape")


class _PersistentStream(io.FileIO):
    """An open file that accepts writes even after its reader has closed the pipe."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self._discard()
            # If standard error itself cannot be written, the error cannot be reported.
            if not isinstance(error, BrokenPipeError) and self.fileno() != _ERRORS:
                remedy = "make room, or write elsewhere"
                refuse("output", "standard output", f"cannot be written to ({error.strerror})", remedy)
        return memoryview(data).nbytes

    def _discard(self) -> None:
        """Discard all further output."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Prevent errors of standard output and standard error from failing a command.

    After a reader such as ``head`` has closed the pipe, further output is discarded, and the command still returns
    its exit code. Characters that the terminal's encoding lacks are replaced by question marks.

    Raises
    ------
    InputError
        On writing, if standard output is a file on a full disk.
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
    if stream is None:  # the parent process has closed the stream
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if type(stream) is not io.TextIOWrapper:  # a stream without a file descriptor, as in a notebook
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
        with suppress(InputError):  # the command has already printed its result
            lasting.close()


def as_json(document: Any) -> str:
    """Return indented, readable JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
