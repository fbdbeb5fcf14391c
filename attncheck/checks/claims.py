"""Claims: the statements that checks test, and what a pass does not show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, or an exact finite-width statement that it rests on.

    Attributes
    ----------
    name : str
        Key in `CLAIMS`.
    statement : str
        The claim.
    source : str
        Place in the paper.
    unseen : str
        What a consistent verdict does not show.
    variants : tuple of (str, object, str)
        Field, value and statement for layers with a different claim; the first match applies.
    """

    name: str
    statement: str
    source: str
    unseen: str
    variants: tuple[tuple[str, object, str], ...] = ()

    def text_of(self, layer: Mapping[str, Any]) -> str:
        """Return the statement for a layer or program, given its fields; defaults may be omitted.

        Examples
        --------
        >>> CLAIMS["assumption"].text_of({"width": 8, "tied_query_key": True})
        'W_V differs from W_K; W_Q is W_K in this layer.'
        """
        for field, value, statement in self.variants:
            given = layer.get(field)
            if bool(given) if value is True else given == value:
                return statement
        return self.statement


#: Start of the reason for not examining a check whose arrays the subject does not return.
NOT_EXPOSED = "the subject does not expose "
#: Reason for not examining a check that needs two neurons.
ONE_NEURON = "the subject returns one neuron only"
#: Reason for not examining checks of repeated numbers.
TWO_VALUES = "two-valued weights may repeat numbers by chance"
#: End of the reason for not examining a check with too few draws.
LARGER = "a larger profile affords more"

#: Claims in order of computation: a fault shows in its own claim and in later ones.
CLAIMS = {
    claim.name: claim
    for claim in (
        Claim(
            "draws",
            "Draws are independent and have full precision.",
            "Corollary 2 (independent weights in every draw)",
            "Dependence between distant draws of one call, other than repetition.",
        ),
        Claim(
            "inputs",
            "Inputs are x = φ(W h), or φ(W h + e) with a position_std; h, W and e Gaussian: at finite width the W h of "
            "all positions share the length of h.",
            "Definition 1 (i)-(iii), Appendix A",
            "Only the marginal law, length and tail are tested; a subject that receives X passes trivially.",
            (
                (
                    "position_std",
                    True,
                    "Inputs are x^i = φ(W^i h + e^i), h, W and e Gaussian: at finite width the W^i h share the length "
                    "of h, and the e^i, independent of it, have Cov(e^i, e^j) = "
                    "position_std² exp(-(i - j)²/(2 position_reach²)) in every neuron.",
                ),
            ),
        ),
        Claim(
            "assumption",
            "W_Q, W_K and W_V are different matrices.",
            "Assumption 1 (a), (b)",
            "Sharing that leaves no linear trace in scores and Gram matrices.",
            (("tied_query_key", True, "W_V differs from W_K; W_Q is W_K in this layer."),),
        ),
        Claim(
            "head_scales",
            "The matrices of all heads have the same standard deviation.",
            "Corollary 2, Example 1",
            "Only sums of squares are tested, and only for the head that differs most from the others.",
        ),
        Claim(
            "scores",
            "Given the inputs, scores are Gaussian given the keys with covariance σ_Q² G ⊗ K Kᵀ/ν, and the key Grams "
            "are Wishart: formula (*) holds at every width; where W_Q is W_K, scores are K Kᵀ/ν.",
            "Definition 1 (iv), Proposition 8",
            "A constant added to a row of scores does not change softmax outputs; only the scores show it.",
            (
                (
                    "tied_query_key",
                    True,
                    "Scores are K Kᵀ/ν, as W_Q is W_K, and given the inputs K Kᵀ is Wishart with ν degrees of freedom.",
                ),
                (
                    "score_scaling",
                    "1/n",
                    "Given the inputs, scores are Gaussian given the keys with covariance σ_Q² G ⊗ K Kᵀ/ν², and the "
                    "key Grams are Wishart: formula (*), over ν, holds at every width.",
                ),
            ),
        ),
        Claim(
            "values",
            "The value Grams are Wishart given the inputs.",
            "Example 1",
            "W_V is tested through its Gram matrix only, not its individual entries.",
        ),
        Claim(
            "heads",
            "Scores, keys and values of different heads are independent given the inputs, except in declared groups.",
            "Example 1, Assumption 1",
            "Only linear and size dependence of pairs of heads is tested, not of three or more.",
        ),
        Claim(
            "conditional",
            "Given the scores (and the values) the outputs are Gaussian, independently over neurons.",
            "Theorem 1, Example 1",
            "For non-Gaussian W_O it holds in the limit only.",
        ),
        Claim(
            "outputs",
            "Outputs have the law that scores, masks, values and scalings imply at the given width.",
            "Corollary 2, Example 1",
            "Detecting a 2% error in one weight's standard deviation from outputs takes tens of thousands of draws.",
        ),
        Claim(
            "outputs_joint",
            "The outputs of all positions have their exact joint law at the given width.",
            "Corollary 2",
            "Only one fixed random projection per layer is tested.",
        ),
        Claim(
            "joint",
            "Inputs, scores and outputs have their exact joint law at the given width.",
            "Theorem 1, Example 1",
            "Only a few functionals of pairs of them are tested.",
        ),
        Claim(
            "independence",
            "The Gaussian parts of scores and outputs are independent of everything that they are conditioned on.",
            "Definition 1 (iv)",
            "Only linear and size dependence are tested.",
            (
                (
                    "tied_query_key",
                    True,
                    "The Gaussian parts of outputs are independent of everything that they are conditioned on.",
                ),
            ),
        ),
        Claim(
            "non_gaussianity",
            "Outputs are a scale mixture of normals, not the Gaussian of the same covariance.",
            "Theorem 1, Example 1",
            "Tested only on layers where the two laws can be distinguished with the available draws.",
        ),
        Claim(
            "netsor",
            "Initial vectors are normal, images of new directions are normal and independent of all earlier vectors, "
            "and functions act coordinate by coordinate, as the program declares.",
            "Definition 1 (i)-(iii)",
            "Only the smallest width of a case is examined, for two neurons; lengths are of all neurons.",
        ),
        Claim(
            "fact1",
            "Averages over neurons tend to expectations of the limit variables, with deviations of order n^{-1/2}.",
            "Fact 1",
            "Only the order of one average per program is tested, of a product of two vectors; not almost sure "
            "convergence, and not every pseudo-Lipschitz ψ.",
        ),
        Claim(
            "program_scores",
            "Scores given one side of each are Gaussian with the covariance of formula (*), independent of the "
            "vectors.",
            "Definition 1 (iv), Proposition 8",
            "Programs that allow no conditioning on one side, e.g. with odd cycles of matrices, are omitted.",
        ),
        Claim(
            "theorem1",
            "Averages over neurons of outputs tend to a random limit, a function of the scores.",
            "Theorem 1",
            "Only the order of one output's mean square is tested per program, not every bounded ψ.",
        ),
        Claim(
            "corollary2",
            "Results and scores of a program have their exact joint law at the given width.",
            "Corollary 2, Example 1",
            "Only a few numbers per draw are compared.",
        ),
        Claim(
            "limit",
            "The law of an output is no further from the hierarchical limit than computed for the width.",
            "Corollary 2",
            "Effects smaller than the finite-width distance cannot be detected.",
        ),
    )
}
