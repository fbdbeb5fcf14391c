"""Damage to files: bytes, lines, values, archives and arrays, each drawn from a generator of its own."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import random
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attncheck.records.schema import Closing, Result, StatementResult, content_hash, run_digest

#: Text that must stay inert wherever it is shown.
HOSTILE = (
    "<img src=x onerror=alert(1)>\x1b[31m\x1b]0;title\x07\x9b2J\r\n"
    "::set-output name=x::y ##[error]z [/red] {{7*7}} ]]>\u202e"
)
_DEEP = 100_000
# JSON texts in place of a value.
_VALUES = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "1000000000000", "1" + "0" * 30, "1e308", "-1e308", "5e-324"),
    *('""', '"x"', "null", "true", "false", "[]", "{}", "[[]]", '{"pool":"all","of":[]}', "[1e308,-1e308]", "0.5", "1"),
    *(json.dumps(HOSTILE), json.dumps("a" * 100_000), json.dumps("trap:run"), '"\\ud800"', '"os:system"'),
    *("[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP, "[" * 500 + "]" * 500, "9" * 5000),
)
# TOML texts in place of a value.
_TOML = (
    *("nan", "inf", "-1", "0", "1_000_000_000_000", "1" + "0" * 30, "1e308", '""', "true", "[]", "{}", "1979-05-27"),
    *(json.dumps("a" * 100_000), '"trap:run"', '"os:system"', '"\\u001b[31m\\n::error::x"', "9" * 5000, "2", "4", "64"),
    *("[" * _DEEP + "]" * _DEEP, "{a=" * _DEEP + "1" + "}" * _DEEP, "0x" + "f" * 9999, "5000", "100000", "'[/red]'"),
)

Damage = Callable[[bytes, random.Random], bytes]


def truncated(content: bytes, rng: random.Random) -> bytes:
    """Cut at any byte."""
    return content[: rng.randrange(len(content) + 1)]


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Flip bits of up to three bytes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def spliced(content: bytes, rng: random.Random) -> bytes:
    """Repeat, remove or overwrite a part."""
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    part = rng.choice([b"", content[start:stop] * 2, b"\0" * (stop - start), rng.randbytes(64)])
    return content[:start] + part + content[stop:]


def recoded(content: bytes, rng: random.Random) -> bytes:
    """Add a byte-order mark, change line ends or the encoding, or append something."""
    return rng.choice(
        [
            b"\xef\xbb\xbf" + content,
            content.replace(b"\n", b"\r\n"),
            content.replace(b"\n", b"\r"),
            content.replace(b"a", b"\xe9"),
            content.decode("latin-1").encode("utf-16"),
            content + b"\n\n",
            content + b"\0",
            b"\n" + content,
            content + content,
            content + b"\x1a",
        ]
    )


def replaced(content: bytes, rng: random.Random) -> bytes:
    """Return something else altogether."""
    big = lzma.compress(rng.choice([b"\0", b"[", b"{"]) * 2**24, preset=0) * 64
    small = (b"", b"\n", b"{", b"{}\n", b"[]\n", b"null\n", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"\xfd7zXZ\0")
    large = (b"\0" * 100_000, b"[" * _DEEP, b"{" * _DEEP, b'{"type":"manifest",' * 1000, rng.randbytes(1000))
    return rng.choice([*small, *large, big, b"\x93NUMPY\x01\0"])


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, each in inner for found in _places(each, (*place, key)))]


def _changed(line: bytes, rng: random.Random) -> bytes:
    """Replace, remove, rename or double a value in a line of JSON."""
    document = json.loads(line)
    *above, last = rng.choice([place for place in _places(document) if place] or [("type",)])
    inside = document
    for key in above:
        inside = inside[key]
    what = rng.random()
    if what < 0.1 and isinstance(inside, dict):
        del inside[last]
        return json.dumps(document).encode()
    if what < 0.2 and isinstance(inside, dict):
        inside[HOSTILE] = inside.pop(last)
        return json.dumps(document).encode()
    value = rng.choice(_VALUES)
    old = inside[last]
    inside[last] = "\0here"
    text = json.dumps(document, separators=(",", ":")).replace('"\\u0000here"', value)
    if what < 0.3 and isinstance(inside, dict):
        text = text.replace(
            f"{json.dumps(last)}:{value}", f"{json.dumps(last)}:{value},{json.dumps(last)}:{json.dumps(old)}"
        )
    return text.encode()


def _in_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines)) if rng.random() < 0.6 else rng.choice([0, len(lines) - 1])
    return b"\n".join([*lines[:at], _changed(lines[at], rng), *lines[at + 1 :]]) + b"\n"


def changed(content: bytes, rng: random.Random) -> bytes:
    """Change a value, often with the hashes made anew, so that the reader gets to see it."""
    for _ in range(rng.choice([1, 1, 1, 3])):
        if _is_json(content):
            with contextlib.suppress(RecursionError):
                with_it = _in_lines(content, rng)
                content = with_it if _is_json(with_it) or rng.random() < 0.3 else content
    return sealed(content) if rng.random() < 0.8 else content


def _is_json(content: bytes) -> bool:
    try:
        return all(json.loads(line) is not None for line in content.splitlines())
    except (ValueError, RecursionError):
        return False


def lines_moved(content: bytes, rng: random.Random) -> bytes:
    """Drop, double, swap or join lines, with hashes made anew."""
    lines = content.splitlines(keepends=True)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    elif kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == 3:
        lines[one] = lines[one].rstrip(b"\n")
    else:
        lines.insert(one, b"\n")
    return sealed(b"".join(lines))


def sealed(content: bytes) -> bytes:
    """Return a record with digest and hash made anew, where it is still a record."""
    *lines, last = content.splitlines(keepends=True) or [b""]
    try:
        closing = msgspec.json.decode(last, type=Closing)
        results = [msgspec.json.decode(line, type=Result | StatementResult) for line in lines[1:]]
        digest = run_digest(results)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return content
    hashed = content_hash(hashlib.sha256(b"".join(lines)))
    return b"".join(
        [*lines, msgspec.json.encode(msgspec.structs.replace(closing, digest=digest, content=hashed)), b"\n"]
    )


def toml_changed(content: bytes, rng: random.Random) -> bytes:
    """Replace, double or remove a line of TOML."""
    lines = content.decode().splitlines()
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(lines))
        key = lines[at].partition("=")[0].strip() or "x"
        new = [f"{key} = {rng.choice(_TOML)}"] if rng.random() < 0.85 else rng.choice([[], [lines[at]] * 2, [HOSTILE]])
        lines[at : at + 1] = new
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8")


def header_changed(content: bytes, rng: random.Random) -> bytes:
    """Change shape, type or length in the header of a .npy file."""
    length = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + length].decode("latin-1")
    shape = rng.choice(
        [
            *(
                "(1000000000000,)",
                "(-1,)",
                "()",
                "(0, 2)",
                "(400, 2, 1000000000)",
                "(2,) * 9",
                "(4611686018427387904, 4)",
            ),
            *(
                "(400, 2, 3.5)",
                "(True, 2)",
                "[400, 2]",
                "(" * 5000 + ")" * 5000,
                "(400, 0)",
                "(1,)",
                "(" + "1," * 65 + ")",
            ),
            *("(3000000000, 2)", "(" + "9" * 5000 + ",)", "400", "(100000000, 2)"),
        ]
    )
    kind = rng.choice(
        [
            "'<f8'",
            "'|O'",
            "'<c16'",
            "'|S8'",
            "'<M8[s]'",
            "'|V800000000'",
            "'<f2'",
            "'>i8'",
            "[('a', 'O')]",
            "'<U9999999'",
            "'x'",
        ]
    )
    if rng.random() < 0.6:
        header = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {shape}", header)
    else:
        header = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': {kind}", header)
    encoded = header.encode("latin-1")
    size = len(encoded) if rng.random() < 0.8 else rng.choice([0, 1, 65535])
    return content[:6] + b"\x02\0" + struct.pack("<I", size) + encoded + content[10 + length :]


class Payload:
    """An object whose pickle leaves a file behind when it is loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def npz_changed(content: bytes, rng: random.Random) -> bytes:
    """Return another archive: of objects, of zeros, of absurd headers, with odd names, methods or flags."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive)
    made = io.BytesIO()
    kind = rng.randrange(10)
    if kind == 0:
        np.savez(made, outputs=np.array([Payload()], dtype=object))
    elif kind == 1:  # zeros, a thousandth in size
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("outputs.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**26, 2)})
            for _ in range(64):
                file.write(b"\0" * 2**24)
    elif kind == 2:
        values = rng.choice([np.nan, np.inf, -1e300, 0.0, 1e160])
        np.savez(made, **arrays | {"outputs": np.full_like(arrays["outputs"], values)})
    elif kind == 3:
        np.savez(made, **{rng.choice(["outputs", "../outputs", HOSTILE, "é", "", "scores/x"]): arrays["outputs"]})
    elif kind == 4:
        shape = rng.choice([(400,), (400, 2, 1, 1), (1, 2), (400, 3), (0, 2), (2, 400), (400, 0)])
        np.savez(made, outputs=np.ones(shape, dtype=rng.choice(["f8", "i8", "c16", "U3", "?", "M8[s]", "V5", "f4"])))
    elif kind == 5:
        plain = io.BytesIO()
        np.save(plain, arrays["outputs"])
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("outputs.npy", header_changed(plain.getvalue(), rng))
    elif kind == 6:
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr(rng.choice(["outputs", "outputs.npy", "a.txt", "scores.npy"]), rng.randbytes(500))
    elif kind == 7:  # flags (encrypted) and methods in both headers
        changed, old = bytearray(content), content
        for start, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            for found in re.finditer(re.escape(start), old):
                changed[found.start() + offset + (0 if rng.random() < 0.5 else 2)] = rng.choice([1, 9, 12, 14, 97])
        return bytes(changed)
    elif kind == 8:
        with zipfile.ZipFile(made, "w") as archive:
            for _ in range(2):
                archive.writestr("outputs.npy", b"\x93NUMPY\x01\0\x02\0{}")
    else:
        changed = bytearray(content)  # sizes in the central directory
        at = content.rfind(b"PK\x01\x02") + rng.choice([20, 24, 28, 42])
        changed[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"])
        return bytes(changed)
    return made.getvalue()


def csv_changed(content: bytes, rng: random.Random) -> bytes:
    """Replace a cell, a row or the header."""
    lines = content.decode().splitlines()
    at = rng.choice([0, 0, 1, len(lines) - 1, rng.randrange(len(lines))])
    cells = lines[at].split(",")
    odd = [
        "nan",
        "inf",
        "1e999",
        "",
        '"',
        "x" * 200_000,
        HOSTILE,
        "0x10",
        "1_000",
        "y1",
        "y99999999999999999999",
        "p1_1_2",
    ]
    cells[rng.randrange(len(cells))] = rng.choice([*odd, "p9_9_9", "1" * 5000, "1+2j", "\0", "#", "y_1"])
    lines[at] = rng.choice([",".join(cells), ",".join(cells * 500), "", '"' + lines[at], ";".join(cells)])
    return "\n".join(lines).encode("utf-8")


def compressed(damage: Damage) -> Damage:
    """Return damage to what is inside a compressed file, or to several files in one."""

    def of(content: bytes, rng: random.Random) -> bytes:
        inside = lzma.compress(damage(lzma.decompress(content), rng), preset=0)
        return inside if rng.random() < 0.8 else inside + rng.choice([inside, b"\0\0\0\0", b"rest"])

    return of


def bomb(content: bytes, rng: random.Random) -> bytes:
    """Return a small file that decompresses to a gigabyte: one long line, many values, many lines or many results."""
    first = lzma.decompress(content).splitlines(keepends=True)[0]
    result = b'{"type":"result","id":"%d"}\n'
    begin, part = rng.choice(
        [
            (first[:-2] + b',"x":[', b"[],"),
            (first[:-2] + b',"versions":{"', b"a"),
            (first, result % 7),
            (first, b"\n"),
            (first, b"".join(result % number for number in range(1000))),
        ]
    )
    # Files one after the other are one file.
    return lzma.compress(begin, preset=0) + lzma.compress(part * (2**24 // len(part)), preset=0) * 64


_BYTES: tuple[Damage, ...] = (truncated, truncated, flipped, spliced, recoded, replaced)
_BY_SUFFIX: dict[str, tuple[Damage, ...]] = {
    ".jsonl": (*_BYTES, *(changed,) * 12, lines_moved, lines_moved),
    ".json": (*_BYTES, *(changed,) * 6),
    ".toml": (*_BYTES, *(toml_changed,) * 9),
    ".npy": (*_BYTES, *(header_changed,) * 8),
    ".npz": (*_BYTES, *(npz_changed,) * 14),
    ".csv": (*_BYTES, *(csv_changed,) * 6),
    ".xz": (*_BYTES, *(compressed(changed),) * 8, compressed(lines_moved), compressed(truncated), bomb, bomb),
    "": (
        lambda content, rng: rng.choice(
            ["[/x]", HOSTILE.strip(), "é", "a" * 9999, "scores.\x1b[31m", "", "-"]
        ).encode(),
    ),
}


def damage_file(path: Path, rng: random.Random) -> str:
    """Damage a file, or replace it by a folder, a device or a link to itself; return what was done."""
    if path.suffix and rng.random() < 0.04:
        path.unlink()
        kind = rng.choice(["folder", "/dev/null", "loop", "missing"])
        if kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind != "missing":
            path.symlink_to(kind)
        return kind
    damage = rng.choice(_BY_SUFFIX[path.suffix])
    path.write_bytes(damage(path.read_bytes(), rng))
    return getattr(damage, "__name__", "damage")
