"""`AttentionStack`: attention layers in sequence at initialisation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from attncheck._lib.errors import check_boolean, check_choice, check_integer, refuse, refuse_unknown, validate
from attncheck._lib.streams import digest, set_fields
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.draws import StackDraws
from attncheck.layers.inputs import ACTIVATIONS, DEFAULT_CLIP, NORMS, Norm, check_std
from attncheck.layers.nonlinearity import gelu, relu
from attncheck.layers.parts import refuse_parts
from attncheck.layers.program.coverage import Coverage
from attncheck.layers.stack_program import Perceptron, StackProgram, expand_layers

#: Maximum depth: the program lines and kernels of all layers are in memory at the same time.
_DEEPEST = 1_000
_PERCEPTRONS = {"relu": relu, "gelu": gelu}
_ACTIVATIONS = "pass a name such as 'relu', or one for each layer, e.g. ('clip', 'relu')"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionStack:
    """A sequence of multi-head attention layers at initialisation, with the law of their inputs.

    The first stream is z^{(1),i} = h^i + e^i. Layer l, with its own matrices, maps x^{(l)} = norm(φ_l(z^{(l)})) to
    y^{(l)}. The next stream is z^{(l+1)} = y^{(l)}, or z^{(l)} + y^{(l)} with `residual`; the last one is the
    output. The norm of `layer` is the pre-norm of transformers; `post_norm` normalises the stream after each sum.
    With `mlp` a layer is a transformer encoder block: a perceptron u = W² φ(W¹ norm(z)) follows attention and
    enters the stream in the same way.

    The paper's theorem excludes scores that feed another MatMul: from two layers on, or with a perceptron,
    `attncheck.limit` returns a conjecture.

    Parameters
    ----------
    layer : AttentionLayer
        Description of every layer. The law of inputs in this description is used for the first layer only.
    depth : int
        Number of layers, from 1 to 1,000.
    activations : str or sequence of str, optional
        φ of every layer, or one per layer: "clip" (with the bound of `layer`), "relu", "tanh", "erf" or
        "identity". Default: the activation of `layer`.
    residual : bool
        Whether each layer adds its output to the stream instead of replacing the stream.
    post_norm : {"rms", "layer"} or None
        Norm of each stream after the first, without gain.
    mlp : {"relu", "gelu"} or None
        φ of the perceptrons, if any.
    mlp_ratio : int
        Number of hidden neurons of a perceptron, divided by the width.
    mlp_std : float
        Standard deviation of the entries of W¹ and W², times √fan_in; from 1e-6 to 1e6.

    Raises
    ------
    InputError
        For an impossible value or combination.

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=4, num_heads=2)
    >>> stack = AttentionStack(layer=layer, depth=3, activations=("clip", "relu", "tanh"), residual=True)
    >>> stack.describe()
    'n=64 s=4 H=2 depth=3 clip/relu/tanh residual (conjecture)'
    """

    kind: ClassVar[str] = "stack"
    drawn: ClassVar[type[StackDraws]] = StackDraws

    layer: AttentionLayer
    depth: int
    activations: str | Sequence[str] | None = None
    residual: bool = False
    post_norm: Norm | None = None
    mlp: Literal["relu", "gelu"] | None = None
    mlp_ratio: int = 4
    mlp_std: float = 1.0

    def __post_init__(self) -> None:
        check_layer(self.layer)
        refuse_parts(self.layer, "stack")
        validate(self, "depth", check_integer, 1, "pass the number of layers, e.g. depth=3", maximum=_DEEPEST)
        activations = self.layer.activation if self.activations is None else self.activations
        if not isinstance(activations, str | list | tuple):
            refuse("activations", activations, "is neither a name nor a list of names", _ACTIVATIONS)
        names = (activations,) * self.depth if isinstance(activations, str) else tuple(activations)
        if len(names) != self.depth:
            problem = f"must be one name, or {self.depth} names, one for each layer"
            refuse("activations", activations, problem, _ACTIVATIONS)
        for name in names:
            check_choice("activations", name, ACTIVATIONS)
        validate(self, "residual", check_boolean, "pass True to add to the stream, False to replace it")
        if self.post_norm is not None:
            validate(self, "post_norm", check_choice, NORMS)
        if self.post_norm == "layer" and self.width == 1:
            refuse("post_norm", self.post_norm, "makes a single neuron 0", "use width=2 or more, or 'rms'")
        self._check_mlp()
        object.__setattr__(self, "activations", names)

    def _check_mlp(self) -> None:
        if self.mlp is None:
            for name, default in (("mlp_ratio", 4), ("mlp_std", 1.0)):
                if (value := getattr(self, name)) != default:
                    refuse(name, value, "has no effect without mlp", "leave it out, or pass mlp='gelu'")
            return
        validate(self, "mlp", check_choice, tuple(_PERCEPTRONS))
        validate(self, "mlp_ratio", check_integer, 1, "pass the number of hidden neurons / width, e.g. mlp_ratio=4")
        validate(self, "mlp_std", check_std)

    @property
    def perceptron(self) -> Perceptron | None:
        """The perceptron that follows attention in each layer, or None."""
        if self.mlp is None:
            return None
        return Perceptron(_PERCEPTRONS[self.mlp](), self.mlp_ratio * self.width, self.mlp_std)

    @property
    def width(self) -> int:
        """n, the number of neurons of every vector."""
        return self.layer.width

    @property
    def seq_len(self) -> int:
        """s, the number of positions."""
        return self.layer.seq_len

    @property
    def num_heads(self) -> int:
        """H, the number of heads of each layer."""
        return self.layer.num_heads

    @functools.cached_property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The layers, each with its own activation."""
        bounds = {"clip": self.layer.clip}
        return tuple(self.layer.replace(activation=name, clip=bounds.get(name, DEFAULT_CLIP)) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.activations or ())

    @property
    def weight_entries(self) -> int:
        """Number of weight entries to sample per draw if all matrices are sampled, a measure of the cost."""
        single = self.layer.weight_entries
        hidden = self.perceptron.neurons if self.perceptron else 0
        return single + (self.depth - 1) * self.layer.head_entries + 2 * self.depth * hidden * self.width

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        refuse_unknown("changes", changes, type(self))
        if "depth" in changes and "activations" not in changes and len(set(self._names)) == 1:
            changes = {**changes, "activations": self._names[0]}
        return dataclasses.replace(self, **changes)

    def expand(self) -> StackProgram:
        """Return the Netsor program of the stack, with separate matrices per layer.

        The program has no lines for norms; samplers apply them separately.
        """
        return expand_layers(self.layers, self.residual, self.perceptron)

    def coverage(self) -> Coverage:
        """Return the paper's statement about each line of the program, without norms.

        Examples
        --------
        >>> stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=1, num_heads=1), depth=2)
        >>> print(stack.coverage().worst.statement)
        conjecture: scores feed a later MatMul
        """
        return self.expand().program.coverage()

    @property
    def key(self) -> str:
        """Digest of the fields: the stack's permanent identifier in random streams and records."""
        return digest({**set_fields(self), "layer": self.layer.key, "activations": list(self._names)})

    def describe(self) -> str:
        """Return a short name with the non-default fields."""
        names = self._names
        labels = names if len(set(names)) > 1 else names[:1]
        plain = self.layer.replace(activation="clip", clip=DEFAULT_CLIP)
        parts = [plain.describe(), f"depth={self.depth}"]
        if labels != ("clip",):
            parts.append("/".join(labels))
        if "clip" in names and self.layer.clip != DEFAULT_CLIP:
            parts.append(f"clip={self.layer.clip}")
        parts += ["residual"] * self.residual + [f"post_norm={self.post_norm}"] * bool(self.post_norm)
        if self.mlp:
            parts.append(f"mlp={self.mlp}")
            parts += [f"mlp_ratio={self.mlp_ratio}"] * (self.mlp_ratio != 4) + [f"mlp_std={self.mlp_std}"] * (
                self.mlp_std != 1.0
            )
        parts += ["(conjecture)"] * (self.depth > 1 or bool(self.mlp))
        return " ".join(parts)
