"""`attncheck check`: files of samples in, a verdict out."""

from __future__ import annotations

from pathlib import Path

from attncheck.commands.arguments import seed_of


def check(
    *,
    layer: list[Path],
    samples: list[Path],
    record: Path | None = None,
    weights: str = "gaussian",
    seed: str = "0",
    false_alarm: float = 1e-6,
) -> int:
    """Hold samples produced elsewhere to the exact law at their width and to the limit.

    Parameters
    ----------
    layer
        A TOML file with a [layer] table of the fields of attncheck.AttentionLayer; once for each --samples.
    samples
        Outputs (N, s) or (N, s, k) as .npy; with scores, inputs and the like as .npz; or as .csv, y1 ... ys, p1_1_2 ...
    record
        Write a run record to this path.
    weights
        The law of the weights, e.g. uniform, or those of some matrices: query=uniform,output=student5;
        query_bias=uniform:0.577 declares a bias of this law and this standard deviation times √fan_in.
    seed
        Keys the draws of the exact law that the samples are compared with.
    false_alarm
        The chance that samples of a right simulator are called violated.
    """
    from attncheck.runs.samples.command import check_files

    code, text = check_files(layer, samples, record, weights=weights, seed=seed_of(seed), false_alarm=false_alarm)
    print(text)
    return code
