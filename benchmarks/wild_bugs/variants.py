"""Random configurations of right attention modules, and ten kinds of mutations of those written by hand.

Configurations need no framework; the modules made from them are in the modules of VARIANTS.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.wild_bugs.bug import Call, Make, installed

#: What the first line of a report must match for a mutation to count as named.
KINDS = {
    "mask off by one": r"sees i \+ 1|off by one",
    "inverted mask": r"mask is inverted|attends? to nothing|anticausal",
    "scale": r"scores times",
    "axis": r"over the (query axis|heads)",
    "merge": r"merged without a transpose",
    "leak": r"change with inputs at",
    "tiling": r"tiled",
    "dropout": r"two calls on one input differ",
    "sharing": r"same matrix|same parameter",
    "unused parameter": r"never used",
}
#: Modules of this package with right layers, and their requirements.
VARIANTS = {
    "variants_torch": ("torch",),
    "variants_transformers": ("torch", "transformers"),
    "variants_flax": ("jax", "flax"),
    "variants_equinox": ("jax", "equinox"),
    "variants_keras": ("torch", "keras"),
}
#: Hand-written modules, and mutants of each kind, for one seed.
WRITTEN, PER_KIND = 60, 6


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A right module.

    Attributes
    ----------
    name : str
    make : callable
        Returns the module, freshly initialised.
    width : int
    call : callable or None
        None for the framework's usual call.
    kinds : tuple of str
        Mutations that apply to it.
    """

    name: str
    make: Make
    width: int
    call: Call | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A right module with one change; `right` makes the unchanged one, `kind` is a key of KINDS."""

    name: str
    kind: str
    make: Make
    right: Make
    width: int


@dataclass(frozen=True)
class Config:
    """A hand-written PyTorch attention module.

    Attributes
    ----------
    width, heads, head_dim, kv_heads : int
    projection : {"separate", "packed", "list"}
        "list": one module per head.
    bias : bool
    init : {"default", "normal", "xavier"}
    core : str
        "sdpa", "matmul", "baddbmm", "mha" without and "mha weights" with need_weights, or "einsum" and the order of
        the axes of scores: b for the batch, h for heads, i for queries, j for keys.
    scaled : {"scores", "queries", "both"}
        What the factor multiplies; "both": its root multiplies queries and keys.
    mask : {"none", "causal", "window", "causal window", "prefix"}
    hide : {"is_causal", "additive", "triu", "fill", "-1e9"}
        How hidden scores are hidden.
    span : int
        Positions of the window or of the prefix.
    positions : str
        "none", "halves", "interleaved" and "partial" (rotary), "alibi", "table" (a learned bias by distance),
        "learned" (vectors added to inputs) or "fixed" (the same, for 16 positions only).
    norm : {"none", "rms", "layer"}
        Of the queries and keys of each head.
    around : {"bare", "pre", "pre mlp", "rms", "post"}
    dtype : {"float32", "bfloat16"}
    factor : str
        Key of `scale`.
    fault : str
        Empty if the module is right.
    """

    width: int = 64
    heads: int = 4
    head_dim: int = 16
    kv_heads: int = 4
    projection: str = "separate"
    bias: bool = True
    init: str = "default"
    core: str = "sdpa"
    scaled: str = "scores"
    mask: str = "none"
    hide: str = "fill"
    span: int = 3
    positions: str = "none"
    norm: str = "none"
    around: str = "bare"
    dtype: str = "float32"
    factor: str = "1/sqrt(head_dim)"
    fault: str = ""

    @property
    def scale(self) -> float:
        values = {
            "1/sqrt(head_dim)": self.head_dim**-0.5,
            "1/sqrt(width)": self.width**-0.5,
            "sqrt(head_dim)": self.head_dim**0.5,
            "1": 1.0,
        }
        return values[self.factor]

    @property
    def of_framework(self) -> bool:
        """Whether nn.MultiheadAttention does everything."""
        return self.core.startswith("mha")

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim}" + (
            "" if self.kv_heads == self.heads else f", {self.kv_heads} of keys"
        )
        shown = {
            "none": "",
            "causal": f"causal ({self.hide})",
            "prefix": f"prefix of {self.span} ({self.hide})",
        }.get(self.mask, f"{self.mask} of {self.span} ({self.hide})")
        positions = "" if self.positions == "none" else f"positions {self.positions}"
        norm = "" if self.norm == "none" else f"QK {self.norm} norm"
        parts = (
            f"width {self.width}",
            heads,
            "" if self.of_framework else self.projection,
            "" if self.bias else "no bias",
            "" if self.init == "default" else self.init,
            self.core,
            "" if self.scaled == "scores" else f"scaled {self.scaled}",
            shown,
            positions,
            norm,
            self.around,
            "" if self.dtype == "float32" else self.dtype,
        )
        return ", ".join(filter(None, parts))


#: Cores, of which each has the same share of modules.
CORES = (
    *("sdpa", "matmul", "sdpa", "einsum bhij", "einsum bijh", "matmul"),
    *("einsum hbij", "baddbmm", "einsum bhji", "mha", "sdpa", "mha weights"),
)
#: Choices of the other axes; a repeated one is drawn more often.
CHOICES: dict[str, tuple[Any, ...]] = {
    "width": (32, 48, 64, 64, 96, 128),
    "heads": (2, 4, 4, 8),
    "projection": ("separate", "separate", "packed", "list"),
    "bias": (True, False),
    "init": ("default", "normal", "xavier"),
    "scaled": ("scores", "scores", "queries", "both"),
    "mask": ("none", "none", "causal", "causal", "causal", "window", "causal window", "prefix"),
    "hide": ("is_causal", "additive", "triu", "fill", "-1e9"),
    "span": (2, 3, 4),
    "positions": (
        *("none", "none", "none", "halves", "halves", "interleaved"),
        *("partial", "alibi", "learned", "table", "fixed"),
    ),
    "norm": ("none", "none", "none", "rms", "layer"),
    "around": ("bare", "bare", "pre", "pre mlp", "rms", "post"),
    "dtype": (*["float32"] * 9, "bfloat16"),
}
ROTARY = ("halves", "interleaved", "partial")
#: Positions that add a bias to scores.
BIASED = ("alibi", "table")
ADDED = ("learned", "fixed")


def configs(seed: int, number: int = WRITTEN) -> tuple[Config, ...]:
    """Return right configurations, the same for the same seed."""
    rng = random.Random(f"right modules, {seed}")
    return tuple(drawn(rng, CORES[i % len(CORES)]) for i in range(number))


def drawn(rng: random.Random, core: str) -> Config:
    """Draw all axes, and settle those that exclude each other."""
    config = Config(core=core, **{name: rng.choice(values) for name, values in CHOICES.items()})
    heads = min(config.heads, config.width // 8)
    head_dim = rng.choice((config.width // heads, config.width // heads, 16))
    kv_heads = rng.choice([heads, heads, *(kv for kv in (1, 2, 4) if kv < heads and heads % kv == 0)])
    config = dataclasses.replace(config, heads=heads, head_dim=head_dim, kv_heads=kv_heads)
    return hidden_somehow(of_framework(in_list(config)))


def in_list(config: Config) -> Config:
    """Give modules of single heads no axis of heads."""
    if config.projection != "list" or config.of_framework:
        return config
    core = config.core if config.core in ("sdpa", "matmul") else "matmul"
    positions = "none" if config.positions in BIASED else config.positions
    return dataclasses.replace(config, kv_heads=config.heads, core=core, positions=positions)


def of_framework(config: Config) -> Config:
    """Leave nn.MultiheadAttention what it can do."""
    if not config.of_framework:
        return config
    positions = config.positions if config.positions in ADDED else "none"
    settled: dict[str, Any] = {"projection": "packed", "scaled": "scores", "norm": "none", "init": "default"}
    settled |= {"head_dim": config.width // config.heads, "kv_heads": config.heads, "positions": positions}
    return dataclasses.replace(config, **settled)


def hidden_somehow(config: Config) -> Config:
    """Choose another way of hiding where the drawn one cannot do the mask."""
    can = {
        "is_causal": config.core == "sdpa" and config.mask == "causal" and config.positions not in BIASED,
        "triu": config.mask == "causal",
        "-1e9": not config.of_framework,
    }
    return config if can.get(config.hide, True) else dataclasses.replace(config, hide="fill")


def faults_of(config: Config, kind: str) -> tuple[str, ...]:
    """Return the mutations of a kind that apply to a right configuration."""
    causal = config.mask in ("causal", "causal window")
    by_hand, together = not config.of_framework, config.projection != "list"
    unscaled = by_hand and config.norm == "none"  # the factor after QK-norm is the author's choice
    all_keys = config.kv_heads == config.heads
    possible = {
        # A causal window of 2 that shows the next position too is a two-sided one.
        "mask off by one": {"sees next": causal and (config.mask == "causal" or config.span != 2)},
        "inverted mask": {"inverted": config.mask in ("causal", "prefix")},
        "scale": {
            # 1/head_dim is µP's.
            "1/sqrt(width)": unscaled and config.width not in (config.head_dim, config.head_dim**2),
            "sqrt(head_dim)": unscaled,
            "1": unscaled,
        },
        "axis": {"over queries": by_hand, "over heads": by_hand and together and config.mask == "none"},
        "merge": {"no transpose": by_hand and together},
        "leak": {"mean of inputs": causal, "next input": causal},
        "tiling": {"tiled": 1 < config.kv_heads < config.heads},
        "dropout": {"dropout": by_hand},
        "sharing": {
            "tied at first": all_keys and together,
            "one parameter": all_keys and config.projection == "separate" and by_hand,
        },
        "unused parameter": {"unused": True},
    }
    return tuple(fault for fault, applies in possible[kind].items() if applies)


def kinds_of(config: Config) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if faults_of(config, kind))


def mutate(config: Config, kind: str, pick: int = 0) -> Config:
    """Return a configuration with one fault of a kind, the `pick`-th that applies."""
    faults = faults_of(config, kind)
    fault = faults[pick % len(faults)]
    if kind == "scale":
        return dataclasses.replace(config, factor=fault)
    hide = (
        "fill" if config.hide == "is_causal" and kind in ("mask off by one", "inverted mask", "axis") else config.hide
    )
    core = "matmul" if config.core == "sdpa" and kind == "axis" else config.core
    return dataclasses.replace(config, fault=fault, hide=hide, core=core)


def mutants_of(seed: int, build: Callable[[Config], Any]) -> Iterator[Mutant]:
    """Yield the mutants of each kind, of as many configurations."""
    right = list(enumerate(configs(seed)))
    for kind in KINDS:
        apt = [(i, config) for i, config in right if faults_of(config, kind)]
        chosen = random.Random(f"{kind}, {seed}").sample(apt, min(PER_KIND, len(apt)))
        for pick, (i, config) in enumerate(chosen):
            wrong = mutate(config, kind, pick)
            name = f"{wrong.fault or wrong.factor}, torch {i}: {config}"
            yield Mutant(
                name=name, kind=kind, make=partial(build, wrong), right=partial(build, config), width=config.width
            )


def variants(seed: int) -> tuple[Variant, ...]:
    """Return the right modules of all installed frameworks."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    here = [importlib.import_module(f"{__package__}.{name}") for name, needs in VARIANTS.items() if installed(needs)]
    return tuple(variant for module in here for variant in module.variants(seed))


def mutants(seed: int) -> tuple[Mutant, ...]:
    """Return mutants of the hand-written modules, if PyTorch is installed."""
    if not installed(VARIANTS["variants_torch"]):
        return ()
    build = importlib.import_module(f"{__package__}.variants_torch").build
    return tuple(mutants_of(seed, build))
