"""Catch attention-initialisation bugs before training: wrong weight scales, wrong masks, broken μP scaling.

The public names are `examines`, for tests, and those of `attncheck.api`. They are imported when one is first used, so
that ``import attncheck`` and the command line start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck._lib.version import __version__ as __version__

if TYPE_CHECKING:
    from attncheck.api import *  # noqa: F403  # what __getattr__ finds: type checkers see these names and no others
    from attncheck.pytest_plugin.marks import examines as examines
else:

    def __getattr__(name: str) -> Any:
        # Tools look up private names that do not exist, which must not import everything.
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module 'attncheck' has no attribute {name!r}")
        if name == "examines":
            from attncheck.pytest_plugin.marks import examines

            return examines
        import attncheck.api as api

        if name == "__all__":
            return __dir__()
        if name not in api.__all__:
            raise AttributeError(f"module 'attncheck' has no attribute {name!r}")
        return getattr(api, name)


def __dir__() -> list[str]:
    import attncheck.api as api

    return [*api.__all__, "__version__", "examines"]
