"""The pytest plugin: the fixture ``gradbridge``, :func:`assert_gradients_agree`, and ``--gradbridge-csv PATH``.

Every pytest start of every user who has gradbridge installed imports this module, so that it imports nothing of the
house (nor NumPy) before it is used. ``docs/pytest.md`` is its page.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from bridge.backends.base import Backend
    from bridge.backends.callables import Function
    from bridge.case import Case
    from bridge.comparison import Comparison

    CaseLike = Case | str | os.PathLike[str]
    BackendLike = Backend | Function | str

SHOWN = 10
"""Wrong elements that a failure shows."""

_collectors: list[list[Comparison]] = []
"""What has been compared since the last report; one list per configured session, for pytest may run within pytest."""


# -- for tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gradbridge() -> Gradbridge:
    """Compare gradients in a test: ``gradbridge.assert_gradients_agree(case, backend)`` or ``gradbridge.compare``."""
    return Gradbridge()


class Gradbridge:
    """What the fixture gives."""

    def compare(self, *args: Any, **options: Any) -> Comparison:
        """As :func:`bridge.compare`; the result goes into the session's CSV too."""
        import bridge

        comparison = bridge.compare(*args, **options)
        for collected in _collectors[-1:]:
            collected.append(comparison)
        return comparison

    def assert_gradients_agree(
        self,
        case: CaseLike,
        backend: BackendLike,
        quantities: Iterable[str] | None = None,
        known_faults: Iterable[str] = (),
    ) -> Comparison:
        """As :func:`assert_gradients_agree`."""
        __tracebackhide__ = True
        return assert_gradients_agree(case, backend, quantities, known_faults)


def assert_gradients_agree(
    case: CaseLike,
    backend: BackendLike,
    quantities: Iterable[str] | None = None,
    known_faults: Iterable[str] = (),
) -> Comparison:
    """Fail unless a backend's gradients agree with the reference, but for faults that are known.

    Parameters
    ----------
    case : Case, name of a shipped one, or path
    backend : callable ``(case) -> dict of arrays``, backend, or pattern such as ``"mxnet-*/fused-onednn"``
        With a pattern that matches several, each must agree.
    quantities : iterable of str, optional
        Out of ``y``, ``dx``, ``dweight_ih``, ...; by default ``y`` and all that the case requests. One for which there
        is no value (unsupported, unavailable, crashed, timed out) fails as well.
    known_faults : iterable of str
        Names as ``gradbridge faults`` lists them (with or without the detail in parentheses), accepted where they
        explain a disagreement. As with ``xfail(strict=True)``, one that is not seen fails the test: take it out.

    Returns
    -------
    Comparison

    Raises
    ------
    AssertionError
        Showing the first ten wrong elements, the faults' names, and known faults that have gone.
    BadInputError
        For a case, pattern, quantity or name that there is not.
    """
    __tracebackhide__ = True
    from bridge import assertion

    case, quantities, known_faults = assertion.checked(case, quantities, known_faults)
    comparison = Gradbridge().compare(case, [assertion.steady(backend)])
    complaint = assertion.complaint(comparison, quantities, known_faults, SHOWN)
    if complaint:
        raise AssertionError(complaint)
    return comparison


# -- the session's CSV -------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in a group of their own."""
    group = parser.getgroup("gradbridge", "gradbridge: gradients of recurrent networks")
    group.addoption(
        "--gradbridge-csv",
        metavar="PATH",
        default=None,
        help="Write every gradient element that the session's tests compared into one tidy CSV file.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin to collect, where a CSV is asked for."""
    path = config.getoption("--gradbridge-csv")
    if path is None or config.option.collectonly:
        return
    path = os.path.join(config.invocation_params.dir, path)
    if not hasattr(config, "workerinput"):
        from bridge.errors import BadInputError
        from bridge.report.files import check_writable

        try:
            check_writable(os.path.dirname(path))
        except BadInputError as error:
            raise pytest.UsageError(f"--gradbridge-csv: {error}") from None
        if os.path.isdir(path):
            raise pytest.UsageError(f"--gradbridge-csv: {path}: expected a file, found a folder")
    config.pluginmanager.register(Collector(path, writes=not hasattr(config, "workerinput")), "gradbridge-csv")


class Collector:
    """Carries each test's rows on its reports, which pytest-xdist brings home, and writes them all at the end."""

    def __init__(self, path: str, writes: bool) -> None:
        self.path, self.writes = path, writes
        self.made: list[Comparison] = []
        self.rows: dict[tuple[str, int], str] = {}
        self.failure = ""
        _collectors.append(self.made)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Put the rows of what was compared in this phase of the test on its report."""
        report = yield
        if self.made:
            from bridge import assertion

            report.gradbridge = assertion.rows(item.nodeid, self.made)
            self.made.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take them off again, in the process that writes."""
        text = getattr(report, "gradbridge", "")
        if self.writes and text:
            phase = ("setup", "call", "teardown").index(report.when or "call")
            self.rows[report.nodeid, phase] = text

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, sorted by test: the order in which workers finish is chance."""
        if not self.writes:
            return
        from bridge import assertion

        try:
            assertion.write(self.path, [self.rows[key] for key in sorted(self.rows)])
        except OSError as error:
            self.failure = f"{self.path} cannot be written: {error.strerror or error}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the file is."""
        terminalreporter.write_line(f"gradbridge: {self.failure or self.path}", red=bool(self.failure))

    def pytest_unconfigure(self) -> None:
        """End collecting."""
        if self.made in _collectors:
            _collectors.remove(self.made)
