"""Change attncheck a little and run tests: ``python benchmarks/mutations.py attncheck/layers tests/layers``.

Each mutation of mutations.toml below the first path is applied to a copy of the repository, in which pytest runs with
the other arguments. One line per mutation says whether the tests killed it; the exit code is the number of survivors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Seconds after which tests that do not end count as failed.
TIMEOUT = 600
IGNORED = shutil.ignore_patterns(".*", "__pycache__")


def verdict(mutation: dict[str, str], folder: Path, arguments: Sequence[str]) -> str:
    """Return whether tests kill a mutation in a copy of the repository, or that the code has changed."""
    path = folder / mutation["file"]
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(mutation["old"]) != 1:
        return "outdated"
    path.write_text(text.replace(mutation["old"], mutation["new"]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(text, encoding="utf-8")
    return "killed" if done.returncode else "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", help="of mutated files, such as attncheck/layers")
    options, arguments = parser.parse_known_args()
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=IGNORED)
        for mutation in tomllib.loads((ROOT / "benchmarks" / "mutations.toml").read_text(encoding="utf-8"))["mutation"]:
            if mutation["file"].startswith(options.path):
                result = verdict(mutation, folder, arguments)
                survivors += result == "survived"
                print(f"{result}: {mutation['file']}: {mutation['new']}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
