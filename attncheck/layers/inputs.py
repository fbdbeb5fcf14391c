"""The law of a layer's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck._lib.errors import check_choice, check_number, refuse, validate

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

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


def check_inputs(layer: AttentionLayer) -> None:
    """Validate the fields of the law of a layer's inputs, or raise `InputError`."""
    if callable(layer.activation):
        refuse("activation", layer.activation, "is a function, which a layer cannot use", "write an attncheck.Program")
    validate(layer, "activation", check_choice, ACTIVATIONS)
    validate(layer, "input_std", check_std)
    remedy = f"pass a bound between {_CLIPS[0]:g} and {_CLIPS[1]:g}, e.g. clip=100.0"
    validate(layer, "clip", check_number, remedy, minimum=_CLIPS[0], maximum=_CLIPS[1])
    if layer.activation != "clip" and layer.clip != DEFAULT_CLIP:
        remedy = f"leave clip at {DEFAULT_CLIP:g} or use activation='clip'"
        refuse("clip", layer.clip, f"has no effect with activation={layer.activation!r}", remedy)
    remedy = "pass a correlation between 0 and 1 (it comes from a shared part of the W^i, so it is not negative)"
    validate(layer, "input_correlation", check_number, remedy, minimum=0.0, maximum=1.0)
    remedy = f"pass 0 for none, or a standard deviation between {STDS[0]:g} and {STDS[1]:g}"
    validate(layer, "position_std", check_number, remedy, minimum=0.0, maximum=STDS[1])
    std, rho = layer.position_std, layer.input_correlation
    if 0.0 < std < STDS[0]:
        refuse("position_std", std, f"must be 0 or at least {STDS[0]:g}", remedy)
    remedy = f"pass a distance between {_REACHES[0]:g} and {_REACHES[1]:g}, e.g. position_reach=1.0"
    validate(layer, "position_reach", check_number, remedy, minimum=_REACHES[0], maximum=_REACHES[1])
    distance = layer.position_reach
    if std == 0.0 and distance != 1.0:
        refuse("position_reach", distance, "has no effect with position_std=0", "leave it out, or set position_std")
    if std and rho == 1.0 and distance > _FARTHEST_ALONE:
        remedy = f"use at most {_FARTHEST_ALONE:g}, or input_correlation below 1"
        refuse("position_reach", distance, "makes inputs with input_correlation=1 numerically equal", remedy)
    if layer.norm is not None:
        validate(layer, "norm", check_choice, NORMS)


def check_std(field: str, value: object) -> float:
    """Return a standard deviation within `STDS`, or raise `InputError`."""
    remedy = f"pass a standard deviation between {STDS[0]:g} and {STDS[1]:g}, e.g. {field}=1.0"
    return check_number(field, value, remedy, minimum=STDS[0], maximum=STDS[1])
