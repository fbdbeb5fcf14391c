"""The law of a layer's inputs."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from attncheck._lib.errors import check_choice, check_number, refuse, validate

Activation = Literal["clip", "relu", "tanh", "erf", "identity"]
Norm = Literal["rms", "layer"]

ACTIVATIONS: tuple[str, ...] = ("clip", "relu", "tanh", "erf", "identity")
NORMS: tuple[Norm, ...] = ("rms", "layer")
DEFAULT_CLIP = 100.0
#: Smallest and largest standard deviation with which sixth powers of outputs fit float64.
STDS = (1e-6, 1e6)
_CLIPS = (1e-12, 1e30)
_REACHES = (0.01, 100.0)
# With a larger `position_reach`, the covariance of a dozen positions is numerically singular.
_FARTHEST_ALONE = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputLaw:
    """The law of the inputs at `seq_len` positions: x^i = norm(φ(h^i + e^i)), h^i = W^i h (Definition 1 (i)-(iii)).

    See `attncheck.AttentionLayer` for the fields.

    Raises
    ------
    InputError
        For an impossible value or combination.

    Examples
    --------
    >>> InputLaw(seq_len=4, position_std=1.0).hidden_std.__round__(3)
    1.414
    """

    seq_len: int
    activation: Activation = "clip"
    clip: float = DEFAULT_CLIP
    input_std: float = 1.0
    input_correlation: float = 0.0
    position_std: float = 0.0
    position_reach: float = 1.0
    norm: Norm | None = None

    def __post_init__(self) -> None:
        validate(self, "activation", check_choice, ACTIVATIONS)
        validate(self, "input_std", check_std)
        remedy = f"pass a bound between {_CLIPS[0]:g} and {_CLIPS[1]:g}, e.g. clip=100.0"
        validate(self, "clip", check_number, remedy, minimum=_CLIPS[0], maximum=_CLIPS[1])
        if self.activation != "clip" and self.clip != DEFAULT_CLIP:
            remedy = f"leave clip at {DEFAULT_CLIP:g} or use activation='clip'"
            refuse("clip", self.clip, f"has no effect with activation={self.activation!r}", remedy)
        remedy = "pass a correlation between 0 and 1 (it comes from a shared part of the W^i, so it is not negative)"
        validate(self, "input_correlation", check_number, remedy, minimum=0.0, maximum=1.0)
        remedy = f"pass 0 for none, or a standard deviation between {STDS[0]:g} and {STDS[1]:g}"
        validate(self, "position_std", check_number, remedy, minimum=0.0, maximum=STDS[1])
        std, rho = self.position_std, self.input_correlation
        if 0.0 < std < STDS[0]:
            refuse("position_std", std, f"must be 0 or at least {STDS[0]:g}", remedy)
        remedy = f"pass a distance between {_REACHES[0]:g} and {_REACHES[1]:g}, e.g. position_reach=1.0"
        validate(self, "position_reach", check_number, remedy, minimum=_REACHES[0], maximum=_REACHES[1])
        distance = self.position_reach
        if std == 0.0 and distance != 1.0:
            refuse("position_reach", distance, "has no effect with position_std=0", "leave it out, or set position_std")
        if std and rho == 1.0 and distance > _FARTHEST_ALONE:
            remedy = f"use at most {_FARTHEST_ALONE:g}, or input_correlation below 1"
            refuse("position_reach", distance, "makes inputs with input_correlation=1 numerically equal", remedy)
        if self.norm is not None:
            validate(self, "norm", check_choice, NORMS)

    @property
    def hidden_std(self) -> float:
        """Standard deviation of the coordinates of h^i + e^i."""
        return math.hypot(self.input_std, self.position_std) if self.position_std else self.input_std

    @property
    def scale(self) -> float:
        """Approximate standard deviation of the inputs: 1 if normalised, else `hidden_std`."""
        return 1.0 if self.norm else self.hidden_std

    @property
    def equal(self) -> bool:
        """Whether all positions have the same input."""
        return self.input_correlation == 1.0 and not self.position_std


def check_std(field: str, value: object) -> float:
    """Return a standard deviation within `STDS`, or raise `InputError`."""
    remedy = f"pass a standard deviation between {STDS[0]:g} and {STDS[1]:g}, e.g. {field}=1.0"
    return check_number(field, value, remedy, minimum=STDS[0], maximum=STDS[1])
