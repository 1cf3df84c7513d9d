"""From matched faults to findings: when the fault strikes, what avoids it, and a sentence a maintainer accepts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bridge.answers import Reply, Task
from bridge.case import PARAM_NAMES, QUANTITIES, REQUESTABLE, Case
from bridge.errors import BadInputError
from bridge.faults import CATALOGUE, Match, Matcher, Seen
from bridge.options import Workaround
from bridge.tolerance import Truth, truth
from bridge.verdicts import AGREES, NO_VALUES, WRONG, Outcome, judge_reply

Ask = Callable[[Task], Reply]
"""Has a backend compute a task."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How well a fault reproduces what a backend returned.

    Attributes
    ----------
    residual : largest absolute deviation from the fault's own gradients.
    steps : time steps over which it was matched; None where no fault matches.
    closest : where none matches, the fault that comes closest, or empty.
    """

    residual: float
    steps: int | None
    closest: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """A disagreement with its name.

    Attributes
    ----------
    case, backend : where it was seen.
    match : the fault, or that there is none.
    condition : when it strikes, as far as varying the case told; a clause, or empty.
    workarounds : what avoids it, each verified by a run that agrees.
    steps : time steps over which it was matched.
    """

    case: str
    backend: str
    match: Match
    condition: str
    workarounds: tuple[str, ...]
    steps: int

    @property
    def evidence(self) -> Evidence:
        """How well it matches."""
        closest = " + ".join(map(str, self.match.closest))
        return Evidence(self.match.residual, self.steps if self.match.faults else None, closest)

    @property
    def note(self) -> str:
        """What else it could be, or empty."""
        return beside(self.match.others)

    @property
    def clause(self) -> str:
        """What is wrong and when, without names and numbers; equal for findings of one kind."""
        match = self.match
        if match.name in CATALOGUE:
            what = CATALOGUE[match.name].sentence
        elif match.faults:
            what = " and ".join(fault.sentence for fault in match.faults)
        else:
            what = "unexplained: no named fault gives these values"
        return f"{what} {self.condition}".rstrip()

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        evidence = how_well([self.evidence])
        extras = [self.note, *(f"verified: {line}" for line in self.workarounds)]
        text = f"{self.backend}, {' '.join(self.match.quantities)}: {self.clause}"
        return "; ".join([f"{text} ({evidence})" if evidence else text, *filter(None, extras)])


def beside(others: Sequence[str]) -> str:
    """Say which faults a case cannot tell apart from the named one."""
    return f"not to be told apart here from {', '.join(others[:3])}" if others else ""


def how_well(evidence: Sequence[Evidence]) -> str:
    """Say how closely the fault's own gradients reproduce the values, over findings of one kind."""
    matched = [one for one in evidence if one.steps is not None]
    if matched:
        residual = max(one.residual for one in matched)
        steps = {one.steps for one in matched}
        where = "at all timesteps" if len(steps) > 1 else f"at all {steps.pop()} timesteps"
        return f"matches to {_digits(residual)} {where}"
    closest = next((one for one in evidence if one.closest), None)
    return f"closest: {closest.closest}, off by {_digits(closest.residual)}" if closest else ""


def _digits(value: float) -> str:
    return f"{value:.1g}" if np.isfinite(value) else "?"


