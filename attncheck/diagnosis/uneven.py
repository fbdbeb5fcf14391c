"""Estimates by head, position or neuron that differ from each other, and correlations between draws of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck._lib.text import listed
from attncheck.checks.sample import Sample
from attncheck.diagnosis import finding
from attncheck.diagnosis.estimates import KEYS, OUTPUTS, QUANTILE, SCORES, SCORES_GIVEN, VALUES, whitened_squares
from attncheck.diagnosis.finding import Finding
from attncheck.evidence import plot_data
from attncheck.layers.attention_map import visible
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

# Distance of a correlation from 0 that is no chance, in standard errors.
_CLEAR = 6.6
# Maximum numbers shown in a message, and distances between draws in a plot besides those found.
_SHOWN, _NEAR = 8, 12
_STAGES = {
    **dict.fromkeys((KEYS, SCORES, SCORES_GIVEN), finding.SCORES),
    VALUES: finding.WEIGHTS_OR_VALUES,
    OUTPUTS: finding.OUTPUTS,
}


def uneven(sample: Sample, reference: Callable[[], Sample], laws: WeightLaws = GAUSSIAN_LAWS) -> Iterator[Finding]:
    """Yield what differs between heads, positions or neurons, and how draws of a call are correlated.

    Scales are estimated relative to the declared ones. They differ if two 99.9% intervals do not overlap.

    Parameters
    ----------
    sample : Sample
    reference : callable
        Returns a sample of the exact law.
    laws : WeightLaws
        Laws of the weights.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> from attncheck.methods import simulate
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=2)
    >>> one, exact = (simulate(layer, 2000, seed).outputs for seed in range(2))
    >>> one[:, 2] *= 2.0
    >>> [each] = uneven(Sample(layer, one), lambda: Sample(layer, exact))
    >>> each.text.partition(":")[0]
    'output variance by position'
    """
    yield from _correlated(sample)
    by_head = [each for each in whitened_squares(sample, laws) if each[1].shape[1] > 1 and each[2].any()]
    for name, squares, dof in by_head:
        yield from _ratios(name, "head", squares, dof)
    whitened = any(name == SCORES_GIVEN for name, _, _ in by_head)
    exact = reference()
    declared = _squares(exact)
    for (name, of), squares in _squares(sample).items():
        if not (whitened and (name, of) == (SCORES, "head")):
            yield from _ratios(name, of, squares, declared[name, of])
    neurons, alike = (sample.outputs**2).mean(axis=1), (exact.outputs**2).mean(axis=(1, 2))
    yield from _ratios(OUTPUTS, "neuron", neurons, np.broadcast_to(alike[:, None], (len(alike), neurons.shape[1])))


def _squares(sample: Sample) -> dict[tuple[str, str], FloatArray]:
    """Return mean squares, (draws, places), of the visible scores and of the outputs, by name and kind of place."""
    found = {(OUTPUTS, "position"): (sample.outputs**2).mean(axis=2)}
    if sample.scores is not None:
        squares = np.where(visible(sample.layer), sample.scores, 0.0) ** 2
        axes = {"head": (2, 3), "position of the query": (1, 3), "position of the key": (1, 2)}
        found |= {(SCORES, of): squares.mean(axis=others) for of, others in axes.items()}
    return found


def _ratios(name: str, of: str, ours: FloatArray, exact: FloatArray) -> Iterator[Finding]:
    """Compare ratios of means over draws, both arrays (draws, places), with intervals that include the errors of both.

    Places where the exact law is 0, as for keys that no query sees, are left out.
    """
    places = np.flatnonzero(exact.any(axis=0))
    means, declared = (each[:, places].mean(axis=0) for each in (ours, exact))
    errors = [each[:, places].std(axis=0) / len(each) ** 0.5 for each in (ours, exact)]
    values = means / declared
    half = QUANTILE * np.hypot(errors[0], values * errors[1]) / declared
    if places.size < 2 or (values - half).max() <= (values + half).min():
        return
    told = ", ".join(f"{value:.3g}" for value in values[:_SHOWN]) + ", …" * (places.size > _SHOWN)
    plot = plot_data.profile(places, values, half, 1.0, of, f"{name[:1].upper()}{name[1:]} over the declared")
    yield Finding(_STAGES[name], f"{name} by {of}: {told} times the declared", plot)


def _correlated(sample: Sample) -> Iterator[Finding]:
    """Find distances between draws whose sizes are correlated, by normal scores of ranks."""
    for name, drawn in (("scores", sample.scores), ("outputs", sample.outputs)):
        if drawn is None:
            continue
        sizes = (drawn**2).reshape(len(drawn), -1).sum(axis=1)
        scores = scipy.special.ndtri((scipy.stats.rankdata(sizes) - 0.5) / len(sizes))
        centred, lags = scores - scores.mean(), np.arange(1, len(sizes) // 2)
        products = np.fft.irfft(np.abs(np.fft.rfft(centred, 2 * len(sizes))) ** 2)
        values = products[lags] / max(float(products[0]), 1e-300)
        errors = np.sqrt(len(sizes) - lags) / len(sizes)
        clear = np.flatnonzero(np.abs(values) > _CLEAR * errors)[:_SHOWN]
        if clear.size:
            told = listed(f"{values[at]:.2g} at {lags[at]}" for at in clear)
            kept = np.union1d(clear, np.arange(min(_NEAR, len(lags))))
            what = f"Correlation of the size of {name} between draws of a call"
            plot = plot_data.profile(lags[kept], values[kept], QUANTILE * errors[kept], 0.0, "distance", what)
            text = f"sizes of {name} are correlated between draws at a distance: {told}"
            yield Finding(finding.DRAWS, text, plot)
            return
