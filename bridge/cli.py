"""The command ``gradbridge``. Thin: it reads arguments, calls the house, prints, and sets the exit code."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from bridge import __version__
from bridge.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.backends.base import Backend
    from bridge.backends.registry import Sources
    from bridge.comparison import Comparison
    from bridge.timings import Timings

EXIT_DISAGREEMENT, EXIT_BAD_INPUT, EXIT_NO_BACKEND, EXIT_INTERRUPTED = 1, 2, 3, 130


class Gradbridge(click.Group):
    """Turns bad input into one line and exit code 2, and an interrupt before a run into 130."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as typed, for the manifest."""
        ctx.meta["command"] = ["gradbridge", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a case's name may not fit the terminal's encoding
        try:
            return super().invoke(ctx)
        except BadInputError as error:
            click.echo(f"gradbridge: {error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def _interrupt_once() -> None:
    """Make the first Ctrl-C end the run, and ignore further ones, which would cost what it has finished."""

    def once(signum: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, once)


def _show(print_it: Callable[[], None]) -> None:
    """Print; a reader that has gone (``| head``) does not change the exit code."""
    try:
        print_it()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Gradbridge, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradbridge")
def main() -> None:
    """Whether, where, by how much and why two frameworks disagree about a recurrent network's gradients."""


def _complete_case(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer shipped cases and files to the shell."""
    import bridge

    names = [name for name in bridge.shipped_cases() if name.startswith(incomplete)]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def _shared(function: Any) -> Any:
    """Options of every command that runs backends."""
    for option in reversed(
        [
            click.argument("cases", nargs=-1, metavar="[CASE]...", shell_complete=_complete_case),
            click.option(
                "--live/--no-live",
                default=None,
                help="Flux live, installing it if need be / from recordings only. Default: live where installed.",
            ),
            click.option("--julia-project", metavar="DIR", help="A Julia project that holds a Flux."),
            click.option("--recordings", multiple=True, metavar="DIR", help="Folders with recordings of your own."),
            click.option(
                "--timeout",
                type=click.FloatRange(min=0, min_open=True),
                metavar="S",
                help="Seconds a backend may take over one gradient run; 60, for Flux 600 since it compiles.",
            ),
        ]
    ):
        function = option(function)
    return function


def _sources(live: bool | None, julia_project: str | None, recordings: tuple[str, ...]) -> Sources:
    from bridge.backends.registry import Sources

    said: list[str] = []

    def says(line: str) -> None:
        if line not in said[-1:]:
            said.append(line)
            click.echo(f"a first look at a Julia environment: {line}", err=True)

    return Sources(live, julia_project, tuple(map(Path, recordings)), says)


def _announce(backends: list[Backend]) -> None:
    """Say which Flux lines will start, and how long that takes."""
    lines = {backend.group: backend.line for backend in backends if isinstance(backend, _flux().FluxBackend)}
    for line in lines.values():
        seconds = f"about {line.seconds:.0f} s to start" if line.seconds else "the first start may take minutes"
        click.echo(f"flux-{line.version} runs live ({seconds}; --no-live skips it)", err=True)


def _flux() -> Any:
    from bridge.backends import flux

    return flux


_FORMAT = click.option(
    "--format",
    type=click.Choice(["csv", "parquet"]),
    default="csv",
    show_default=True,
    help="Of gradients, pairs and jacobian, the large tables; the others are CSV.",
)


@main.command()
@_shared
@click.option("--backend", "patterns", multiple=True, metavar="PATTERN", help="Only backends whose name matches.")
@click.option("--out", default="gradbridge-out", show_default=True, metavar="DIR", help="Folder for the tables.")
@_FORMAT
@click.option("--loss-steps", is_flag=True, help="Also ask for the gradient of each output step alone.")
@click.option("--jacobian", is_flag=True, help="Also measure dL_s/dx_t for every output step s and input step t.")
@click.option("--relations", is_flag=True, help="Also check properties that need no reference.")
@click.option("--matrix", is_flag=True, help="Run every version at hand and tell which shows which finding.")
@click.option("--known", metavar="FILE", help="Accepted findings (TOML): tell what is new, and which have gone.")
@click.option("--fail-on-disagreement", is_flag=True, help="Exit with 1 when anything disagrees; with --known, anew.")
@click.option("--timings", "show_timings", is_flag=True, help="Also print where the time went, on the standard error.")
def compare(
    cases: tuple[str, ...],
    patterns: tuple[str, ...],
    out: str,
    format: str,
    timeout: float | None,
    loss_steps: bool,
    jacobian: bool,
    relations: bool,
    matrix: bool,
    known: str | None,
    fail_on_disagreement: bool,
    show_timings: bool,
    **sources: Any,
) -> None:
    """Feed cases to every backend and to the reference, and judge every gradient element.

    A CASE is the name of a shipped one (see `gradbridge cases`) or a JSON file; all shipped ones by default.

    \b
    Example:
      gradbridge compare mxnet-21143 --backend 'fused-*' --out run1
    """
    from bridge.known import load_known
    from bridge.report import terminal

    accepted = load_known(known) if known else ()
    comparison, unsaved, timings = _run(
        cases,
        patterns or None,
        out,
        sources,
        matrix=matrix,
        format=format,
        timeout=timeout,
        loss_steps=loss_steps,
        jacobian=jacobian,
        relations=relations,
    )
    with timings.phase("printing"):
        _show(lambda: terminal.print_comparison(comparison, terminal.console(), None if unsaved else out))
    if show_timings:
        terminal.print_timings(timings.phases, comparison.manifest["seconds"], terminal.console(stderr=True))
    if matrix:
        _show(lambda: terminal.print_matrix(comparison.matrix, terminal.console()))
    findings = comparison.sort(accepted)
    if known:
        _show(lambda: click.echo("\n".join(findings.lines)))
    _finish(comparison, unsaved)
    if fail_on_disagreement and findings.new:
        sys.exit(EXIT_DISAGREEMENT)


@main.command()
@_shared
@click.option("--out", default="gradbridge-out", show_default=True, metavar="DIR", help="Folder for the tables.")
@_FORMAT
def flux(cases: tuple[str, ...], out: str, format: str, timeout: float | None, **sources: Any) -> None:
    """Tell which ways of applying a stateful model to a sequence give the right gradient in which Flux.

    Runs every variant of every Flux at hand, live or recorded; the four flux cases by default.

    \b
    Example:
      gradbridge flux flux-1547
    """
    import bridge
    from bridge.investigation import Investigation
    from bridge.report import files, terminal

    chosen = cases or tuple(name for name in bridge.shipped_cases() if name.startswith("flux-"))
    skip = ("pairs", "report")
    comparison, unsaved, _ = _run(chosen, ("flux-*",), out, sources, skip, format=format, timeout=timeout)
    investigation = Investigation(comparison)
    if unsaved is None:
        try:
            files.write_csv(investigation.table, Path(out) / "flux.csv")
            files.write_report(Path(out))
        except BadInputError as error:
            unsaved = error
    where = None if unsaved else out
    _show(lambda: terminal.print_investigation(investigation, terminal.console(), where))
    _finish(comparison, unsaved)


def _run(
    cases: tuple[str, ...],
    patterns: tuple[str, ...] | None,
    out: str,
    sources: dict[str, Any],
    skip: tuple[str, ...] = (),
    matrix: bool = False,
    format: str = "csv",
    **how: Any,
) -> tuple[Comparison, BadInputError | None, Timings]:
    """Check all input before anything is made, run with progress, save; what could not be saved can still be shown."""
    import bridge
    from bridge.backends.registry import every_version, select
    from bridge.comparison import load_cases
    from bridge.report import terminal
    from bridge.report.files import check_writable, write_csv, write_report
    from bridge.timings import Phase, Timings

    timings = Timings()
    loaded = load_cases(cases or None)
    places = _sources(**sources)
    backends = select(patterns, places)
    if matrix:
        backends = every_version(backends, places)
    check_writable(out)
    _announce(backends)
    _interrupt_once()
    with terminal.TerminalProgress(terminal.console(stderr=True)) as progress:
        timings.since_start("start: imports, cases, backends")
        comparison = bridge.compare(loaded, backends, progress=progress, **how)
    timings.phases += [Phase(**one) for one in comparison.manifest["seconds"]["phases"]]
    run = click.get_current_context()
    told = {"kind": run.info_name, "command": run.meta["command"]}
    comparison = dataclasses.replace(comparison, manifest={**comparison.manifest, **told})
    try:
        with timings.phase("tables"):
            if matrix:
                write_csv(comparison.matrix, Path(out) / "matrix.csv")
            else:
                (Path(out) / "matrix.csv").unlink(missing_ok=True)
            comparison.save(out, (*skip, "report"), format)
        if "report" not in skip:
            with timings.phase("report.html"):
                write_report(Path(out))
    except BadInputError as error:
        return comparison, error, timings
    return comparison, None, timings


def _finish(comparison: Comparison, unsaved: BadInputError | None) -> None:
    if unsaved is not None:
        raise unsaved
    if comparison.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if not comparison.ran:
        click.echo("gradbridge: no backend could run at all", err=True)
        sys.exit(EXIT_NO_BACKEND)


@main.command()
@_shared
@click.option("--backend", "patterns", multiple=True, metavar="PATTERN", help="Only backends whose name matches.")
@click.option("--out", required=True, metavar="DIR", help="Folder that gets one folder per framework version.")
@click.option("--loss-steps/--no-loss-steps", default=True, help="Each output step's gradient alone, too.")
def record(
    cases: tuple[str, ...],
    patterns: tuple[str, ...],
    out: str,
    timeout: float | None,
    loss_steps: bool,
    **sources: Any,
) -> None:
    """Run live backends and write down what they return, to be compared where they are not installed.

    \b
    Example:
      gradbridge record my-case.json --backend 'flux-*' --out recordings
    """
    from bridge.recorder import record as write_recording
    from bridge.report import terminal
    from bridge.report.files import check_writable

    check_writable(out)
    with terminal.TerminalProgress(terminal.console(stderr=True)) as progress:
        try:
            folders = write_recording(
                cases or None,
                patterns or None,
                Path(out),
                timeout=timeout,
                loss_steps=loss_steps,
                sources=_sources(**sources),
                progress=progress,
            )
        except KeyboardInterrupt:
            click.echo("gradbridge: interrupted; nothing was recorded", err=True)
            sys.exit(EXIT_INTERRUPTED)
    for folder in folders:
        click.echo(f"recorded: {folder}")


@main.command()
@click.option("--backend", "patterns", multiple=True, metavar="PATTERN", help="Only backends whose name matches.")
@click.option(
    "--max-cases", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N", help="Random cases to run."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="M",
    help="Begin no further batch after so many minutes.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S", help="Which cases.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="J", help="Processes at work; default: one a core.")
@click.option("--out", default="gradbridge-sweep", show_default=True, metavar="DIR", help="Folder for all results.")
@click.option("--resume", is_flag=True, help="Go on with the sweep that lies in the folder.")
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler whose workers do it (gradbridge[cluster]).")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds a backend may take over one case; 60, for Flux 600.",
)
@click.option("--live/--no-live", default=None, help="Flux live, installing it if need be. Default: where installed.")
@click.option("--julia-project", metavar="DIR", help="A Julia project that holds a Flux.")
@click.option("--known", metavar="FILE", help="Accepted findings (TOML): tell what is new, and which have gone.")
@click.option("--fail-on-disagreement", is_flag=True, help="Exit with 1 when there are findings; with --known, new.")
def sweep(
    patterns: tuple[str, ...],
    live: bool | None,
    julia_project: str | None,
    known: str | None,
    fail_on_disagreement: bool,
    out: str,
    **how: Any,
) -> None:
    """Search random cases for disagreements; shrink each kind and write a script that shows it.

    Case number i of a seed is always the same, however many jobs run and whatever was interrupted.

    \b
    Example:
      gradbridge sweep --backend 'mxnet-*' --max-cases 3000 --seed 1
    """
    from bridge.known import load_known
    from bridge.report import terminal
    from bridge.sweep import sweep as search

    accepted = load_known(known) if known else ()
    _interrupt_once()
    with terminal.SweepProgress(terminal.console(stderr=True)) as progress:
        found = search(
            patterns or None,
            out=out,
            sources=_sources(live, julia_project, ()),
            told=progress.told,
            command=click.get_current_context().meta["command"],
            **how,
        )
    _show(lambda: terminal.print_sweep(found, terminal.console(), out))
    findings = found.sort(accepted)
    if known:
        _show(lambda: click.echo("\n".join(findings.lines)))
    if found.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if not found.ran:
        click.echo("gradbridge: no backend could run at all", err=True)
        sys.exit(EXIT_NO_BACKEND)
    if fail_on_disagreement and findings.new:
        sys.exit(EXIT_DISAGREEMENT)


@main.command()
@click.argument("what", metavar="FINDING|CASE")
@click.argument("backend", required=False)
@click.option(
    "--sweep", "folder", default="gradbridge-sweep", show_default=True, metavar="DIR", help="A sweep's folder."
)
@click.option("--out", default=".", show_default=True, metavar="DIR", help="Folder for the script and its report.")
def repro(what: str, backend: str | None, folder: str, out: str) -> None:
    """Write a script that shows a fault in its framework alone, with a bug report; it is run first.

    FINDING is one of a sweep's; or name a CASE and a BACKEND that is wrong on it.

    \b
    Example:
      gradbridge repro mxnet-21143 'mxnet-2.0.0b1/fused-native'
    """
    import bridge
    from bridge.repro import of_case, of_finding

    if backend is None:
        written = of_finding(Path(folder), what, Path(out))
    else:
        written = of_case(bridge.load_case(what), backend, Path(out))
    for path in written:
        click.echo(f"written: {path}")


@main.command("diff")
@click.argument("run1")
@click.argument("run2")
def diff_runs(run1: str, run2: str) -> None:
    """Tell what an upgrade changed: findings that are new, gone or different between two output folders.

    Backends are matched by framework and variant, whatever their versions. Exits with 1 when a finding is new.

    \b
    Example:
      gradbridge diff before after
    """
    from bridge.diff import diff
    from bridge.report import terminal

    found = diff(run1, run2)
    _show(lambda: terminal.print_diff(found, terminal.console()))
    if found.new:
        sys.exit(EXIT_DISAGREEMENT)


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Make report.html anew from the tables that compare, flux or sweep wrote into a folder.

    \b
    Example:
      gradbridge report gradbridge-out
    """
    from bridge.report.files import write_report

    click.echo(f"report: {write_report(folder)}")


@main.command()
def faults() -> None:
    """List the named faults: what is wrong, where it was reported, how it looks on the Jacobian map.

    \b
    Example:
      gradbridge faults
    """
    from bridge.faults import CATALOGUE

    for name, kind in CATALOGUE.items():
        click.echo(f"{name}: {kind.sentence}" + (f" [{kind.report}]" if kind.report else ""))
        click.echo(f"    Jacobian map: {kind.signature}")


@main.command()
@click.option("--julia-project", metavar="DIR", help="A Julia project that holds a Flux.")
@click.option("--recordings", multiple=True, metavar="DIR", help="Folders with recordings of your own.")
def doctor(julia_project: str | None, recordings: tuple[str, ...]) -> None:
    """Tell what is found here: Python, NumPy, MXNet, Julia, every Flux, and how to get what is missing.

    \b
    Example:
      gradbridge doctor
    """
    from bridge import doctor as clinic

    findings = clinic.examine(_sources(None, julia_project, recordings))
    for finding in findings:
        click.echo(f"{finding.state:9} {finding.what}: {finding.detail}")
        if finding.remedy:
            click.echo(f"{'':9} get it: {finding.remedy}")
    if not clinic.healthy(findings):
        sys.exit(EXIT_DISAGREEMENT)


@main.command()
def cases() -> None:
    """List the shipped cases with a line each.

    \b
    Example:
      gradbridge cases
    """
    import bridge

    shipped = [bridge.load_case(name) for name in bridge.shipped_cases()]
    width = max(len(case.name) for case in shipped)
    for case in shipped:
        sizes = f"{case.mode} {case.dtype} T={case.seq_len} B={case.batch} I={case.input_size} H={case.hidden_size}"
        click.echo(f"{case.name:{width}}  {sizes}: {case.source}")


@main.group()
def env() -> None:
    """Keep older framework versions, each in an environment of its own, to compare them side by side.

    MXNet's are made by pip, Flux's by juliapkg, all below the user's cache folder.
    """


def _tell(line: str) -> None:
    click.echo(line, err=True)


@env.command("add")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
def env_add(specs: tuple[str, ...]) -> None:
    """Make an environment for each SPEC: mxnet==VERSION, mxnet-native==VERSION, flux==0.14 or flux==0.16.

    \b
    Example:
      gradbridge env add mxnet==1.9.1 mxnet-native==1.8.0.post0
    """
    from bridge import environments

    for spec in specs:
        environments.parse(spec)
    for spec in specs:
        try:
            click.echo(environments.add(spec, _tell))
        except environments.EnvironmentFailedError as error:
            click.echo(f"gradbridge: {error}", err=True)
            sys.exit(EXIT_NO_BACKEND)


@env.command("list")
def env_list() -> None:
    """List the environments that are there, their size, who manages them, and where.

    \b
    Example:
      gradbridge env list
    """
    from bridge import environments

    environments.sweep(_tell)
    there = environments.present()
    for one in there:
        size = f"{environments.size(one) / 1e6:.0f} MB"
        click.echo(f"{one.spec:28} {size:>8}  by {one.manager}, in {one.folder}")
    if not there:
        click.echo("no environments; make one with: gradbridge env add mxnet==1.9.1")


@env.command("remove")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
def env_remove(specs: tuple[str, ...]) -> None:
    """Remove environments.

    \b
    Example:
      gradbridge env remove mxnet==1.9.1
    """
    from bridge import environments

    for spec in specs:
        click.echo(environments.remove(spec, _tell))


if __name__ == "__main__":
    main()
