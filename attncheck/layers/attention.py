"""`AttentionLayer`: a multi-head attention layer at initialisation."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import check_boolean, check_integer, naming, refuse, refuse_unknown, validate
from attncheck._lib.streams import digest, set_fields
from attncheck._lib.toml import read_table
from attncheck.layers.draws import Draws
from attncheck.layers.inputs import DEFAULT_CLIP, Activation, Norm, check_inputs, check_std
from attncheck.layers.nonlinearity.families import known
from attncheck.layers.nonlinearity.function import Nonlinearity
from attncheck.layers.parts import PARTS, named_function
from attncheck.layers.parts.attention_map import AttentionMap, check_map, map_of
from attncheck.layers.parts.mask import check_mask, visible

# Type of a field that holds a name, the import path of a function, or a function.
NamedOrFunction = str | Callable[..., Any]

_EXPONENTS = {"1/sqrt(n)": 0.5, "1/n": 1.0}
SCORE_SCALINGS: tuple[str, ...] = tuple(_EXPONENTS)
_POWER = re.compile(r"n\^-(\d+(?:\.\d+)?)")
# With larger exponents, fourth powers of scores are 0 in double precision at a million neurons.
_MOST_EXPONENT = 8.0
#: Fields whose value may be a function.
NAMED_FIELDS = ("attention_map", "mask")


def check_scaling(field: str, value: Any) -> str:
    """Return a validated score scaling: a name such as "1/n" if the power of n has one, else "n^-exponent".

    Examples
    --------
    >>> check_scaling("score_scaling", "n^-1"), check_scaling("score_scaling", "n^-0.75")
    ('1/n', 'n^-0.75')
    """
    if isinstance(value, str) and value in SCORE_SCALINGS:
        return value
    power = _POWER.fullmatch(value) if isinstance(value, str) else None
    if power is None:
        choices = ", ".join(map(repr, SCORE_SCALINGS))
        refuse(field, value, "is not known", f"use one of {choices}, or another power, such as 'n^-0.75'")
    exponent = float(power[1])
    if exponent > _MOST_EXPONENT:
        refuse(
            field, value, "makes scores too small for double precision", f"use n^-{_MOST_EXPONENT:g} or a higher power"
        )
    names = {number: name for name, number in _EXPONENTS.items()}
    return names.get(exponent, f"n^-{exponent!r}".removesuffix(".0"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """A multi-head attention layer at initialisation, with the law of its inputs.

    With X the (seq_len, width) matrix of inputs x^i and ν = `head_dim`, or `width` if that is None, head a has
    scores P^a = ν^{-1/2} (X W^{Q,a})(X W^{K,a})ᵀ and weights A^a, the attention map of each row of P^a, masked.
    The layer returns y^i = H^{-1/2} Σ_a Σ_j A^a_ij W^{O,a} W^{V,a} x^j (Example 1 of the paper). Entries of W^Q,
    W^K, W^V have variance std²/width, those of W^O std²/ν. The inputs are x^i = norm(φ(h^i + e^i)), h^i = W^i h,
    h ~ N(0, I). Defaults are those of the paper's Appendix A.

    Parameters
    ----------
    width : int
        n, the number of neurons of each input and output.
    seq_len : int
        s, the number of positions (the paper's spatial dimension).
    num_heads : int
        H, the number of heads.
    head_dim : int or None
        ν, the neurons per head. None: n, as in the theorem.
    score_scaling : {"1/sqrt(n)", "1/n"}, or str
        Factor of the scores: the theorem's 1/√n, Yang's 1/n, or another power such as "n^-0.75", where n stands for
        `head_dim` if that is set. With a smaller factor than 1/√n, scores are 0 in the limit (unless W^Q = W^K); with a
        larger one they grow with n, and no limit is computed.
    attention_map : {"softmax", "linear", "relu", "sigmoid"}, or callable
        Weights A from scores P: "softmax" acts on each row; "linear", "relu" and "sigmoid" map each score p to p, to
        max(p, 0)/s and to 1/(1 + exp(-p + log s)). A vectorised function of (scores, visible), both of shape (..., s),
        that returns weights is also accepted.
    mask : {"none", "causal"}, or callable
        With "causal" position i attends to j ≤ i only. A vectorised function of positions (i, j) that returns True
        where i attends to j is also accepted; each position must attend to itself.
    num_kv_heads : int or None
        Grouped-query attention: the number of groups of consecutive heads that share W^K and W^V; a divisor of
        `num_heads`. None: no sharing.
    query_std, key_std, value_std, output_std : float
        σ_Q, σ_K, σ_V, σ_O; from 1e-6 to 1e6.
    head_scaling : bool
        Whether to multiply the sum over heads by H^{-1/2}.
    activation : {"clip", "relu", "tanh", "erf", "identity"}
        φ.
    clip : float
        The bound C of clip(h, -C, C), from 1e-12 to 1e30; only with ``activation="clip"``.
    input_std : float
        Standard deviation of the coordinates of h^i; from 1e-6 to 1e6.
    input_correlation : float
        Correlation ρ of h^i and h^j, i ≠ j, in [0, 1]: W^i is √ρ times a shared matrix plus
        √(1-ρ) times a separate one.
    position_std : float
        Standard deviation of the coordinates of the position vectors e^i, Gaussian and independent of h; 0, or
        from 1e-6 to 1e6.
    position_reach : float
        ℓ in Cov(e^i, e^j) = position_std² exp(-(i - j)²/(2ℓ²)), from 0.01 to 100; at most 2 with
        ``input_correlation=1``.
    tied_query_key : bool
        Whether W^Q = W^K, which Assumption 1 excludes; requires ``score_scaling="1/n"``, equal standard deviations and
        no groups.
    rotary_base : float or None
        Base b of rotary positions (Llama): queries and keys at position j are rotated in `head_dim`/2 planes,
        plane f by the angle j b^{-2f/head_dim}. From 1.5 to 1e12; None: no rotation. Requires an even `head_dim`;
        not with `tied_query_key`. How neurons are paired does not affect any law.
    norm : {"rms", "layer"} or None
        Norm of φ(h^i + e^i) without gain and bias: "rms" divides by ‖x‖/√n, "layer" first subtracts the mean.
        Vectors that are 0 (constant for "layer") become 0. Simulators that take inputs receive them unnormalised.

    window : int or None
        Sliding window: position i attends only to positions j less than `window` away, where the mask allows it.
    softcap : float or None
        Cap c of the scores: the map receives c tanh(P/c). From 1e-3 to 1e6.
    sink : float, sequence of float or None
        exp(sink) is added to the denominator of softmax; 0 adds 1. One number for all heads, or one per head, from
        -30 to 30.
    bias_slopes : "alibi", sequence of float or None
        Slope m of each head: m times the distance of i and j is subtracted from P_ij. "alibi" stands for ALiBi's
        slopes, 2^{-8h/H} for head h = 1, …, H if H is a power of 2. Scores include the bias.
    bias_std : float
        Standard deviation of random biases b_{j-i}, one per head and relative position (T5), that are added to P_ij;
        from 0 to 1000.
    qk_norm : bool
        Whether each head applies an RMS norm to its queries and keys, q ↦ √ν q/‖q‖. `query_std` and `key_std` are then
        the gains. Draws contain keys, and Gram matrices of keys, as they are before the norm, but with the gain.

    Raises
    ------
    InputError
        For an impossible value or combination.

    Notes
    -----
    Functions at the top level of a module are recorded by import path, as ``module:name``, which is also accepted as
    a value. Other functions are used as they are, and cannot be read back from records.

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=4, num_heads=2)
    >>> layer.head_width, layer.kv_heads
    (64, 2)
    >>> AttentionLayer.from_dict(layer.to_dict()) == layer
    True
    """

    kind: ClassVar[str] = "layer"
    drawn: ClassVar[type[Draws]] = Draws

    width: int
    seq_len: int = 4
    num_heads: int = 2
    head_dim: int | None = None
    score_scaling: str = "1/sqrt(n)"
    attention_map: NamedOrFunction = "softmax"
    mask: NamedOrFunction = "none"
    num_kv_heads: int | None = None
    query_std: float = 1.0
    key_std: float = 1.0
    value_std: float = 1.0
    output_std: float = 1.0
    head_scaling: bool = True
    activation: Activation = "clip"
    clip: float = DEFAULT_CLIP
    input_std: float = 1.0
    input_correlation: float = 0.0
    position_std: float = 0.0
    position_reach: float = 1.0
    tied_query_key: bool = False
    rotary_base: float | None = None
    norm: Norm | None = None
    window: int | None = None
    softcap: float | None = None
    sink: float | tuple[float, ...] | None = None
    bias_slopes: str | tuple[float, ...] | None = None
    bias_std: float = 0.0
    qk_norm: bool = False

    def __post_init__(self) -> None:
        validate(self, "width", check_integer, 1, "pass the number of neurons, e.g. width=64")
        validate(self, "seq_len", check_integer, 1, "pass the number of positions, e.g. seq_len=4")
        validate(self, "num_heads", check_integer, 1, "pass the number of heads, e.g. num_heads=2")
        if self.head_dim is not None:
            validate(self, "head_dim", check_integer, 1, "pass the number of neurons per head, or None for the width")
        if self.num_kv_heads is not None:
            remedy = "pass a divisor of num_heads, or None for a key and value matrix per head"
            validate(self, "num_kv_heads", check_integer, 1, remedy)
            if self.num_heads % self.num_kv_heads:
                refuse("num_kv_heads", self.num_kv_heads, f"does not divide num_heads={self.num_heads}", remedy)
        validate(self, "score_scaling", check_scaling)
        for field in ("query_std", "key_std", "value_std", "output_std"):
            validate(self, field, check_std)
        validate(self, "head_scaling", check_boolean, "pass True to multiply the sum over heads by H^{-1/2}, or False")
        check_inputs(self)
        validate(self, "tied_query_key", check_boolean, "pass True for W^Q = W^K, or False")
        if self.tied_query_key:
            self._check_tied()
        validate(self, "attention_map", check_map)
        validate(self, "mask", check_mask, self.seq_len)
        for part in PARTS:
            if any(getattr(self, field) is not absent for field, absent in part.fields.items()):
                for field, value in part.settle(self).items():
                    object.__setattr__(self, field, value)
        if self.norm == "layer" and self.width == 1:
            refuse("norm", self.norm, "makes a single neuron 0", "use width=2 or more, or norm='rms'")

    def _check_tied(self) -> None:
        if self.score_scaling != "1/n":
            remedy = "use score_scaling='1/n', or separate matrices"
            refuse("tied_query_key", True, f"has no limit with score_scaling={self.score_scaling!r}", remedy)
        if self.query_std != self.key_std:
            refuse("key_std", self.key_std, f"differs from query_std={self.query_std:g} of the same matrix", "use one")
        if self.num_kv_heads is not None:
            remedy = "leave num_kv_heads out"
            problem = "together with tied_query_key makes heads share their queries too"
            refuse("num_kv_heads", self.num_kv_heads, problem, remedy)

    @property
    def head_width(self) -> int:
        """ν, the neurons per head: `head_dim`, or `width` if that is None."""
        return self.width if self.head_dim is None else self.head_dim

    @property
    def kv_heads(self) -> int:
        """Number of key heads, each with its own W^K and W^V."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def group_size(self) -> int:
        """Number of heads that share one W^K and one W^V."""
        return self.num_heads // self.kv_heads

    @functools.cached_property
    def map(self) -> AttentionMap:
        """The attention map, with its cap and sink."""
        return map_of(self)

    @property
    def visible(self) -> BoolArray:
        """The (seq_len, seq_len) mask, True where position i may attend to position j; read-only."""
        return visible(self.mask, self.window, self.seq_len)

    def attention_weights(self, scores: FloatArray) -> FloatArray:
        """Return the attention weights A of score matrices P, both (..., seq_len, seq_len)."""
        return self.map.weights(scores, self.visible)

    @property
    def phi(self) -> Nonlinearity:
        """The activation φ of the inputs."""
        return known(self.activation, *([self.clip] if self.activation == "clip" else []))

    @property
    def hidden_std(self) -> float:
        """Standard deviation of the coordinates of h^i + e^i."""
        return math.hypot(self.input_std, self.position_std) if self.position_std else self.input_std

    @property
    def input_scale(self) -> float:
        """Approximate standard deviation of the inputs: 1 if normalised, else `hidden_std`."""
        return 1.0 if self.norm else self.hidden_std

    @property
    def equal_inputs(self) -> bool:
        """Whether all positions have the same input."""
        return self.input_correlation == 1.0 and not self.position_std

    @property
    def score_factor(self) -> float:
        """Factor of the scores in addition to ν^{-1/2}: 1 for "1/sqrt(n)", else ν^{1/2 - `score_exponent`}."""
        return float(self.head_width ** (0.5 - self.score_exponent))

    @property
    def score_exponent(self) -> float:
        """Exponent α of the factor ν^{-α} of the scores.

        As ν → ∞, scores grow if α < 1/2, and scores with separate W^Q and W^K vanish if α > 1/2.
        """
        power = _POWER.fullmatch(self.score_scaling)
        return float(power[1]) if power else _EXPONENTS[self.score_scaling]

    @property
    def head_factor(self) -> float:
        """H^{-1/2}, or 1 without `head_scaling`."""
        return float(self.num_heads**-0.5) if self.head_scaling else 1.0

    @property
    def weight_entries(self) -> int:
        """Number of weight entries per draw if all matrices are sampled explicitly; a measure of the cost."""
        inputs = (self.seq_len if self.input_correlation < 1.0 else 0) + (self.input_correlation > 0.0)
        return inputs * self.width**2 + self.head_entries

    @property
    def head_entries(self) -> int:
        """`weight_entries` without the entries of the input matrices W^i."""
        matrices = (2 - self.tied_query_key) * self.num_heads + 2 * self.kv_heads
        return matrices * self.head_width * self.width

    @property
    def stored_entries(self) -> int:
        """Number of array entries to store per draw: all scores, and one vector per position."""
        return self.num_heads * self.seq_len**2 + self.seq_len * self.width

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        refuse_unknown("changes", changes, type(self))
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as built-in types, which `from_dict` accepts; functions are given by import path."""
        fields = {name: _as_text(value) for name, value in dataclasses.asdict(self).items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @functools.cached_property
    def key(self) -> str:
        """Digest of the non-default fields: the layer's permanent identifier in random streams and records."""
        return digest({name: _as_text(value) for name, value in set_fields(self).items()})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], trust: Sequence[str] | None = ()) -> Self:
        """Build a layer from a mapping of field names.

        Parameters
        ----------
        fields : mapping
            As `to_dict` returns it.
        trust : sequence of str, or None
            Modules whose functions may be imported. With None, functions are neither imported nor checked, and the
            layer can only be described, not drawn.

        Raises
        ------
        InputError
            For unknown or missing fields, and for functions of untrusted modules.
        """
        if not isinstance(fields, Mapping):
            refuse("layer", fields, "must be a table of fields", "pass a mapping such as {'width': 64}")
        refuse_unknown("layer", fields, cls)
        if "width" not in fields:
            refuse("width", None, "is missing", "add width, the number of neurons, e.g. width = 64")
        for name in NAMED_FIELDS if trust is not None else ():
            named_function.check_trusted(name, fields.get(name), trust or ())
        return cls(**fields)

    def to_toml(self) -> str:
        """Return a ``[layer]`` table without the fields that are None."""
        import tomli_w

        return tomli_w.dumps({"layer": {k: v for k, v in self.to_dict().items() if v is not None}})

    @classmethod
    def from_toml(cls, text: str | Path, trust: Sequence[str] = ()) -> Self:
        """Read the ``[layer]`` table of a TOML text, or of the file at a `Path`; see `from_dict` for `trust`."""
        table = read_table(text, "layer")
        with naming(text):
            return cls.from_dict(table, trust)

    def describe(self) -> str:
        """Return a short name with the non-default fields, e.g. ``n=64 s=4 H=2 causal``."""
        parts = [f"n={self.width}", f"s={self.seq_len}", f"H={self.num_heads}"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("width", "seq_len", "num_heads") and value != field.default:
                text = _as_text(value)
                parts.append(text if field.name in ("mask", "activation") else f"{field.name}={text}")
        return " ".join(parts)


def _as_text(value: Any) -> Any:
    """Return a field's value unchanged, or a function's import path or name."""
    return named_function.label(value) if callable(value) else value


def check_layer(layer: Any, remedy: str = "pass attncheck.AttentionLayer(width=...)") -> AttentionLayer:
    """Return `layer` if it is an `AttentionLayer`, else raise `InputError`."""
    if not isinstance(layer, AttentionLayer):
        refuse("layer", layer, "is not an AttentionLayer", remedy)
    return layer
