"""attncheck: does this attention simulator behave as the infinite-width theorem says?"""

from __future__ import annotations

__version__ = "0.1.0"
