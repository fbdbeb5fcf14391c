"""Checks: each one a statistic for a claim, with its null, its power and the data it needs.

The public names, for checks in other packages, are listed in ``attncheck.checks.public`` and imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.checks.public import *  # noqa: F403  # what __getattr__ finds: type checkers see these names
else:

    def __getattr__(name: str) -> Any:
        # Modules of this package import each other through it: their names, in lower case, must import nothing.
        if not name[0].isupper() and name != "register":
            raise AttributeError(f"module 'attncheck.checks' has no attribute {name!r}")
        import attncheck.checks.public as public

        return getattr(public, name)

    def __dir__() -> list[str]:
        import attncheck.checks.public as public

        return public.__all__
