"""The command line: what each command takes. What it does is imported when it is called.

So `attncheck --help` answers at once. Exit codes are those of `attncheck._lib.exit_codes`, the same everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.version import __version__
from attncheck.commands.output import lasting_output

Profile = Literal["smoke", "default", "thorough"]
PublishedFigure = Literal["all", "fig1", "fig2", "fig3", "fig5"]

_HELP = """Does this attention simulator behave as the infinite-width theorem says?

Exit codes: 0 consistent, 1 violated, 2 unusable input, 3 inconclusive, 4 incomplete."""

app = App(
    name="attncheck",
    help=_HELP,
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # main says so in one line
)


@app.command
def run(
    *,
    profile: Profile = "default",
    subject: str | None = None,
    seed: str = "0",
    false_alarm: str = "1e-6",
    draws: str | None = None,
    record: Path = Path("reports/output/record.jsonl"),
    report: Path | None = None,
    workers: str = "auto",
) -> int:
    """Hold a simulator to the theorem, and write a record of it.

    Parameters
    ----------
    profile
        Half a minute, some minutes, or as many draws as --draws says.
    subject
        The simulator to examine, MODULE:CALLABLE; else ATTNCHECK_SUBJECT, else attncheck's literal one.
    seed
        A whole number, or random: the same seed gives the same digits with any number of workers.
    false_alarm
        The chance that a right simulator is called violated anywhere in the run.
    draws
        With the thorough profile: about what the first looks of the whole run take.
    record
        Where the record goes.
    report
        Render the record as an HTML page at the end, to this path.
    workers
        Processes to use, or auto; 0 examines in this process.
    """
    from attncheck.commands.run import run_properties

    return run_properties(
        profile=profile,
        subject=subject,
        seed=seed,
        false_alarm=false_alarm,
        draws=draws,
        record=record,
        report=report,
        workers=workers,
    )


@app.command
def check(
    *,
    layer: Path,
    samples: Path,
    record: Path | None = None,
    seed: str = "0",
    false_alarm: float = 1e-6,
) -> int:
    """Hold samples produced elsewhere to the exact law at their width and to the limit.

    Parameters
    ----------
    layer
        A TOML file with a [layer] table of the fields of attncheck.AttentionLayer.
    samples
        A .npz file with outputs (N, s) or (N, s, k) and optionally scores, inputs and Gram matrices; a .npy
        file of outputs; or a .csv file with columns y1 ... ys and optionally p1_1_2 (head, row, column).
    record
        Write a run record to this path.
    seed
        Keys the draws of the exact law that the samples are compared with.
    false_alarm
        The chance that samples of a right simulator are called violated.
    """
    from attncheck.commands.arguments import seed_of
    from attncheck.runs.samples.command import check_file

    code, text = check_file(layer, samples, record, seed=seed_of(seed), false_alarm=false_alarm)
    print(text)
    return code


@app.command
def replay(record: Path, id: str, /, *, subject: str | None = None, trust: list[str] | None = None) -> int:
    """Repeat one result of a record, to the digit.

    Parameters
    ----------
    record
        A run record.
    id
        The result, as it is written in the record and in messages: CHECK@LAYER.
    subject
        Examine this simulator instead of the recorded one, a mended one for example.
    trust
        A module that the record may have imported: that of the recorded simulator, or of functions of a program.
        Without it, a record runs no code but attncheck's own.
    """
    from attncheck.commands.replay import replay_result

    return replay_result(record, id, subject, trust or ())


@app.command
def explain(name: str | None = None, /) -> int:
    """Say what a claim states, which checks examine it, and what they cannot see; or what a fault is.

    Parameters
    ----------
    name
        A claim, a property, a check or a known-wrong simulator; without it, all claims are listed, and with
        "faults" all known-wrong simulators.
    """
    from attncheck.commands.explain import explain_name

    return explain_name(name)


@app.command
def power(
    *fault: str,
    profile: Profile = "default",
    quick: bool = False,
    seed: str = "0",
    workers: str = "1",
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> int:
    """Measure which known-wrong simulators are seen, and how surely.

    Parameters
    ----------
    fault
        Known-wrong simulators, which attncheck explain faults lists; without any, all are measured, for hours.
    profile
        What a look may cost.
    quick
        Say what is planned, without the looks that verify it: a minute or some per fault.
    seed
        A whole number: the same seed gives the same digits.
    workers
        Processes to use, or auto; with several the table comes at the end.
    out
        Write the table as JSON to this file, for attncheck report --power.
    """
    from attncheck.commands.power import print_power

    return print_power(profile, quick=quick, faults=fault, seed=seed, workers=workers, out=out)


@app.command
def gate(
    run: Path,
    /,
    *,
    baseline: Path,
    junit: Path | None = None,
    summary: Path | None = None,
    json: Path | None = None,
    false_alarm: float | None = None,
) -> int:
    """Decide whether a run may pass: complete, not violated, and no worse than a baseline.

    Parameters
    ----------
    run
        The record of the run.
    baseline
        The record to compare with. If there is none, the gate fails and writes BASELINE.candidate.
    junit
        Write the cases as JUnit XML to this file.
    summary
        Write a summary in Markdown to this file.
    json
        Write everything that was found as JSON to this file.
    false_alarm
        The chance that unchanged work is called drifted; by default the budget of the run.
    """
    from attncheck.commands.gate import gate_run

    return gate_run(run, baseline, junit=junit, summary=summary, json=json, false_alarm=false_alarm)


@app.command
def report(
    run: Path,
    /,
    *,
    baseline: Path | None = None,
    recipe: str = "validation",
    power: Path | None = None,
    paper: Path | None = None,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("report.html"),
) -> int:
    """Render the record of a run as one HTML page that needs nothing else.

    Parameters
    ----------
    run
        The record.
    baseline
        A record to compare with.
    recipe
        What goes in: validation, gate or paper, or the path of a recipe of your own.
    power
        A table that attncheck power wrote, to show beside the run.
    paper
        A folder that attncheck paper wrote, for the section on the paper's experiments.
    out
        Where the page goes.
    """
    from attncheck.report import render_report

    panels = None
    if paper is not None:
        from attncheck.paper.page import read_paper  # figures are drawn by more than most reports need

        panels = read_paper(paper)
    print(f"Report: {render_report(run, baseline, recipe, out, power=power, paper=panels)}")
    return ExitCode.CONSISTENT


@app.command
def paper(
    *figure: PublishedFigure,
    out: Annotated[str, Parameter(name=["--out", "-o"])] = "paper",
    scale: float = 1.0,
    seed: str = "0",
    workers: str = "auto",
) -> int:
    """Repeat the paper's experiments at full size, beside what is computed exactly.

    Parameters
    ----------
    figure
        Which figures of the paper; all by default.
    out
        The folder for figures, numbers and a page of all. A run that was interrupted goes on where it was.
    scale
        Share of the published draws, at least 0.001: 0.01 for a quick look.
    seed
        A whole number: the same seed gives the same digits with any number of workers.
    workers
        Processes to use, or auto.
    """
    from attncheck.commands.paper import print_paper

    return print_paper(figure, out, scale=scale, seed=seed, workers=workers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of this process by default.
    """
    with lasting_output():
        return _outcome(list(sys.argv[1:] if arguments is None else arguments))


def _outcome(tokens: Sequence[str]) -> int:
    """Return the exit code of a command, after saying what is wrong where something is."""
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return ExitCode.CONSISTENT if code is None else int(code)
    except CycloptsError as error:
        return _refused(f"{error} See: {_help_command(tokens)}")
    except InputError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        _refused("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        if os.environ.get("ATTNCHECK_TRACEBACK"):
            raise
        fault = f"{type(error).__name__}: {error}"
        return _refused(f"a fault of attncheck: {fault}; set ATTNCHECK_TRACEBACK=1 to see where, and report it")


def _refused(message: str) -> ExitCode:
    """Say in one line what is wrong."""
    print("attncheck: " + " ".join(message.split()), file=sys.stderr)
    return ExitCode.UNUSABLE


def _help_command(tokens: Sequence[str]) -> str:
    command = tokens[0] if tokens and tokens[0] in app else ""
    return " ".join(["attncheck", *([command] if command else []), "--help"])
