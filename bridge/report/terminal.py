"""What a run says on the terminal: progress, the table of verdicts, the report's view of several lengths."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from bridge.comparison import Comparison, Progress
from bridge.faults import CATALOGUE
from bridge.investigation import Cell, Investigation, label
from bridge.matrix import FIXED
from bridge.report.lengths import CHANGES, WRONGLY_SAME, by_length
from bridge.report.narrow import print_table
from bridge.report.sentences import abbreviated, reasons, statements
from bridge.verdicts import AGREES, NO_VALUES, SHORT

if TYPE_CHECKING:
    import pandas as pd

    from bridge.case import Case
    from bridge.diff import Change, Diff
    from bridge.kinds import Kind
    from bridge.relations import Result
    from bridge.sweep import Sweep
    from bridge.timings import Phase

PIPED_WIDTH = 100
LEAST_WIDTH = 20
STYLES = {"agrees": "green", "disagrees": "bold red", "not finite": "bold red", "not repeatable": "bold magenta"}


class TerminalProgress(Progress):
    """A bar on a terminal; plain lines, one per tenth of the run, when piped."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lock = threading.Lock()
        self.total = self.count = 0
        self.said: dict[str, str] = {}
        self.bar: Bar | None = None
        self.task: Any = None

    def __enter__(self) -> TerminalProgress:
        if self.console.is_terminal:
            self.bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, total: int) -> None:
        """Set the end."""
        self.total = total
        if self.bar is not None:
            self.bar.update(self.task, total=total)
        else:
            self.console.print(f"{total} gradient runs", soft_wrap=True)

    def starting(self, backend: str, line: str) -> None:
        """Show what a slow starter says, once per line."""
        with self.lock:
            if self.said.get(backend) == line:
                return
            self.said[backend] = line
        if self.bar is not None:
            self.bar.update(self.task, description=escape(f"{backend}: {line}"[:60]))
        else:
            self.console.print(escape(f"{backend} starts: {line}"), soft_wrap=True)

    def done(self, backend: str) -> None:
        """Advance."""
        with self.lock:
            self.count += 1
            if self.bar is not None:
                self.bar.update(self.task, advance=1, description=escape(backend))
            elif 10 * self.count // self.total > 10 * (self.count - 1) // self.total:
                self.console.print(f"{self.count} of {self.total} done", soft_wrap=True)


class _Console(Console):
    """A console that leaves a broken pipe to its caller; rich would end the process with 1, which means otherwise."""

    def on_broken_pipe(self) -> None:
        """Raise it."""
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """Return the console for results (stdout) or progress (stderr); piped, it takes its width from ``COLUMNS``."""
    made = _Console(stderr=stderr, highlight=False, emoji=False)
    made.width = max(made.width, LEAST_WIDTH)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPED_WIDTH
    return made


def print_investigation(investigation: Investigation, console: Console, folder: str | None) -> None:
    """Print a table per case, a column per Flux version, then the advice."""
    for case in investigation.comparison.cases:
        rows = investigation.rows(case.name)
        if not rows:
            continue
        console.print(f"[bold]{escape(repr(case).strip('<>'))}[/]", soft_wrap=True)
        truths = {cell.truth for _, cells in rows for cell in cells.values() if cell.truth is not None}
        unit = "dL/dW_ih" if truths else "its error relative to the true gradient"
        table = Table(box=None, pad_edge=False)
        table.add_column("model application api requested reset", no_wrap=True, max_width=46)
        for version in investigation.versions:
            table.add_column(version, no_wrap=True, min_width=11)
        for name, cells in rows:
            found = [cells.get(version) for version in investigation.versions]
            table.add_row(escape(label(name)), *("" if cell is None else _colored(cell) for cell in found))
        print_table(table, console)
        if truths:
            console.print(f"truth: dL/dW_ih = {truths.pop():.6g}")
        console.print(
            f"A wrong cell shows {unit} (or the quantity that is wrong), +n: and n further quantities. "
            "'-': not to be had in that version; 'nothing': no gradient at all. Defaults are not written: the initial "
            "state among the params, reset! before the call. 'stale': no reset, judged against the carried state.",
            soft_wrap=True,
        )
        console.print()
    for line in investigation.advice():
        console.print(escape(line), soft_wrap=True)
    print_recorded(investigation.comparison, console)
    print_missing(investigation.comparison, console)
    if folder is not None:
        console.print(f"tables and report.html: {escape(folder)}", soft_wrap=True)


