"""`attncheck init`: starter files, copied from the folder ``start``."""

from __future__ import annotations

import os
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck.commands.arguments import Template, folder_of

_START = Path(__file__).parent / "start"
_WORKFLOW = ".github/workflows/attncheck.yml"
# Files of each template, and the command to run next.
_TEMPLATES: dict[Template, tuple[tuple[str, ...], str]] = {
    "numpy": (("simulator.py", "test_simulator.py"), "attncheck run --subject simulator:simulate --profile smoke"),
    "torch": (("layer.py", "test_layer.py"), "attncheck inspect layer:build --width 64"),
}


def init(folder: str = ".", /, *, framework: Template = "numpy") -> int:
    """Create a starter layer, test and GitHub workflow.

    Existing files are never overwritten.

    Parameters
    ----------
    folder
        Folder to create them in: the root of a repository, so that GitHub finds the workflow.
    framework
        NumPy simulator or PyTorch layer.
    """
    place, (files, command) = folder_of(folder, "folder"), _TEMPLATES[framework]
    names = (*files, _WORKFLOW)
    if there := [name for name in names if os.path.lexists(place / name)]:
        refuse("folder", folder, f"already has {', '.join(there)}", "move it away, or choose another folder")
    for name in names:
        write_whole(place / name, (_START / framework / f"{Path(name).name}.txt").read_bytes())
        print(f"wrote {place / name}")
    print(f"next:\n  cd {place}" if place != Path() else "next:")
    print(f"  python -m pytest {files[-1]}\n  {command}")
    return ExitCode.CONSISTENT
