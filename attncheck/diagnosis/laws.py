"""Another law of the weights as a cause: does all of a sample fit a law that the subject does not declare?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attncheck.checks.check import Setting
from attncheck.checks.literal import LiteralReference
from attncheck.checks.reference import Reference
from attncheck.checks.registry import checks_of
from attncheck.checks.sample import Sample
from attncheck.evidence.blocks import block_of
from attncheck.simulators.weights import GAUSSIAN, GAUSSIAN_LAWS, WEIGHT_LAWS, WeightLaws

# Properties whose checks must agree with what is named, and their level together.
_CONFIRMING, _CONFIRMING_LEVEL = ("exactness", "scores", "conditional"), 0.01
# Weight entries that a sample may stand for, as each law is drawn literally, and the draws that are taken anyway.
_ENTRIES, _FEWEST = 20_000_000, 256


def passes(sample: Sample, seed: np.random.SeedSequence, laws: WeightLaws = GAUSSIAN_LAWS) -> bool:
    """Return whether no check of the cheap properties finds anything suspicious in a sample.

    Parameters
    ----------
    sample : Sample
    seed : numpy.random.SeedSequence
        For what it is compared with.
    laws : WeightLaws
        What its weights are taken to be.
    """
    setting = Setting(sample.layer, sample.exposed, sample.coordinates, laws)
    checks = [check for name in _CONFIRMING for check in checks_of(name) if not check.reason_not_examined(setting)]
    known = (sample.layer, len(sample), sample.coordinates, seed, frozenset(check.compares for check in checks))
    reference = Reference(*known)
    if not laws.gaussian:
        reference = LiteralReference(*known, laws=laws, like=sample, block=block_of(len(sample)))
    p_values = (check.test(setting, check.measure(sample, reference)).p_value for check in checks)
    return all(p_value > _CONFIRMING_LEVEL / len(checks) for p_value in p_values)


def fitting_laws(
    sample: Sample, seed: np.random.SeedSequence, declared: WeightLaws = GAUSSIAN_LAWS, handed: bool = False
) -> Iterator[str]:
    """Say which laws of the weights all of a sample fits, where it does not fit the declared one.

    Parameters
    ----------
    sample : Sample
        One of which no scale differs: a law says nothing of these.
    seed : numpy.random.SeedSequence
    declared : WeightLaws
    handed : bool
        Whether the inputs are attncheck's own.
    """
    sample = sample.first(max(_FEWEST, _ENTRIES // sample.layer.weight_entries))
    if passes(sample, seed, declared):
        return
    for name in WEIGHT_LAWS:
        own = WeightLaws(name, name, name, name)
        whole = own if handed else WeightLaws.of(name)
        found = next((laws for laws in dict.fromkeys([whole, own]) if passes(sample, seed, laws)), None)
        if found is not None:
            matrices = {matrix: law for matrix, law in vars(found).items() if law != GAUSSIAN}
            yield f"all of it fits weights={(name if found == whole else matrices)!r}"
