"""Choices of hypothesis that depend on its seed alone."""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

#: Name of the backend, for ``hypothesis.settings(backend=…)``.
BACKEND = "attncheck"


class SeededChoices(HypothesisProvider):
    """Draws as hypothesis does, except that no literal of the user's modules is among the choices.

    Otherwise, an edited number in a simulator would change the cases of a run.
    """

    def _maybe_draw_constant(self, *args: object, **options: object) -> None:
        return None


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{SeededChoices.__name__}"
