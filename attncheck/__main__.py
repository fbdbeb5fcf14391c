"""``python -m attncheck`` is the command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line; imported here, since worker processes import this module but need no command line."""
    from attncheck.commands.cli import program

    program()


if __name__ == "__main__":
    main()
