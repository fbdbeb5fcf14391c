"""Inspect a small model of each type in public packages, and list what is wrong in them.

``python benchmarks/zoo.py [NAME ...]`` inspects the models of benchmarks/zoo_models.py, all by default, and prints the
page. ``--write`` updates benchmarks/zoo.md; ``--resume FILE`` keeps rows as they come, and goes on from it. What is
said to be wrong is examined by hand: `JUDGED` has the result, and the page lists what has none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

import attncheck as ac  # noqa: E402  # found by the path above
from attncheck._lib.measured import installed, spread, table  # noqa: E402  # found by the path above
from benchmarks import zoo_models  # noqa: E402  # found by the path above
from benchmarks.rows import Rows  # noqa: E402  # found by the path above

PACKAGES = ("torch", "transformers", "timm", "x-transformers", "vit-pytorch", "open_clip_torch", "litgpt")
SECONDS = 120
# Characters of a cell.
_WIDEST = 110
RELEASE, SETTING, DESIGN = "mistake in a release", "setting of a release", "design"
#: What examination of the source gave, by patterns of model and statement.
JUDGED = (
    (
        "mobilevit|mobilevitv2|rt_detr|rt_detr_v2",
        "scales of BatchNorm2d are drawn around 0",
        RELEASE,
        "`_init_weights` draws the scale of BatchNorm2d as if it were a weight, `init.normal_(module.weight, mean=0.0, "
        "std=initializer_range)`; a fresh model multiplies channels by about ±0.02, not by 1",
    ),
    (
        "granite",
        "scores times 1, not",
        SETTING,
        "the default `attention_multiplier=1.0` takes the place of 1/sqrt(head_dim): a model from the default "
        "configuration has scores larger by sqrt(head_dim); released checkpoints set another number",
    ),
    (
        "phi4_multimodal",
        "std 1 for any fan-in",
        RELEASE,
        "`_init_weights` of the vision tower calls `init.normal_(module.q_proj.weight)` and the like without a number, "
        "where the SigLIP model that it follows has Xavier's law: each projection multiplies by sqrt(fan_in)",
    ),
    (
        "aimv2",
        "std 1 for any fan-in",
        RELEASE,
        "the base class takes `initializer_factor=1.0`, a factor, for a standard deviation: both projections of the "
        "model multiply by sqrt(fan_in)",
    ),
    (
        "switch_transformers",
        "std 1 for any fan-in",
        DESIGN,
        "`_init_weights` has `std=factor * 1` for routers: router logits are large, and routing nearly one-hot",
    ),
    (
        ".*attn_pre_talking_heads",
        "scores times",
        RELEASE,
        "`sim + self.pre_softmax_talking_heads(sim)` with a Dirac initialiser: scores are doubled, and "
        "without the sum they would be as without talking heads",
    ),
    (
        "wav2vec2-bert",
        "keeps the default of Linear",
        DESIGN,
        "`_init_weights` states this law for the projection of features; it is the default of Linear",
    ),
    ("zamba2", "scores times 0.25", DESIGN, "the scale is (head_dim/2)**-0.5, for inputs of twice the width"),
    ("gpt_neo", "scores times 1, not", DESIGN, "GPT-Neo has no scale of scores, and initialises as if it had one"),
    ("informer", "random|differ in scale", DESIGN, "ProbSparse attention samples keys in evaluation too"),
)

_TRANSFORMERS = "import transformers as t\n"
_SMALL = "hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=128"
#: Smallest reproductions of mistakes in releases: package, what is seen, what is expected, and code that sets `seen`.
REPRODUCTIONS = (
    (
        "transformers",
        "mean size of a scale of BatchNorm2d in a fresh MobileViT",
        "1",
        f"{_TRANSFORMERS}\nmodel = t.MobileViTModel(t.MobileViTConfig())\n"
        "seen = model.conv_stem.normalization.weight.abs().mean()",
    ),
    (
        "transformers",
        "mean size of a scale of BatchNorm2d in a fresh RT-DETR, with a small backbone",
        "1",
        f'{_TRANSFORMERS}\nstages = ["stage2", "stage3", "stage4"]\n'
        "backbone = t.RTDetrResNetConfig(depths=[1] * 4, out_features=stages)\n"
        "model = t.RTDetrModel(t.RTDetrConfig(backbone_config=backbone))\n"
        "seen = model.encoder_input_proj[0][1].weight.abs().mean()",
    ),
    (
        "transformers",
        "standard deviation of q_proj in a fresh vision tower of Phi-4-multimodal, of width 64",
        "1/sqrt(64), 0.125, by Xavier's law",
        "from transformers.models.phi4_multimodal import modeling_phi4_multimodal as phi4\n"
        f"\nconfig = phi4.Phi4MultimodalVisionConfig(\n    {_SMALL}\n)\n"
        "model = phi4.Phi4MultimodalVisionModel(config)\n"
        "seen = model.encoder.layers[0].self_attn.q_proj.weight.std()",
    ),
    (
        "transformers",
        "standard deviation of visual_projection in a fresh AIMv2",
        "initializer_range, 0.02",
        f"{_TRANSFORMERS}\npart = dict({_SMALL})\n"
        "model = t.Aimv2Model(t.Aimv2Config(vision_config=part, text_config=part))\n"
        "seen = model.visual_projection.weight.std()",
    ),
    (
        "x-transformers",
        "scores with fresh talking heads before the softmax, relative to those without",
        "1",
        "import torch\nfrom x_transformers.attend import Attend\n\nx = torch.randn(1, 4, 5, 16)\n"
        "made = (Attend(heads=4, pre_talking_heads=talk)(x, x, x)[1] for talk in (True, False))\n"
        "one, other = (each.pre_softmax_attn for each in made)\n"
        "seen = (one / other).mean()",
    ),
)


class ZooRow(msgspec.Struct):
    """Result for one model: attention modules, statements and seconds."""

    name: str
    kind: str = ""
    modules: int = 0
    parameters: int = 0
    groups: list[str] = []
    wrong: list[str] = []
    notes: list[str] = []
    refused: int = 0
    failure: str = ""
    seconds: float = 0.0


def _late(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def inspected(model: zoo_models.ZooModel) -> ZooRow:
    """Return the row of a model."""
    row = ZooRow(model.name)
    inputs = model.inputs(model.make())
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    begin = time.perf_counter()
    try:
        found = ac.inspect(model.make, inputs=inputs)
    except Exception as error:  # whatever is raised is a row of the page
        row.failure = f"{type(error).__name__}: {error}"
    else:
        row.kind, row.modules, row.parameters = found.kind, len(found.modules), len(found.parameters)
        for group in found.attention:
            row.groups.append(f"{group.title}: {str(group.inspection.forward).partition('; equal')[0]}")
        row.wrong = list(found.blamed)
        row.notes = [str(note) for note in found.all_notes if not note.blames]
        row.refused = sum("not inspected: " in note for note in row.notes)
    finally:
        signal.alarm(0)
    row.seconds = time.perf_counter() - begin
    return row


def rows(options: argparse.Namespace, skipped: list[tuple[str, str]]) -> Iterator[ZooRow]:
    """Yield the rows of all models."""
    kept = Rows(options.resume)
    others = () if options.names else zoo_models.package_models(skipped)
    for model in itertools.chain(zoo_models.transformers_models(options.names, skipped), others):
        yield kept.get(model.name, ZooRow, partial(inspected, model))


def judged(row: ZooRow, text: str) -> tuple[str, str]:
    """Return what examination gave for a statement, and why."""
    name = row.name.partition(": ")[2]
    for models, pattern, verdict, why in JUDGED:
        if re.match(models, name) and re.search(pattern, text):
            return verdict, why
    return "not examined", ""


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def mistakes(found: Sequence[ZooRow]) -> str:
    """Return the table of all that is said to be wrong."""
    lines = [(row.name, cell(text), *judged(row, text)) for row in found for text in row.wrong]
    return table(("model", "what is said", "examined", "why"), lines) if lines else "Nothing."


def reproductions() -> Iterator[str]:
    """Yield the lines of the mistakes in releases, each run anew."""
    for package, what, expected, code in REPRODUCTIONS:
        if not _has(package):
            continue
        names: dict[str, float] = {}
        torch.manual_seed(0)
        exec(code, names)
        yield f"{package} {importlib.metadata.version(package)}: {what} is {float(names['seen']):.3g}, not {expected}."
        yield from ("", "```python", code, "```", "")


def page(found: Sequence[ZooRow], skipped: Sequence[tuple[str, str]]) -> str:
    """Return the page."""
    whole = [row for row in found if not row.failure]
    wrong = [row for row in whole if row.wrong]
    verdicts = [judged(row, text)[0] for row in whole for text in row.wrong]
    attending = [row for row in whole if row.modules]
    others = sum("; most projections" in note or "; all other projections" in note for r in whole for note in r.notes)
    seconds = np.array([row.seconds for row in whole])
    each = np.array([row.seconds / row.modules for row in attending])
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _has(name))
    lines = [
        (
            row.name,
            str(row.modules),
            str(row.refused),
            str(row.parameters),
            cell("; ".join(row.groups))[:_WIDEST],
            str(len(row.wrong)),
            f"{row.seconds:.1f}",
        )
        for row in whole
    ]
    failed = [(row.name, cell(row.failure[:120])) for row in found if row.failure]
    return "\n".join(
        [
            "# Public models",
            "",
            "`python benchmarks/zoo.py --write` makes this page: one small model of each type, with random weights, "
            f"`initializer_range={zoo_models.INITIALIZER_RANGE}` where there is one, inspected with 8 draws.",
            "",
            f"{len(whole)} of {len(found)} models inspected, {sum(row.modules for row in whole)} attention modules; "
            f"{len(skipped)} more cannot be made small. {len(whole) - len(wrong)} have nothing wrong. "
            f"Statements that something is wrong: {len(verdicts)} ({counts}). "
            f"Groups of projections that differ from most of their model: {others}.",
            "",
            f"Seconds per model: {spread(seconds, ' s', '.1f')}, at most {seconds.max(initial=0):.1f}; "
            f"per attention module: {spread(each, ' s', '.2f')}.",
            "",
            "## Said to be wrong",
            "",
            mistakes(whole),
            "",
            "## Mistakes in releases",
            "",
            *reproductions(),
            "## All models",
            "",
            "*Refused*: groups of attention modules that cannot be inspected, such as attention to pooled keys.",
            "",
            table(("model", "attention modules", "refused", "parameters", "attention", "wrong", "s"), lines),
            "",
            "## Not inspected",
            "",
            table(("model", "why"), failed) if failed else "None.",
            "",
            f"{installed()}; {versions}; one thread.",
            "",
        ]
    )


def _has(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Inspect small models of public packages.")
    parser.add_argument("names", nargs="*", help="model types of transformers (default: all models)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep rows there as they come, and go on from it")
    parser.add_argument("--write", action="store_true", help="write benchmarks/zoo.md too")
    options = parser.parse_args(arguments)
    if options.names and options.write:
        parser.error("--write: the page is of all models; leave the names out")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    skipped: list[tuple[str, str]] = []
    found = list(rows(options, skipped))
    text = page(found, skipped)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
