"""``python -m attncheck`` is the command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line.

    The import is inside the function because worker processes import this module too, without needing the command line.
    """
    from attncheck.commands.cli import program

    program()


if __name__ == "__main__":
    main()
