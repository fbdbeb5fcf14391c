"""`attncheck check`: arguments."""

from __future__ import annotations

from pathlib import Path

from attncheck.commands.arguments import Natural


def check(
    *,
    layer: list[Path],
    samples: list[Path],
    record: Path | None = None,
    weights: str = "gaussian",
    seed: Natural = 0,
    false_alarm: float = 1e-6,
    trust: list[str] | None = None,
) -> int:
    """Test samples from files against the exact law at their width and the limit.

    Parameters
    ----------
    layer
        TOML file whose [layer] table has the fields of attncheck.AttentionLayer; one for each --samples.
    samples
        .npy with outputs (N, s) or (N, s, k); .npz with outputs, scores, inputs and so on; or .csv with columns
        y1 ... ys.
    record
        Write a record to this path.
    weights
        Law of the weights, e.g. uniform, or of single matrices: query=uniform,output=student5.
        query_bias=uniform:0.577 declares a bias with this law and standard deviation times √fan_in.
    seed
        Seed of the draws of the exact law.
    false_alarm
        Probability of a violated verdict for samples of a correct simulator.
    trust
        Module whose functions a layer may name as mask or attention map; can be repeated.
    """
    from attncheck.runs.samples.command import check_files

    code, text = check_files(
        layer, samples, record, weights=weights, seed=seed, false_alarm=false_alarm, trust=trust or ()
    )
    print(text)
    return code
