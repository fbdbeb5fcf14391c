"""``python -m attncheck`` is the command line."""

from __future__ import annotations

from attncheck.commands.cli import program

if __name__ == "__main__":
    program()
