"""The command ``gradbridge``. Thin: it reads arguments, calls the house, prints, and sets the exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

from bridge import __version__
from bridge.errors import BadInputError

EXIT_DISAGREEMENT, EXIT_BAD_INPUT, EXIT_NO_BACKEND, EXIT_INTERRUPTED = 1, 2, 3, 130


class Gradbridge(click.Group):
    """Turns bad input into one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except BadInputError as error:
            click.echo(f"gradbridge: {error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)


@click.group(cls=Gradbridge, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradbridge")
def main() -> None:
    """Whether, where, by how much and why two frameworks disagree about a recurrent network's gradients."""


@main.command()
@click.argument("cases", nargs=-1, metavar="[CASE]...")
@click.option("--backend", "patterns", multiple=True, metavar="PATTERN", help="Only backends whose name matches.")
@click.option("--out", default="gradbridge-out", show_default=True, metavar="DIR", help="Folder for the tables.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds a backend may take over one gradient run.",
)
@click.option("--loss-steps", is_flag=True, help="Also ask for the gradient of each output step alone.")
@click.option("--fail-on-disagreement", is_flag=True, help="Exit with 1 when anything disagrees.")
def compare(
    cases: tuple[str, ...],
    patterns: tuple[str, ...],
    out: str,
    timeout: float,
    loss_steps: bool,
    fail_on_disagreement: bool,
) -> None:
    r"""Feed cases to every backend and to the reference, and judge every gradient element.

    A CASE is the name of a shipped one (see `gradbridge cases`) or a JSON file; all shipped ones by default.

    \b
    Example:
      gradbridge compare mxnet-21143 --backend 'fused-*' --out run1
    """
    from rich.console import Console

    import bridge
    from bridge.backends.registry import select
    from bridge.report import terminal
    from bridge.report.files import check_writable

    console = Console(highlight=False)
    loaded = [bridge.load_case(name) for name in cases or bridge.shipped_cases()]
    backends = select(patterns or None)
    check_writable(out)
    with terminal.TerminalProgress(Console(stderr=True, highlight=False)) as progress:
        comparison = bridge.compare(loaded, backends, timeout=timeout, loss_steps=loss_steps, progress=progress)
    comparison.save(out)
    terminal.print_comparison(comparison, console, out)
    if comparison.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if not comparison.ran:
        click.echo("gradbridge: no backend could run at all", err=True)
        sys.exit(EXIT_NO_BACKEND)
    if fail_on_disagreement and comparison.disagreements:
        sys.exit(EXIT_DISAGREEMENT)


@main.command()
def cases() -> None:
    r"""List the shipped cases with a line each.

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


if __name__ == "__main__":
    main()
