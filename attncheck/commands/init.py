"""`attncheck init`: files to begin with, from the folder ``start`` beside this module."""

from __future__ import annotations

import os
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck.commands.arguments import Beginning, folder_of

_START = Path(__file__).parent / "start"
_WORKFLOW = ".github/workflows/attncheck.yml"
# The files of a beginning, and the command that goes on from them.
_BEGINNINGS: dict[Beginning, tuple[tuple[str, ...], str]] = {
    "numpy": (("simulator.py", "test_simulator.py"), "attncheck run --subject simulator:simulate --profile smoke"),
    "torch": (("layer.py", "test_layer.py"), "attncheck inspect layer:build --width 64"),
}


def init(folder: str = ".", /, *, framework: Beginning = "numpy") -> int:
    """Write files to begin with: a layer, a test of it, and a workflow of GitHub that runs both.

    They run as they are. No file that is there already is overwritten.

    Parameters
    ----------
    folder
        Where they go: the top of a repository, where GitHub looks for workflows.
    framework
        A simulator in NumPy, or a layer of torch.
    """
    place, (files, command) = folder_of(folder, "folder"), _BEGINNINGS[framework]
    names = (*files, _WORKFLOW)
    if there := [name for name in names if os.path.lexists(place / name)]:
        refuse("folder", folder, f"has {', '.join(there)} already", "move that away, or name another folder")
    for name in names:
        write_whole(place / name, (_START / framework / f"{Path(name).name}.txt").read_bytes())
        print(f"wrote {place / name}")
    print(f"next:\n  cd {place}" if place != Path() else "next:")
    print(f"  python -m pytest {files[-1]}\n  {command}")
    return ExitCode.CONSISTENT
