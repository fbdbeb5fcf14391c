"""The paper's numbered statements and its open problem, with the properties that examine them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class StatementRow:
    """A statement of the paper, or several examined together.

    Attributes
    ----------
    name : str
        Name in the paper; several are separated by commas.
    statement : str
        The statement.
    modules : tuple of str
        Files in `properties/` that examine it, the most direct first.
    examined : str
        What is tested, exactly at finite width or in the limit with its rate.
    not_examined : str
        What is not tested, and why.
    """

    name: str
    statement: str
    modules: tuple[str, ...]
    examined: str
    not_examined: str

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the statement's row in the table.

        Examples
        --------
        >>> StatementRow("Lemma 0", "0 = 0.", ("test_zero.py",), "Formula (*).", "Nothing.").cells()[:2]
        ('**Lemma 0.** 0 = 0.', '`test_zero.py`')
        """
        files = "<br>".join(f"`{module}`" for module in self.modules)
        return (f"**{self.name}.** {_plain(self.statement)}", files, _plain(self.examined), _plain(self.not_examined))


_ODD_CYCLE = (
    "Programs whose scores cannot be conditioned on one side, because their score matrices form an odd cycle or their "
    "score inputs depend on a score matrix: they are only compared with the matrix-free method."
)

#: Statements in the order of the paper, its open problem and extensions last.
STATEMENTS: tuple[StatementRow, ...] = (
    StatementRow(
        "Definition 1 (i)-(iii)",
        "Initial vectors, MatMuls and Nonlins of a program have limit variables: Gaussian with the declared moments, "
        "Gaussian with covariance σ² E[Z^x Z^x'] for a common matrix and 0 otherwise, and φ of these.",
        ("test_netsor.py", "test_inputs.py", "test_exactness.py"),
        "Exact at width 16, for programs: initial vectors, images of new directions given everything before, their "
        "lengths, and every function. Exact at each width, for layers: the joint law, lengths and tails of the inputs.",
        "More than two neurons of each vector, except by lengths. Weights with other laws, for which nothing is exact "
        "at finite width.",
    ),
    StatementRow(
        "Fact 1",
        "Averages over neurons of ψ(h¹, …, h^k) converge almost surely to E ψ(Z^{h¹}, …, Z^{h^k}), ψ pseudo-Lipschitz.",
        ("test_fact1.py",),
        "In the limit: x·x'/n deviates from E[Z^x Z^x'], computed by Definition 1, as n^{-1/2} at widths 32, 128 and "
        "512, for the examples and for random programs without scores.",
        "Almost sure convergence, because draws at different widths are separate. ψ other than the product of the last "
        "two vectors made without scores.",
    ),
    StatementRow(
        "Definition 1 (iv), Proposition 8",
        "Scores converge in distribution, jointly, to p°: Gaussian with the covariance of formula (*), and independent "
        "of every Z.",
        (
            "test_program_scores.py",
            "test_scores.py",
            "test_independence.py",
            "test_theorem1.py",
            "test_rates.py",
            "test_clt.py",
            "test_outputs.py",
            "test_exactness.py",
        ),
        "Exact at finite width, for programs and layers: scores given one side of each are Gaussian with formula (*), "
        "and uncorrelated with that side, also in size. In the limit: their dependence on the inputs falls as 1/n, by "
        "exact moments. The law of a layer's score, and of a projection of a program's scores at width 512, is no "
        "further from its limit than computed. The computed law of a sum of scores approaches its limit as 1/n, or as "
        "n^{-1/2} for a cycle of three matrices.",
        _ODD_CYCLE + " Independence is examined linearly and in sizes only.",
    ),
    StatementRow(
        "Assumption 1",
        "Inputs of scores are bounded; (a) score matrices are used for nothing else; (b) no score has the same matrix "
        "on both sides, while other sharing is permitted.",
        ("test_assumption1.py", "test_scores.py", "test_independence.py", "test_conditional_gaussianity.py"),
        "Exact at finite width: permitted sharing has formula (*); W_Q = W_K gives scores the mean σ²√n x^i·x^j/n; W_V "
        "= W_K gives averages of outputs a mean of order n^{-1/2}, absent in the limit; a score of a vector made by "
        "its own matrix has 1 + 2/n² times the variance. For simulators: no linear trace of undeclared sharing between "
        "W_Q, W_K, W_V and heads.",
        "Whether these conditions are necessary: the moments tried approach those of Definition 1 without them. "
        "Unbounded φ is examined like bounded φ; `Program.coverage()` marks it as not proved.",
    ),
    StatementRow(
        "Theorem 1",
        "Averages over neurons of bounded pseudo-Lipschitz ψ of outputs converge in distribution to E[ψ(Z^{h¹}, …, "
        "Z^{h^k}) given p°], a random variable.",
        (
            "test_theorem1.py",
            "test_averages.py",
            "test_conditional_gaussianity.py",
            "test_non_gaussianity.py",
            "test_exactness.py",
        ),
        "In the limit: the average of the square of an output deviates from its conditional expectation at the drawn "
        "scores as n^{-1/2}, at widths 32, 128 and 512. For one layer and four bounded ψ: averages over all neurons "
        "have the mean and variance of E[ψ given p°], after removing the order 1/n. Exact at finite width, for layers: "
        "outputs given scores and values are Gaussian and independent over neurons, and their joint law is not the "
        "Gaussian of the same covariance.",
        "Other bounded ψ: five functions stand for the class, by moments. Programs with scores in earlier lines of "
        "vectors: see deep stacks below.",
    ),
    StatementRow(
        "Corollary 2, Example 1",
        "For each neuron, outputs converge in distribution to their limit variables; for multi-head attention to "
        "H^{-1/2} Σ_a Σ_j softmax_j(p°) Z^v, Gaussian given p°.",
        (
            "test_corollary2.py",
            "test_outputs.py",
            "test_exactness.py",
            "test_scores.py",
            "test_conditional_gaussianity.py",
            "test_non_gaussianity.py",
            "test_draws.py",
            "test_rates.py",
            "test_regimes.py",
            "test_weights.py",
        ),
        "Exact at finite width: results and scores of programs have the joint law of the matrix-free method, layers "
        "that of the collapsed one, values have Wishart Gram matrices, draws are independent. In the limit, for "
        "layers: the law of an output, of a projection and of a score is no further from the limit than computed for "
        "its width, a distance that falls as 1/n. Every regime does the same and rejects its neighbouring prediction. "
        "For other weight laws, by exact moments of one position: outputs forget the law of each matrix, and of h, as "
        "1/n or 1/n², except that of W^O with heads of fixed size, and of h under a nonlinearity.",
        "Full joint laws: a handful of numbers per draw is compared. The distance of outputs from their limit, for "
        "programs other than layers.",
    ),
    StatementRow(
        "Lemma 4",
        "|Σ x|^d ≤ k^{d-1} Σ |x|^d for k numbers x and d ≥ 1.",
        ("test_inequalities.py",),
        "For all numbers that hypothesis finds, up to rounding; no smaller constant holds.",
        "More than 12 numbers, d above 8.",
    ),
    StatementRow(
        "Proposition 6",
        "Compositions and products of pseudo-Lipschitz functions are pseudo-Lipschitz.",
        ("test_inequalities.py",),
        "For all pairs of ten functions, with the constants and orders of the proof, at all numbers that hypothesis "
        "finds; the orders are minimal.",
        "Functions of several variables, and functions beyond those ten.",
    ),
    StatementRow(
        "Lemma 7",
        "(x, y) ↦ xy is pseudo-Lipschitz.",
        ("test_inequalities.py",),
        "For all numbers that hypothesis finds: of order 2 with the constant 1/2, and no smaller one.",
        "Nothing known.",
    ),
    StatementRow(
        "Softmax is Lipschitz",
        "Differences of attention weights are bounded by a constant times those of the scores.",
        ("test_inequalities.py",),
        "For all scores that hypothesis finds: with the constant 1/2 in the Euclidean and the sup norm, and no smaller "
        "one.",
        "Rows of more than 12 scores, and scores beyond ±50.",
    ),
    StatementRow(
        "Lemma 9",
        "The central limit theorem for exchangeable rows of Blum, Chernoff, Rosenblatt and Teicher, on which "
        "Proposition 8 rests.",
        ("test_clt.py",),
        "Its conditions (Lemmas 10 to 16) for random combinations of scores, and its conclusion (Proposition 8).",
        "The theorem itself, which is older than the paper.",
    ),
    StatementRow(
        "Lemma 10, Lemma 11, Lemma 13",
        "The summands X_α = Σ t g¹_α g²_α over neurons are exchangeable, uncorrelated and have mean 0.",
        ("test_clt.py",),
        "Exact at finite width, with literal matrices of width 8: the signs of X_α, of X_α X_β and of the change under "
        "a swap are fair coins, and X_α given inputs and keys is Gaussian by formula (*).",
        "Exchangeability of more than two neurons at a time; combinations t other than one random one per layer.",
    ),
    StatementRow(
        "Lemma 12, Lemma 14, Lemma 15, Lemma 16",
        "E X_α² → σ², E X_α² X_β² → σ⁴, the third absolute moment is o(√n), and expectations of products of Gram "
        "entries converge.",
        ("test_clt.py",),
        "In the limit: the moments, exact given the Gram matrix of the inputs, approach their limits as 1/n from width "
        "64 to 1,024, with the predicted constants if φ is the identity. The third moment is bounded by the fourth.",
        "Products of more than four Gram entries, and programs other than layers.",
    ),
    StatementRow(
        "Deep stacks: conjecture",
        "The paper's open problem. Conjecture: given all earlier scores, the stream that a layer reads is Gaussian "
        "with the random kernel of these scores, and the next scores are Gaussian given this kernel.",
        ("test_stacks.py",),
        "In the limit, for stacks of attention layers: the law of an output approaches that of the recursion as 1/n, "
        "for random stacks of two and three layers, but not a recursion with averaged kernels. benchmarks/stacks.md "
        "has the distance for one to eight layers.",
        "A proof. The law of one position stands for all; with softmax and unit variances it hardly shows whether "
        "kernels are random. Stacks with other layers between attention.",
    ),
    StatementRow(
        "Tangent kernel: beyond the paper",
        "Hron et al. give the tangent kernel of infinitely many heads. With H heads and 1/√n scores it is a function "
        "of the scores and values of the limit: random, and not diagonal in the neurons.",
        ("test_tangent.py",),
        "Exact at finite width, for random layers: the kernel from Gram matrices alone has the law of literal "
        "gradients. In the limit, for one layer: its mean approaches that of infinitely many heads as 1/n; its "
        "variances, for one neuron and between two, are those of the limit after removing the order 1/n; with 1/n "
        "scores the contribution of W_Q and W_K falls as 1/n. At width 256 the law of an entry is the computed one and "
        "no further from the limit than computed; between neurons this distance falls as 1/n.",
        "Joint laws of entries: only the law of one entry is computed, at 48 quantiles of its limit. Rotary positions, "
        "stacks, and the kernel during training.",
    ),
    StatementRow(
        "Norms and blocks: beyond the paper",
        "RMS norm and layer norm divide by averages over neurons, which converge to expectations: the limit of a layer "
        "is that of the normalised kernel. For stacks with norms and perceptrons this is conjectured, like their "
        "limit.",
        ("test_norms.py",),
        "Exact at finite width, for random layers: draws from Gram matrices have the law of literal matrices, and "
        "under odd φ the norms differ by one neuron. In the limit: under relu each norm has a different limit, "
        "approached as 1/n; six encoder blocks approach theirs as 1/n, with the norm before and after.",
        "Gains and biases of norms, which are 1 and 0 at initialisation. Laws of blocks, except the mean correlation "
        "of positions. Other mixers than attention, and training.",
    ),
    StatementRow(
        "Long sequences: beyond the paper",
        "For large width, then large length: with softmax the squared distance of attention from uniform tends to "
        "e^{σ²} - 1, and with σ² = b² ln s few positions keep a share of attention if b > √2.",
        ("test_long.py",),
        "In the limit: the distance of draws has the computed value after removing the order 1/n, for full heads, "
        "heads of two neurons, and tied queries and keys; computed values approach their limits as 1/s with the right "
        "constant. On both sides of the transition shares approach their limits: as a power of s below, as 1/ln s "
        "above.",
        "Large length first, or both together. Distinguishable positions, maps other than softmax, b near √2.",
    ),
)

_HEADER = ("statement", "in `properties/`", "examined", "not examined")


def render() -> str:
    """Return the table of statements in Markdown.

    Examples
    --------
    >>> render().splitlines()[0]
    '| statement | in `properties/` | examined | not examined |'
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (_HEADER, *(row.cells() for row in STATEMENTS))]
    return "\n".join([lines[0], "|" + "---|" * len(_HEADER), *lines[1:]])


def _plain(text: str) -> str:
    """Escape stars and bars for Markdown."""
    return text.replace("*", "\\*").replace("|", "\\|")
