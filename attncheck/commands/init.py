"""`attncheck init`: starter files, copied from the folder ``start``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_file
from attncheck.commands.arguments import Flag, Template, folder_of

_START = Path(__file__).parent / "start"
_WORKFLOW = ".github/workflows/attncheck.yml"
_PLACEHOLDER = "https://github.com/OWNER/attncheck"


def init(folder: str = ".", /, *, framework: Template = "numpy", program: Flag = False) -> int:
    """Create a starter layer or program, test and GitHub workflow.

    Existing files are never overwritten. The workflow contains a placeholder for attncheck's repository.

    Parameters
    ----------
    folder
        Folder for the new files: the root of a repository, so that GitHub finds the workflow.
    framework
        NumPy simulator, or layer of a framework.
    program
        Write a Netsor program with its NumPy simulator instead of a layer.
    """
    if program and framework != "numpy":
        refuse("framework", framework, "is for layers", "leave it out, or leave out --program")
    path, extra = folder_of(folder, "folder"), f"[{framework}]"
    module, command = "layer", "attncheck inspect layer:build --width 64"
    if framework == "numpy":
        extra, module, command = "", "simulator", "attncheck run --subject simulator:simulate --profile smoke"
    start = _START / ("program" if program else framework)
    names = (f"{module}.py", f"test_{module}.py", _WORKFLOW)
    if there := [name for name in names if os.path.lexists(path / name)]:
        refuse("folder", folder, f"already has {', '.join(there)}", "move it away, or choose another folder")
    texts = [(start / f"{name}.txt").read_text(encoding="utf-8") for name in names[:2]]
    workflow = (_START / "attncheck.yml.txt").read_text(encoding="utf-8")
    if program:  # no command `attncheck run`: it tests attncheck's example programs, not the one in these files
        workflow, command = workflow.partition("      - run: <command>")[0], ""
    elif framework != "numpy":  # nothing to upload: an inspection writes neither a record nor an HTML page
        workflow = workflow.partition("      - uses: actions/upload-artifact")[0]
    requirement = f'"attncheck{extra} @ git+{_PLACEHOLDER}"'
    examined = command + " --record run.jsonl --report report.html" * (framework == "numpy")
    for word, value in (("requirement", requirement), ("test", names[1]), ("command", examined)):
        workflow = workflow.replace(f"<{word}>", value)
    for name, text in zip(names, (*texts, workflow), strict=True):
        write_file(path / name, text.encode())
        print(f"wrote {path / name}")
    print(f"next:\n  cd {path}" if path != Path() else "next:")
    if extra and importlib.util.find_spec(framework) is None:
        print(f"  python -m pip install {framework}{' jax' * (framework == 'keras')}")
    print(f"  python -m pytest {names[1]}" + f"\n  {command}" * bool(command))
    print(f"before you push: replace {_PLACEHOLDER} in the workflow; attncheck has no release yet")
    return ExitCode.CONSISTENT
