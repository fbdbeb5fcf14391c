"""Checks: each tests one claim by a statistic with a null hypothesis, a known power, and a list of required arrays.

The public names, for checks in other packages, are listed in ``attncheck.checks.public`` and imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.checks.public import *  # noqa: F403  # shows type checkers the names that __getattr__ finds
else:

    def __getattr__(name: str) -> Any:
        # The names of submodules (lower case) are looked up here too, and must not import `public`.
        if not name[0].isupper() and name != "register":
            raise AttributeError(f"module 'attncheck.checks' has no attribute {name!r}")
        import attncheck.checks.public as public

        return getattr(public, name)

    def __dir__() -> list[str]:
        import attncheck.checks.public as public

        return public.__all__