def _colored(cell: Cell) -> str:
    color = {"right": "green", "unsupported": "dim"}.get(cell.verdict, "bold red")
    return f"[{color}]{escape(cell.text)}[/]"


def print_recorded(comparison: Comparison, console: Console) -> None:
    """Say which lines answered from recordings, with the versions."""
    lines: dict[str, str] = {}
    for row in comparison.backend_rows:
        if row["source"] == "recorded":
            shown = [word for word in row["versions"].split() if word.startswith(("zygote=", "julia="))]
            lines.setdefault(row["backend"].partition("/")[0], " ".join(shown))
    if lines:
        text = "; ".join(f"{line} ({versions})" for line, versions in lines.items())
        console.print(escape(f"recorded, not run here: {text}"), soft_wrap=True)


def print_missing(comparison: Comparison, console: Console) -> None:
    """Print each reason why backends are missing, once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in comparison.backend_rows:
        if row["reason"]:
            reasons.setdefault((row["state"], row["reason"]), []).append(row["backend"])
    for (state, reason), names in reasons.items():
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        console.print(f"{escape(who)}: {state}: {escape(reason)}", soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console, folder: str | None) -> None:
    """Print the verdict table, the lengths' view, why backends are missing, and where the files are."""
    from bridge.report.tables import input_gradients

    for case in comparison.cases:
        summary = comparison.summary
        print_verdicts(case, summary[summary["case"] == case.name], console)
        if len(case.seq_lens) > 1 and "x" in case.requested:
            print_lengths(input_gradients(comparison.outcomes, case.name), console)
    print_recorded(comparison, console)
    print_missing(comparison, console)
    print_findings(comparison, console)
    for found in comparison.maps:
        console.print(escape(found.text()), soft_wrap=True)
        console.print()
    for case, results in comparison.related:
        print_relations(case, results, console)
    count = comparison.disagreements
    if comparison.interrupted:
        console.print("[bold]interrupted[/]: what was finished is kept", soft_wrap=True)
    console.print(f"{count or 'no'} disagreement{'s' * (count != 1)} (case x backend x quantity)", soft_wrap=True)
    if folder is not None:
        console.print(f"tables and report.html: {escape(folder)}", soft_wrap=True)


def print_timings(phases: Sequence[Phase], seconds: Mapping[str, Any], console: Console) -> None:
    """Print each phase's seconds, and beside them those of the processor in this process; then the workers' starts."""
    total, processor = (sum(getattr(phase, name) for phase in phases) for name in ("seconds", "processor"))
    table = Table("where the time went", box=None, pad_edge=False)
    for head in ("seconds", "of CPU here"):
        table.add_column(head, justify="right")
    for phase in phases:
        table.add_row(escape(phase.name), f"{phase.seconds:.2f}", f"{phase.processor:.2f}")
    table.add_row("in all", f"{total:.2f}", f"{processor:.2f}")
    console.print(table)
    starts = [f"{name} {one['start']:.2f} s" for name, one in seconds["backends"].items() if one.get("start", 0) > 0.1]
    if starts:
        console.print(escape(f"started, side by side: {', '.join(starts)}"), soft_wrap=True)
    console.print(f"the reference and its noise, meanwhile: {seconds['reference']:.2f} s", soft_wrap=True)


