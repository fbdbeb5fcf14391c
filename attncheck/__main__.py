"""``python -m attncheck`` is the command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Processes of a run import this module too, and nothing else of the command line."""
    from attncheck.commands.cli import program

    program()


if __name__ == "__main__":
    main()
