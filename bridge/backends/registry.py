"""All backends there are, and how a pattern picks among them."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, cast

from packaging.version import InvalidVersion, Version

from bridge.backends import callables, flux, mxnet, recorded, torch
from bridge.backends.base import Backend, LiveBackend
from bridge.config import load_config
from bridge.errors import BadInputError
from bridge.workers import WorkerError


class BackendName(NamedTuple):
    """A backend's name taken apart: ``mxnet-native-1.8.0.post0/unrolled`` is a build of MXNet.

    Attributes
    ----------
    framework : ``mxnet``.
    line : ``mxnet-native-1.8.0.post0``.
    variant : ``unrolled``.
    """

    framework: str
    line: str
    variant: str

    @classmethod
    def parse(cls, name: str) -> BackendName:
        """Take a name apart; one without a version is a framework of its own."""
        line, _, variant = name.partition("/")
        family = line.rpartition("-")[0] or line
        return cls("mxnet" if family in mxnet.DISTRIBUTIONS else family, line, variant)

    def age(self) -> tuple[Version, str]:
        """Sort key among the lines of one framework, oldest first."""
        try:
            return Version(self.line.rpartition("-")[2]), self.line
        except InvalidVersion:
            return Version("0"), self.line


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where answers may come from.

    Attributes
    ----------
    live : None uses a live Flux where one is installed or named; True also lets juliapkg install its lines on first
        use; False leaves recordings alone.
    julia_project : folder of a Julia project that holds a Flux.
    recordings : folders searched before the shipped recordings.
    says : told what a slow first look at a Julia environment does.
    """

    live: bool | None = None
    julia_project: str | None = None
    recordings: tuple[Path, ...] = ()
    says: Callable[[str], None] | None = None


def select(
    patterns: Iterable[str | Backend | callables.Function] | None, sources: Sources | None = None
) -> list[Backend]:
    """Backends whose name matches any pattern (shell wildcards; a pattern without ``/`` matches either half).

    Without patterns: every MXNet variant and a handful of telling Flux variants. A callable is a backend of its own.

    Raises
    ------
    BadInputError
        For a pattern that matches nothing, or what is neither pattern, backend nor callable.
    """
    sources = sources or Sources()
    if patterns is None:
        return [*mxnet.backends(), *(b for b in flux_backends(sources) if _telling(b.name))]
    chosen: list[Backend] = []
    known: list[Backend] | None = None
    for pattern in patterns:
        if not isinstance(pattern, str):
            chosen.append(_backend(pattern, chosen))
            continue
        known = all_backends(sources) if known is None else known
        matching = [backend for backend in known if _matches(backend.name, pattern)]
        matching = matching or [backend for backend in torch.missing() if _matches(backend.name, pattern)]
        if not matching:
            families = ", ".join(dict.fromkeys(backend.name.partition("/")[0] + "/..." for backend in known))
            raise BadInputError("backend", "", f"a pattern that matches one of {families}", repr(pattern))
        chosen += matching
    return list({backend.name: backend for backend in chosen}.values())


def every_version(chosen: Iterable[Backend], sources: Sources | None = None) -> list[Backend]:
    """Return the chosen backends with the same variants of every other version at hand."""
    chosen = list(chosen)

    def kind(backend: Backend) -> tuple[str, str]:
        name = BackendName.parse(backend.name)
        return name.framework, name.variant

    kinds = set(map(kind, chosen))
    more = [backend for backend in all_backends(sources or Sources()) if kind(backend) in kinds]
    return list({backend.name: backend for backend in [*chosen, *more]}.values())


def all_backends(sources: Sources) -> list[Backend]:
    """Every backend that a pattern can name: MXNet, Flux by version, PyTorch where installed, other packages' own."""
    return [*mxnet.backends(), *flux_backends(sources), *torch.backends(), *callables.entry_point_backends()]


def _backend(given: Backend | callables.Function, others: Iterable[Backend]) -> Backend:
    """Take a backend as it is, and make one of a callable; every lambda is called ``lambda``, so they are numbered."""
    if hasattr(given, "open"):
        return cast("Backend", given)
    made = callables.as_backend(given)
    taken = {other.name for other in others}
    names = itertools.chain([made.name], (f"{made.name}-{n}" for n in itertools.count(2)))
    return dataclasses.replace(made, name=next(name for name in names if name not in taken))


def flux_backends(sources: Sources) -> list[Backend]:
    """Every Flux variant: live where its line is at hand, else recorded."""
    config = load_config()
    recordings = recorded.find([*sources.recordings, *map(Path, config["recordings"])])
    lines, broken = _lines(sources, config["flux"], recordings)
    live = flux.live_backends(lines)
    at_hand = {line.version for line in lines}
    rest: list[Backend] = [
        recorded.RecordedBackend(
            recording, variant, flux.about(variant), _how_to_get(recording.line), flux.workarounds(variant)
        )
        for recording in recordings
        if recording.line.startswith("flux-") and recording.line.removeprefix("flux-") not in at_hand
        for variant in recording.variants
    ]
    return [*sorted([*live, *rest], key=lambda backend: BackendName.parse(backend.name).age()), *broken]


def _lines(
    sources: Sources, config: Iterable[dict[str, object]], recordings: list[recorded.Recording]
) -> tuple[list[flux.Line], list[LiveBackend]]:
    if sources.live is False:
        return [], []
    lines, broken = [], []
    for line in flux.named_lines(sources.julia_project, list(config)):
        try:
            lines.append(line if line.version else flux.look(line, sources.says))
        except WorkerError as error:
            broken.append(LiveBackend(f"flux-unknown/{Path(line.origin).name}", "", line.launch, str(error)))
    named = {line.version for line in lines}
    for line in flux.managed_lines():
        if (line.installed or sources.live) and line.version not in named:
            variants = line.variants or flux.recorded_variants(recordings, line.version)
            lines.append(dataclasses.replace(line, variants=variants))
    return lines, broken


def _how_to_get(line: str) -> str:
    version = line.removeprefix("flux-")
    if version in flux.MANAGED.values():
        return "to run it live: --live (juliapkg installs Julia and this Flux on first use)"
    return "to run it live: name a Julia project that holds it, see `gradbridge doctor`"


def _telling(name: str) -> bool:
    return name.startswith("flux-unknown/") or name.partition("/")[2] in flux.TELLING


def _matches(name: str, pattern: str) -> bool:
    halves = [name] if "/" in pattern else [name, *name.split("/", 1)]
    return any(fnmatch.fnmatchcase(half, pattern) for half in halves)
