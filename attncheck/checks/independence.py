"""Checks that whitened outputs, scores and values are independent of inputs, scores and keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Check, Setting
from attncheck.checks.conditional import VALUES_GIVEN, residuals
from attncheck.checks.declared import GIVEN_SCORES, Rejected, of_correlation
from attncheck.checks.functionals import log, log_energy
from attncheck.checks.grams import factor_entries
from attncheck.checks.matrices import KEY, QUERY, VALUE
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import centred
from attncheck.checks.sample import Sample
from attncheck.checks.scores import entries
from attncheck.checks.whitening import Residual, chi_square_scores
from attncheck.evidence.families import Association
from attncheck.layers import regimes
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import UNTIED, OfLayer

Pair = tuple[FloatArray, FloatArray]

_KEYS = QUERY.needs
_VALUE_GRAM = frozenset({"outputs", "input_gram", "value_gram"})


def standard(values: FloatArray) -> FloatArray:
    """Standardise a variable; the null holds at any scale, but the power assumes unit variance."""
    if not values.size:
        return values
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def _sizes(residual: Residual, variable: FloatArray) -> Pair:
    """Pair the sizes of residuals with `variable`, standardised; draws with an empty residual are skipped."""
    valid = residual.kept.any(axis=tuple(range(1, residual.kept.ndim)))
    return residual.energy_scores(1)[valid], standard(variable[valid])


def _trace(sample: Sample) -> FloatArray:
    return log(np.trace(sample.need("input_gram"), axis1=1, axis2=2))


def _output_scores(sample: Sample, reference: Reference) -> Pair:
    """Pair each residual entry with a score of the same draw."""
    residual = sample.output_residual
    scores = sample.told_scores[:, 0, -1]
    weight = np.broadcast_to(scores[:, :, None], residual.values.shape)
    return residual.flat(), weight[residual.kept]


def _output_inputs(sample: Sample, reference: Reference) -> Pair:
    residual = sample.output_residual
    return residual.flat(), sample.need("inputs")[residual.kept]


def _score_inputs(sample: Sample, reference: Reference) -> Pair:
    """Pair each whitened score with the first neuron's input at the position of its row."""
    residual = sample.whitened_scores
    weight = np.broadcast_to(sample.need("inputs")[:, None, :, :1], residual.values.shape)
    return residual.flat(), weight[residual.kept]


def _keys_values(sample: Sample, reference: Reference) -> Pair:
    values, keys = sample.value_factors, sample.key_factors
    both = values.kept & keys.kept
    return values.values[both], centred(keys.values, both)[both]


def _all_entries(energies: Pair) -> FloatArray:
    """Return each draw's total energy over heads, χ² given the inputs, as a normal score; NaN if empty."""
    energy, dof = (part.reshape(len(part), -1).sum(axis=1) for part in energies)
    return np.where(dof > 0, chi_square_scores(np.maximum(dof, 1.0), energy), np.nan)


def _values_with(energy: Callable[[Sample], Pair]) -> Callable[[Sample, Reference], Pair]:
    """Return the measure that pairs the size of the value Grams with that of another matrix, both summed over heads."""

    def pair(sample: Sample, reference: Reference) -> Pair:
        noise, weight = _all_entries(VALUE.energy(sample)), _all_entries(energy(sample))
        valid = ~np.isnan(noise + weight)
        return noise[valid], standard(weight[valid])

    return pair


def _tie(
    name: str,
    between: tuple[str, str],
    needs: frozenset[str],
    measure: Callable[[Sample, Reference], Pair],
    cause: str,
    rejects: Rejected,
    per_draw: Callable[[Setting], int] = lambda setting: 1,
    claim: str = "independence",
    requires: OfLayer = ANY,
) -> Check:
    """Return the check that a residual is uncorrelated with another variable; `between` names the two."""
    noise, variable = between
    return Check(
        name=f"independence.{name}",
        rejects=rejects,
        claim=claim,
        needs=needs,
        null=f"{noise} is standard normal, independent of {variable}",
        alternative=of_correlation(),
        reads=f"standardised covariance of {noise} with {variable}:",
        family=lambda setting: Association(per_draw(setting)),
        measure=measure,
        hint=cause,
        requires=requires,
        stage=GIVEN_SCORES if noise in (_RESIDUAL, _RESIDUAL_SIZE) else "",
    )