class Investigator:
    """Names what a run found, and varies the cases of live backends to learn more.

    Parameters
    ----------
    outcomes : all judged answers of the run.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.matcher = Matcher()
        self.groups: dict[tuple[str, str], list[Outcome]] = {}
        self.truths: dict[Task, Truth] = {}
        self.tried: dict[tuple[str, Case], dict[str, str]] = {}
        for outcome in outcomes:
            self.groups.setdefault((outcome.task.case.name, outcome.backend), []).append(outcome)
            self.truths[outcome.truth.task] = outcome.truth

    def findings(
        self,
        asking: Callable[[str], Ask | None] = lambda backend: None,
        siblings: Callable[[str], Ask | None] = lambda backend: None,
        workarounds: Callable[[str], Iterable[Workaround]] = lambda backend: (),
    ) -> list[Finding]:
        """Name every disagreement.

        Parameters
        ----------
        asking : how to ask a backend again, by name; None where it is not to be varied.
        siblings : how to ask a backend that took no part in the run, by name; None where there is no way.
        workarounds : what to try for a backend.
        """
        found = []
        for (case, backend), outcomes in self.groups.items():
            seen = [Seen(outcome.truth, outcome.quantities) for outcome in outcomes]
            for match in self.matcher.diagnose(seen, backend.partition("-")[0]):
                ask = asking(backend)
                steps = max(outcome.task.seq_len for outcome in outcomes)
                condition = self._condition(outcomes[-1].task.case, match, ask) if ask and match.faults else ""
                verified = tuple(
                    line
                    for option in workarounds(backend)
                    if (line := self._verified(outcomes, backend, match, option, (asking, siblings)))
                )
                found.append(Finding(case, backend, match, condition, verified, steps))
        return found

    # -- when ----------------------------------------------------------------------------------------------------

    def _condition(self, case: Case, match: Match, ask: Ask) -> str:
        """Vary the requested set, the dtype, the layers and the length, and say what switches the fault on."""
        wanted = [name for name, quantities in QUANTITIES.items() if set(quantities) & set(match.quantities)]
        parts = [self._requests(case, match, ask, wanted)]
        dtypes: dict[str, bool | None] = {case.dtype: True}
        other = "float32" if case.dtype == "float64" else "float64"
        dtypes[other] = self._shows(_in_dtype(case, other), match, ask)
        parts.append(_alike("in", dtypes, "and"))
        layers: dict[int, bool | None] = {case.layers: True}
        if case.layers == 1:
            layers[2] = self._shows(stacked(case), match, ask)
        else:
            layers[1] = self._shows(bottom(case), match, ask)
        parts.append(_alike("with", {f"{n} layer{'s' * (n > 1)}": shows for n, shows in sorted(layers.items())}, "and"))
        if case.seq_len > 1:
            shortest = next((n for n in range(1, case.seq_len) if self._shows(case, match, ask, n)), case.seq_len)
            parts.append(f"from {shortest} steps on" if shortest > 1 else "")
        return ", ".join(filter(None, parts))

    def _requests(self, case: Case, match: Match, ask: Ask, wanted: list[str]) -> str:
        possible = [name for name in REQUESTABLE if name != "c0" or case.mode == "lstm"]
        free = [name for name in possible if name not in wanted]
        shows = {}
        for extra in itertools.chain.from_iterable(itertools.combinations(free, n) for n in range(len(free) + 1)):
            shows[frozenset(extra)] = self._shows(case.replace(requested=(*wanted, *extra)), match, ask)
        known = {extra: shown for extra, shown in shows.items() if shown is not None}
        if not known or all(known.values()):
            return "whatever else is requested" if known and free else ""
        for name in free:
            words = "parameter gradients are" if name == "params" else f"d{name} is"
            if all(shown == (name not in extra) for extra, shown in known.items()):
                return f"unless {words} requested too"
            if all(shown == (name in extra) for extra, shown in known.items()):
                return f"when {words} requested too"
        sets = [" ".join((*wanted, *sorted(extra))) for extra, shown in known.items() if shown]
        return "when requested: " + " | ".join(sets) if sets else ""

    def _shows(self, case: Case | None, match: Match, ask: Ask, seq_len: int | None = None) -> bool | None:
        """Whether a varied case shows the same fault; None where the backend cannot say, or is wrong in another way."""
        if case is None:
            return None
        seen = self._seen(Task(case, seq_len or case.seq_len), ask)
        relevant = [seen.quantities[name] for name in match.quantities if name in seen.quantities]
        if not relevant or all(one.verdict in NO_VALUES for one in relevant):
            return None
        if not any(one.verdict in WRONG for one in relevant):
            return False
        matches = self.matcher.diagnose([seen])
        kinds = {kind for found in matches for kind in found.kinds}
        others = {other for found in matches for other in found.others}
        same = set(match.kinds) <= kinds or any(str(fault) in others for fault in match.faults)
        return True if same else None

    # -- instead -------------------------------------------------------------------------------------------------

    def _verified(
        self,
        outcomes: Sequence[Outcome],
        backend: str,
        match: Match,
        option: Workaround,
        ways: Sequence[Callable[[str], Ask | None]],
    ) -> str:
        """Return the workaround's sentence if a run of it agrees on every quantity that was wrong."""
        case = outcomes[0].task.case
        line = backend.partition("/")[0]
        target = f"{line}/{option.variant}" if option.variant else backend
        if option.request:
            requested = tuple(name for name in REQUESTABLE if name in {*case.requested, *option.request})
            ask = ways[0](target)
            if requested == case.requested or ask is None:
                return ""
            results = [self._try(target, case.replace(requested=requested), ask)]
        elif (case.name, target) in self.groups:
            results = [
                {name: judged.verdict for name, judged in outcome.quantities.items()}
                for outcome in self.groups[case.name, target]
            ]
        elif ask := next((found for way in ways if (found := way(target))), None):
            results = [self._try(target, case, ask)]
        else:
            return ""
        needed = [name for name in match.quantities if name in results[0]]
        right = all(found[name] == AGREES for found in results for name in needed)
        return option.sentence if needed and right else ""

    def _try(self, backend: str, case: Case, ask: Ask) -> dict[str, str]:
        """Return a backend's verdicts on a case; many findings share their workarounds, and each is run once."""
        if (backend, case) not in self.tried:
            seen = self._seen(Task(case, case.seq_len), ask)
            self.tried[backend, case] = {name: judged.verdict for name, judged in seen.quantities.items()}
        return self.tried[backend, case]

    def _seen(self, task: Task, ask: Ask) -> Seen:
        """Have a backend compute a task and judge what it says."""
        if task not in self.truths:
            self.truths[task] = truth(task)
        return Seen(self.truths[task], judge_reply(ask(task), self.truths[task]))


