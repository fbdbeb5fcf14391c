"""Measure one exact draw of a GPT-3-sized layer, head by head: time, memory, and attention's distance from uniform.

``python benchmarks/large.py`` uses all cores and prints the page; ``--write`` updates benchmarks/large.md. Each draw
runs in a separate process, to measure its peak memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attncheck as ac
from attncheck._lib.measured import installed, table

SECONDS, GIBIBYTES = 30.0, 4.0
LARGEST = ac.AttentionLayer(width=12_288, seq_len=2_048, num_heads=96, head_dim=128)
TINY = ac.AttentionLayer(width=256, seq_len=32, num_heads=8, head_dim=32)
_COSTS = ("n", "s", "H", "s, wall", "s, processor", "GiB")
HEADER = (*_COSTS, "‖A - U‖² of the draw", "at n = ∞, ± of a draw", "at s = ∞ too")

_DRAW = """
import json, resource, sys, time
import numpy as np
import attncheck as ac

layer = ac.AttentionLayer.from_dict(json.loads(sys.argv[1]))
wall, processor = time.perf_counter(), time.process_time()
found = [float(np.einsum("ij,ij->", head.weights, head.weights)) - 1.0 for head in ac.simulate_heads(layer)]
spent = time.perf_counter() - wall, time.process_time() - processor
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([*spent, peak, float(np.mean(found)), float(np.std(found) / len(found) ** 0.5)]))
"""
# One thread per core, whatever the caller's settings.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def drawn(layer: ac.AttentionLayer) -> tuple[float, float, float, float, float]:
    """Return wall and processor seconds, GiB, and the mean over heads of ‖A - U‖² with its standard error."""
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in _THREADS}
    line = [sys.executable, "-c", _DRAW, json.dumps(layer.to_dict())]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    wall, processor, peak, mean, error = json.loads(done.stdout)
    return wall, processor, peak, mean, error


def sizes(largest: ac.AttentionLayer) -> Iterator[ac.AttentionLayer]:
    """Yield the layer, then layers with one of n, s and H halved and quartered."""
    yield largest
    for field in ("width", "seq_len", "num_heads"):
        for part in (2, 4):
            yield largest.replace(**{field: getattr(largest, field) // part})


def of_a_draw(layer: ac.AttentionLayer) -> float:
    """Return the standard deviation of ‖A - U‖² due to the length of h, which all heads share.

    Scores scale with |h|²/n, of standard deviation √(2/n).
    """
    step = 0.5 * math.sqrt(2.0 / layer.width)
    above, below = (ac.distance_from_uniform(layer.replace(input_std=math.exp(by))) for by in (step, -step))
    return 0.5 * (above - below)


def page(largest: ac.AttentionLayer) -> str:
    rows, verdict = [], ""
    for layer in sizes(largest):
        wall, processor, peak, mean, error = drawn(layer)
        if layer is largest:
            met = "met" if wall <= SECONDS and peak <= GIBIBYTES else "missed"
            verdict = f"Target for the first row: at most {SECONDS:g} s and {GIBIBYTES:g} GiB: {met}."
        rows.append(
            (
                f"{layer.width:,}",
                f"{layer.seq_len:,}",
                str(layer.num_heads),
                f"{wall:.1f}",
                f"{processor:.1f}",
                f"{peak:.2f}",
                f"{mean:.4f} ± {error:.4f}",
                f"{ac.distance_from_uniform(layer):.4f} ± {of_a_draw(layer):.4f}",
                f"{(1.0 - 2.0 / layer.head_width) ** (-0.5 * layer.head_width) - 1.0:.4f}",
            )
        )
    parts = [
        "# One draw of a large layer",
        "`python benchmarks/large.py --write` makes this page.",
        (
            f"Heads of {largest.head_width} neurons, {os.cpu_count()} cores. ‖A - U‖² is the squared distance of "
            f"attention weights from uniform, averaged over heads ± standard error. {installed()}."
        ),
        verdict,
        table(HEADER, rows),
        (
            "The standard error is over heads. They share inputs, so a draw also varies with the length of h, by "
            f"the standard deviation beside the limit. The limit is for heads of {largest.head_width} neurons, "
            "whose scores are Gaussian given the query."
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a layer of GPT-3's size, head by head.")
    parser.add_argument("--quick", action="store_true", help="a tiny layer, to see that it runs")
    parser.add_argument("--write", action="store_true", help="write benchmarks/large.md")
    given = parser.parse_args()
    if given.quick and given.write:
        parser.error("--quick measures nothing worth keeping; leave --write out")
    text = page(TINY if given.quick else LARGEST)
    print(text, end="")
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