_RESIDUAL = "the whitened output"
_RESIDUAL_SIZE = "the size of the whitened output"
_SCORE_SIZE = "the size of the whitened scores"
_VALUE_SIZE = "the size of the whitened value Grams"
_OTHER_SCORES = "the outputs do not use these scores, or W_O depends on them"
_OTHER_INPUTS = "the outputs contain the inputs, e.g. through a residual connection"

CHECKS = (
    _tie(
        "output_scores",
        (_RESIDUAL, "the scores"),
        VALUES_GIVEN,
        _output_scores,
        _OTHER_SCORES,
        Rejected.of("scores_added", on=regimes.SINGLE),
        residuals,
    ),
    _tie(
        "output_score_size",
        (_RESIDUAL_SIZE, "the size of the scores"),
        VALUES_GIVEN,
        lambda sample, reference: _sizes(sample.output_residual, log_energy(sample.told_scores)),
        _OTHER_SCORES,
        Rejected.of("outputs_sized_by_scores", on=regimes.STANDARD),
    ),
    _tie(
        "output_inputs",
        (_RESIDUAL, "the same neuron of the inputs"),
        VALUES_GIVEN | {"inputs"},
        _output_inputs,
        _OTHER_INPUTS,
        Rejected.of("residual_added", on=regimes.STANDARD),
        residuals,
    ),
    _tie(
        "output_gram",
        (_RESIDUAL_SIZE, "the inputs' Gram matrix"),
        VALUES_GIVEN | {"input_gram"},
        lambda sample, reference: _sizes(sample.output_residual, _trace(sample)),
        "outputs were scaled by the inputs, e.g. by a normalisation layer",
        Rejected.of("outputs_sized_by_inputs", on=regimes.NARROW),
    ),
    _tie(
        "score_inputs",
        ("a whitened score", "an input of its draw"),
        _KEYS | {"inputs"},
        _score_inputs,
        "W_Q depends on the inputs",
        Rejected.of("input_bias", on=regimes.SINGLE),
        entries,
        requires=UNTIED,
    ),
    _tie(
        "score_gram",
        (_SCORE_SIZE, "the inputs' Gram matrix"),
        _KEYS,
        lambda sample, reference: _sizes(sample.whitened_scores, _trace(sample)),
        "the scores see other inputs than those exposed, or normalised ones",
        Rejected.of("scores_sized_by_inputs", on=regimes.NARROW),
        requires=UNTIED,
    ),
    _tie(
        "keys_values",
        ("the whitened value Gram", "the key Gram of its head"),
        frozenset({"input_gram", "key_gram", "value_gram"}),
        _keys_values,
        "W_V and W_K are shared",
        Rejected.of("tied_key_value", on=regimes.LINEAR),
        factor_entries,
        claim="assumption",
    ),
    _tie(
        "values_any_keys",
        (_VALUE_SIZE, "that of the key Grams of any heads"),
        _VALUE_GRAM | {"key_gram"},
        _values_with(KEY.energy),
        "W_V of a head and W_K of this or another head are one matrix",
        Rejected.of("slipped_slice", on=regimes.NARROW),
        claim="assumption",
    ),
    _tie(
        "values_any_scores",
        (_VALUE_SIZE, "that of the scores of any heads, given their keys"),
        _VALUE_GRAM | QUERY.needs,
        _values_with(lambda sample: sample.whitened_scores.squares()),
        "W_V of a head and W_Q of this or another head are one matrix",
        Rejected.of("tied_query_value", on=regimes.NARROW),
        claim="assumption",
        requires=UNTIED,
    ),
)