class SweepProgress:
    """Cases, cases per second and findings so far: a bar on a terminal, a line per tenth when piped."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()
        self.first: int | None = None
        self.tenth = 0
        self.bar: Bar | None = None

    def __enter__(self) -> SweepProgress:
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self.bar = Bar(*columns, TimeElapsedColumn(), console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def told(self, done: int, total: int, findings: int) -> None:
        """Take the count of cases done, in all, and of findings so far."""
        if self.first is None:
            self.first = done  # a resumed sweep has cases that cost nothing now
        rate = (done - self.first) / max(time.monotonic() - self.began, 1e-9)
        text = f"{rate:.1f} cases/s, {findings} findings so far"
        if self.bar is not None:
            last = ", shrinking them" if done >= total else ""
            self.bar.update(self.task, description=text + last, completed=done, total=total)
        elif done * 10 // total > self.tenth or done == total:
            self.tenth = done * 10 // total
            self.console.print(f"{done} of {total} cases, {text}", soft_wrap=True)


def print_sweep(found: Sweep, console: Console, folder: str) -> None:
    """Print a paragraph per finding, alike ones of several backends together, then where everything lies."""
    alike: dict[tuple[str, ...], list[Kind]] = {}
    scripts: dict[str, str] = {}
    for kind, reduced in found.kinds:
        line = kind.backend.partition("/")[0]
        alike.setdefault((line, kind.verdict, kind.fault, kind.condition.text), []).append(kind)
        scripts[kind.name] = reduced.script_name if reduced else ""
    for (_, verdict, fault, _), kinds in alike.items():
        quantities = dict.fromkeys(name for kind in kinds for name in kind.quantities)
        what = f"{escape(abbreviated([kind.backend for kind in kinds]))}[/], {' '.join(quantities)}"
        console.print(f"[bold]{what}: {escape(fault)} ({verdict})", soft_wrap=True)
        console.print(f"  {escape(kinds[0].what)} {escape(kinds[0].when)}", soft_wrap=True)
        for kind in kinds:
            script = scripts[kind.name]
            told = f"reproducers/{script}" if script else "no script that shows it"
            console.print(f"  {escape(kind.name)}: {len(kind.indices)} cases, {escape(told)}", soft_wrap=True)
    for backend, reason in found.stopped.items():
        console.print(f"[yellow]{escape(backend)}[/] was stopped: {escape(reason)}", soft_wrap=True)
    console.print(f"{len(found.rows)} cases, {len(found.kinds)} findings; {escape(folder)}", soft_wrap=True)


def print_diff(found: Diff, console: Console) -> None:
    """Print what differs between two runs: versions, a line per kind of change, what the new faults are."""
    for line in found.versions:
        console.print(escape(line), soft_wrap=True)
    alike: dict[Change, list[str]] = {}
    for change in found.changes:
        alike.setdefault(dataclasses.replace(change, backend=""), []).append(change.backend)
    for change, backends in alike.items():
        style = {"new": "bold red", "gone": "green"}.get(change.change, "yellow")
        quantities = " ".join(SHORT.get(name, name) for name in change.quantities)
        where = ", ".join(filter(None, [abbreviated(backends), change.case, quantities]))
        states = zip(change.versions, change.faults, strict=True)
        sides = " -> ".join(f"{version} {fault}".strip() for version, fault in states)
        if change.faults[0] == change.faults[1]:
            sides += f", {' -> '.join(condition or 'no condition' for condition in change.conditions)}"
        console.print(f"[{style}]{change.change}[/]: {escape(f'{where}: {sides}')}", soft_wrap=True)
    for fault in dict.fromkeys(part for change in found.new for part in re.split(r" [|+] ", change.faults[1])):
        if kind := CATALOGUE.get(fault.partition(" (")[0]):
            console.print(escape(f"{fault}: {kind.sentence}"), soft_wrap=True)
    new = sum(len(change.quantities) for change in found.new)
    others = sum(len(change.quantities) for change in found.changes) - new
    console.print(f"{new or 'no'} new, {others or 'no'} other changes (case x backend x quantity)", soft_wrap=True)


def print_findings(comparison: Comparison, console: Console) -> None:
    """Print a sentence per kind of finding: who, which quantities, what, when, how well it matches, what avoids it."""
    found = statements(comparison.faults)
    for one in found:
        text = f", {' '.join(one.quantities)}: {one.clause} ({one.evidence})"
        console.print(f"[bold]{escape(abbreviated(one.backends))}[/]{escape(text)}", soft_wrap=True)
        for line, backends in one.verified:
            whose = f" ({abbreviated(backends)})" if backends else ""
            console.print(f"  verified: {escape(line + whose)}", soft_wrap=True)
        for line in one.notes:
            console.print(f"  {escape(line)}", soft_wrap=True)
    if found:
        console.print()


def print_matrix(matrix: pd.DataFrame, console: Console) -> None:
    """Print a table per fault: a column per version, a line for all variants that are alike."""
    framework = matrix["backend"].str.partition("/")[0].rename("framework")
    for (who, fault, cases), rows in matrix.groupby([framework, "fault", "cases"], sort=False):
        console.print(escape(f"{who}, {fault} (on {', '.join(str(cases).split())})"), style="bold", soft_wrap=True)
        lines = [line for line in matrix.columns[len(FIXED) :] if (rows[line] != "").all()]
        table = Table(box=None, pad_edge=False)
        table.add_column(overflow="fold")
        for line in lines:
            table.add_column(escape(line.removeprefix(f"{who}-")))
        for cells, alike in rows.groupby(lines, sort=False):
            variants = " ".join(name.partition("/")[2] for name in alike["backend"])
            table.add_row(f"  {escape(variants)}", *map(_styled_cell, cells))
        console.print(table)
        console.print()
    if not len(matrix):
        console.print("no version shows a finding")


def _styled_cell(cell: str) -> str:
    style = {"shows": "bold red", "does not show": "green", "wrong otherwise": "bold red"}.get(cell, "dim")
    return f"[{style}]{cell}[/]"


def print_relations(case: Case, results: Sequence[tuple[str, Result]], console: Console) -> None:
    """Print a line per relation and backend."""
    for backend, result in results:
        console.print(escape(f"{case.name}, {backend}: {result.text}"), soft_wrap=True)
    if results:
        console.print()


def print_verdicts(case: Case, summary: pd.DataFrame, console: Console) -> None:
    """Print one case's table: a line per backend and verdict where there are values, then the reasons."""
    console.print(f"[bold]{escape(repr(case).strip('<>'))}[/]", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("backend", "quantity", "verdict", "worst error", "at"):
        table.add_column(name, no_wrap=name != "quantity", min_width=11 if name == "quantity" else None)
    shown = ""
    backends: dict[str, dict[str, list[Any]]] = {}
    for row in summary.itertuples(index=False):
        backends.setdefault(row.backend, {}).setdefault(row.verdict, []).append(row)
    for backend, verdicts in backends.items():
        line, _, variant = backend.partition("/")
        count = sum(map(len, verdicts.values()))
        for verdict, same in verdicts.items():
            if verdict in NO_VALUES:
                continue
            for group in _together(same, verdict):
                label = "all" if len(group) == count > 2 else " ".join(SHORT[row.quantity] for row in group)
                if line != shown:
                    table.add_row(escape(f"{line}/"))
                    shown = line
                table.add_row(f"  {escape(variant)}", label, _styled(verdict), *_worst(group))
    if table.row_count:
        print_table(table, console, names=False)
    for verdict, who, reason in reasons(summary):
        console.print(f"  {_styled(verdict)} [dim]{escape(who)}[/]: {escape(reason)}", soft_wrap=True)
    console.print()


def _together(same: list[Any], verdict: str) -> list[list[Any]]:
    """Split one backend's rows of a verdict into lines: every error has its own, what has none shares one."""
    if verdict == AGREES:
        return [same]
    alone = [[row] for row in same if not math.isnan(row.max_abs_err)]
    rest = [row for row in same if math.isnan(row.max_abs_err)]
    return [*alone, rest] if rest else alone


def _styled(verdict: str) -> str:
    return f"[{STYLES.get(verdict, 'yellow')}]{verdict}[/]"


def _worst(group: list[Any]) -> tuple[str, str]:
    """Worst error and its place."""
    import pandas as pd

    known = [row for row in group if not math.isnan(row.max_abs_err)]
    if not known:
        return ("nothing" if all(row.reason.startswith("nothing") for row in group) else ""), ""
    row = max(known, key=lambda row: row.max_abs_err)
    step = "" if pd.isna(row.worst_timestep) else f" t={row.worst_timestep}"
    return f"{row.max_abs_err:.2g}, rel {row.max_rel_err:.2g}", f"L={row.worst_seq_len}{step}"


def print_lengths(gradients: pd.DataFrame, console: Console) -> None:
    """Print one case's dL/dx at each position against the sequence length, as in apache/mxnet#21143."""
    styles = {WRONGLY_SAME: "[bold red]WRONGLY SAME[/]", CHANGES: "[green]changes[/]"}
    for view in by_length(gradients):
        console.print(escape(f"{', '.join(view.backends)}: dL/dx[t, 0, 0] by sequence length"), soft_wrap=True)
        table = Table("t", box=None, pad_edge=False)
        for length in view.lengths:
            table.add_column(f"L={length}", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for step, growth in enumerate(view.growth):
            values = [f"{view.values[n][step]:.8f}" if n > step else "" for n in view.lengths]
            table.add_row(str(step), *values, styles.get(growth, growth))
        print_table(table, console)
        console.print()