def _in_dtype(case: Case, dtype: str) -> Case | None:
    """Give the case in another dtype; None where its numbers do not fit."""
    try:
        return case.replace(dtype=dtype)
    except BadInputError:
        return None


def _alike(word: str, shows: Mapping[str, bool | None], joiner: str) -> str:
    yes = [name for name, shown in shows.items() if shown]
    no = [name for name, shown in shows.items() if shown is False]
    if not no:
        return f"{word} {f' {joiner} '.join(yes)}" if len(yes) > 1 else ""
    return f"{word} {f' {joiner} '.join(yes)} but not {word} {', '.join(no)}"


def stacked(case: Case) -> Case:
    """Put a second layer of seeded random weights on a case's last; states are zero there."""
    rng = np.random.default_rng(0)
    size, width = case.hidden_size, case.hidden_size * case.directions
    layer = [
        dict(
            zip(
                PARAM_NAMES,
                (
                    rng.normal(0, width**-0.5, (case.gates * size, width)),
                    np.asarray(case.params[-1][direction].weight_hh),
                    np.zeros(case.gates * size),
                    np.zeros(case.gates * size),
                ),
                strict=True,
            )
        )
        for direction in range(case.directions)
    ]
    more = {
        name: np.concatenate([state, np.zeros_like(state[: case.directions])])
        for name in ("h0", "c0", "head_hn", "head_cn")
        if (state := getattr(case, name)) is not None
    }
    return case.replace(params=(*case.params, layer), **more)


def bottom(case: Case) -> Case:
    """Take a case's first layer alone."""
    fewer = {
        name: state[: case.directions]
        for name in ("h0", "c0", "head_hn", "head_cn")
        if (state := getattr(case, name)) is not None
    }
    return case.replace(params=case.params[:1], **fewer)
