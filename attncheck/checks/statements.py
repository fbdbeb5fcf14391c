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
        """Return the cells of its row in the table.

        Examples
        --------
        >>> StatementRow("Lemma 0", "0 = 0.", ("test_zero.py",), "Formula (*).", "Nothing.").cells()[:2]
        ('**Lemma 0.** 0 = 0.', '`test_zero.py`')
        """
        files = "<br>".join(f"`{module}`" for module in self.modules)
        return (f"**{self.name}.** {_plain(self.statement)}", files, _plain(self.examined), _plain(self.not_examined))


_ODD_CYCLE = (
    "Programs in which no side of the scores can be given, those whose score matrices form an odd cycle and those "
    "whose score inputs depend on a score matrix, are left out of the whitening, and only compared with the "
    "matrix-free method."
)

#: Statements in the order of the paper, its open problem and extensions last.
STATEMENTS: tuple[StatementRow, ...] = (
    StatementRow(
        "Definition 1 (i)-(iii)",
        "Initial vectors, MatMuls and Nonlins of a program have limit variables: Gaussian with the declared moments, "
        "Gaussian with covariance σ² E[Z^x Z^x'] where the matrix is the same and 0 where it is not, and φ of these.",
        ("test_netsor.py", "test_inputs.py", "test_exactness.py"),
        "Exact at width 16, for programs: initial vectors, images of new directions given all that came before, their "
        "lengths, and every function line by line. Exact at each width, for layers: law, lengths and tails of the "
        "inputs, and their joint law. The covariances enter the limits of the rows below.",
        "Two neurons of each vector, lengths over all. Weights with another law than the Gaussian: for them nothing is "
        "exact at finite width.",
    ),
    StatementRow(
        "Fact 1",
        "Averages over neurons of ψ(h¹, …, h^k) converge almost surely to E ψ(Z^{h¹}, …, Z^{h^k}), ψ pseudo-Lipschitz.",
        ("test_fact1.py",),
        "In the limit: x·x'/n deviates from E[Z^x Z^x'], computed by Definition 1, as n^{-1/2} at widths 32, 128 and "
        "512, for the examples and for random programs without scores.",
        "Almost sure convergence: draws at different widths are separate, and the order of a mean deviation says "
        "nothing of single sequences. ψ other than the product of the last two vectors made without scores: one "
        "function stands for the class.",
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
        "Exact at finite width: scores given one side of each are Gaussian with formula (*), and uncorrelated, sizes "
        "included, with what they are given, for programs and for layers. In the limit: their dependence on the "
        "inputs falls as 1/n, from exact moments, and the law of a score of a layer, and of a projection of the scores "
        "of a program at width 512, is no further from its limit than computed for its width. The computed law of a "
        "sum of scores approaches its limit as 1/n, and as n^{-1/2} where three matrices go round in a cycle.",
        _ODD_CYCLE + " Independence is examined linearly and in sizes: a dependence that shows in neither is not seen.",
    ),
    StatementRow(
        "Assumption 1",
        "What enters a score is bounded; (a) matrices of scores make nothing else; (b) no score has one matrix on both "
        "sides, while other sharing is permitted.",
        ("test_assumption1.py", "test_scores.py", "test_independence.py", "test_conditional_gaussianity.py"),
        "Exact at finite width: permitted sharing has formula (*); W_Q = W_K gives scores the mean σ²√n x^i·x^j/n; "
        "W_V = W_K gives averages of outputs a mean of order n^{-1/2}, which the limit does not have; a score of what "
        "its own matrix made has 1 + 2/n² times the variance. Of a simulator: W_Q, W_K, W_V and heads leave no "
        "linear trace of sharing that was not declared.",
        "Whether (a), boundedness and inputs without score matrices are necessary: the moments tried approach those of "
        "Definition 1 without them, and the authors call boundedness not essential. Unbounded φ is examined like "
        "bounded φ, and `Program.coverage()` says that the paper does not prove it.",
    ),
    StatementRow(
        "Theorem 1",
        "Averages over neurons of bounded pseudo-Lipschitz ψ of outputs converge in distribution to "
        "E[ψ(Z^{h¹}, …, Z^{h^k}) given p°], a random variable.",
        (
            "test_theorem1.py",
            "test_averages.py",
            "test_conditional_gaussianity.py",
            "test_non_gaussianity.py",
            "test_exactness.py",
        ),
        "In the limit: the average of the square of an output deviates from its conditional expectation at the scores "
        "of the draw as n^{-1/2}, at widths 32, 128 and 512. For one layer and four bounded ψ: mean and variance of "
        "the averages over all neurons are those of E[ψ given p°], with the order 1/n taken off by widths 128 and "
        "256. Exact at finite width, for layers: outputs given scores and values are Gaussian, independent over "
        "neurons, and the joint law is not that of the Gaussian with the same covariance.",
        "Every bounded ψ: five functions stand for the class, by moments. Programs with "
        "scores in earlier lines of vectors: deep stacks, the last row of this table.",
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
        "its width, a distance that falls as 1/n. So it does in every regime, where the neighbouring prediction is "
        "rejected. Of weights of other laws: by exact moments of one position outputs forget that of each matrix, and "
        "that of h, as 1/n or 1/n²; they keep that of W^O with heads of a fixed size, and of h under a nonlinearity.",
        "Every dependence: a handful of numbers of a draw is compared. The distance of outputs of programs that are no "
        "layers to their limit: no exact law at finite width is computed for them.",
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
        "finds; orders are the least.",
        "Functions of several variables, and functions beyond those ten: the proof is for all.",
    ),
    StatementRow(
        "Lemma 7",
        "(x, y) ↦ xy is pseudo-Lipschitz.",
        ("test_inequalities.py",),
        "For all numbers that hypothesis finds: of order 2 with the constant 1/2, and with none smaller.",
        "Nothing that is known of.",
    ),
    StatementRow(
        "Softmax is Lipschitz",
        "Differences of attention weights are bounded by a constant times those of the scores.",
        ("test_inequalities.py",),
        "For all scores that hypothesis finds: with the constant 1/2 in the Euclidean and in the sup norm, and none "
        "smaller.",
        "Rows of more than 12 scores, and scores beyond ±50.",
    ),
    StatementRow(
        "Lemma 9",
        "The central limit theorem for exchangeable rows that Proposition 8 rests on, of Blum, Chernoff, Rosenblatt "
        "and Teicher.",
        ("test_clt.py",),
        "Its conditions, which are Lemmas 10 to 16, for random combinations of scores; its conclusion, which is "
        "Proposition 8.",
        "The theorem itself, which is older than the paper: for all arrays that satisfy its conditions.",
    ),
    StatementRow(
        "Lemma 10, Lemma 11, Lemma 13",
        "The summands X_α = Σ t g¹_α g²_α over neurons are exchangeable, of mean 0, and uncorrelated.",
        ("test_clt.py",),
        "Exact at finite width, with literal matrices of width 8: signs of X_α, of X_α X_β and of what a swap turns "
        "are fair coins, and X_α given inputs and keys is Gaussian by formula (*).",
        "Exchangeability of more than two neurons at a time; combinations t other than one random one for each layer.",
    ),
    StatementRow(
        "Lemma 12, Lemma 14, Lemma 15, Lemma 16",
        "E X_α² → σ², E X_α² X_β² → σ⁴, the third absolute moment is o(√n), and expectations of products of Gram "
        "entries converge.",
        ("test_clt.py",),
        "In the limit: the moments, exact given the Gram matrix of the inputs, approach their limits as 1/n from width "
        "64 to 1,024, and have their constants where φ is the identity. The third moment through a bound by the "
        "fourth.",
        "Products of more than four Gram entries, and programs that are no layers.",
    ),
    StatementRow(
        "Deep stacks: conjecture",
        "The paper's open problem. Conjectured here: given all earlier scores the stream that a layer reads is "
        "Gaussian, its kernel is the random one that these scores made, and the next scores are Gaussian given it.",
        ("test_stacks.py",),
        "In the limit, for stacks of attention layers: the law of an output approaches that of the recursion as 1/n, "
        "for random stacks of two and three layers, and a recursion with averaged kernels is not approached. The "
        "distance is computed, at widths 32 and 256. benchmarks/stacks.md has it for one to eight layers.",
        "That it is so: nothing of this is proved. The law of one position stands for all; with softmax and unit "
        "variances it hardly shows whether kernels are random. Stacks with other layers between attention.",
    ),
    StatementRow(
        "Tangent kernel: beyond the paper",
        "Hron et al. have that of infinitely many heads. With H heads and 1/√n scores it is, given the scores and "
        "values of the limit, a function of these: random, and not diagonal in the neurons.",
        ("test_tangent.py",),
        "Exact at finite width, for random layers: the kernel from Gram matrices alone has the law of literal "
        "gradients. In the limit, for one layer: its mean approaches that of infinitely many heads as 1/n; its "
        "variance, and that between two neurons, are the limit's with the order 1/n taken off; with 1/n scores what "
        "W_Q and W_K add falls as 1/n. The whole law of an entry at width 256, of one neuron and between two, is the "
        "computed one, and no further from the limit than computed; between neurons that distance falls as 1/n.",
        "Entries together: the law of one at a time is computed, at 48 quantiles of its limit. Rotary positions, "
        "stacks, and what training makes of the kernel.",
    ),
    StatementRow(
        "Norms and blocks: beyond the paper",
        "RMS norm and layer norm divide by averages over neurons, which tend to expectations: the limit of a layer is "
        "that of the normalised kernel. For stacks with norms and perceptrons this is conjectured, like their limit.",
        ("test_norms.py",),
        "Exact at finite width, for random layers: what Gram matrices alone give has the law of literal matrices, and "
        "under odd φ the norms differ by one neuron. In the limit: under relu each norm has a limit of its own, "
        "approached as 1/n; six blocks of an encoder approach theirs as 1/n, with the norm before and after.",
        "Gains and biases of norms, which are 1 and 0 at initialisation. Of blocks the mean correlation of positions "
        "stands for the law. Other mixers than attention, and what training makes of any of it.",
    ),
    StatementRow(
        "Long sequences: beyond the paper",
        "The width first, then the length: with softmax the squared distance of attention from uniform tends to "
        "e^{σ²} - 1, and with σ² = b² ln s few positions keep a share of attention where b > √2.",
        ("test_long.py",),
        "In the limit: the distance of draws has the computed value with the order 1/n taken off, full heads, heads of "
        "two neurons, and tied queries and keys; computed values approach their limits as 1/s with the right constant. "
        "On both sides of the transition shares approach their limits: as a power of s below, as 1/ln s beyond.",
        "The length first, or both together. Positions that are told apart, maps other than softmax, b near √2.",
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
