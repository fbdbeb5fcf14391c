"""Run mup's coord_check on the models of benchmarks/width_models.py."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from mup.coord_check import _get_coord_data

from benchmarks.width_models import POSITIONS, VOCABULARY, WRONG, Recipe

_BATCH, _STEPS = 4, 3


def rows(quick: bool) -> list[tuple[str, ...]]:
    """Return one row per model, the right one first."""
    right, seconds = _slopes(Recipe(), quick)
    steepest = [max(right[step].items(), key=lambda each: abs(each[1])) for step in (1, _STEPS)]
    told = ", ".join(f"`{name}` {slope:+.2f}" for name, slope in steepest)
    found: list[tuple[str, ...]] = [("right, in μP", f"{seconds:.0f} s", "–", told)]
    for name, (recipe, tap, _) in WRONG.items():
        wrong, seconds = _slopes(recipe, quick)
        shown = [f"{wrong[step][tap]:+.2f}" if tap in wrong[step] else "no line" for step in (1, _STEPS)]
        found.append((name, f"{seconds:.0f} s", f"`{tap}` {', '.join(dict.fromkeys(shown))}", ""))
    return found


def _slopes(recipe: Recipe, quick: bool) -> tuple[dict[int, dict[str, float]], float]:
    """Return slopes by forward and module, and the seconds taken."""
    widths = (16, 32, 64) if quick else (64, 128, 256, 512, 1024)
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (_BATCH, POSITIONS), generator=rng)
    targets = torch.randint(VOCABULARY, (_BATCH * POSITIONS,), generator=rng)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    begun = time.perf_counter()
    data: Any = _get_coord_data(
        {width: partial(recipe.build, width) for width in widths},
        [(tokens, targets)],
        recipe.optimizer,
        nsteps=_STEPS,
        flatten_output=True,
        cuda=False,
        nseeds=1 if quick else 5,
        show_progress=False,
    )
    seconds = time.perf_counter() - begun
    torch.set_num_threads(before)
    means = data.groupby(["t", "module", "width"])["l1"].mean()
    found: dict[int, dict[str, float]] = {}
    for (step, module), sizes in means.groupby(level=[0, 1]):
        if not module:
            continue  # the model, with the readout's output
        logs = np.log(sizes.to_numpy(dtype=float)), np.log(sizes.index.get_level_values("width").to_numpy(dtype=float))
        if np.isfinite(logs[0]).all():
            found.setdefault(int(step), {})[str(module)] = float(np.polyfit(logs[1], logs[0], 1)[0])
    return found, seconds
