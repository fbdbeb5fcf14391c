"""A hypothesis backend whose choices depend on the seed alone."""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

#: Name of the backend, for ``hypothesis.settings(backend=…)``.
BACKEND = "attncheck"


class SeededChoices(HypothesisProvider):
    """Hypothesis's provider of random choices, without the constants that it collects from the user's modules.

    With these constants, an edited number in a simulator would change the cases of a run.
    """

    def _maybe_draw_constant(self, *args: object, **options: object) -> None:
        return None


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{SeededChoices.__name__}"
