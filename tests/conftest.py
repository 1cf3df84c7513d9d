"""Shared by all tests."""

import importlib.util
import subprocess
import sys

import hypothesis
import pytest

import bridge
from bridge.backends import flux
from bridge.config import cache_folder, load_config
from bridge.workers import Worker

# a run of the tests draws the same cases each time
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")

USERS_CACHE = str(cache_folder())


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory):
    """Keep what the user has added to gradbridge out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def users_cache(empty_cache):
    """Let live tests see what the user has added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADBRIDGE_CACHE", USERS_CACHE)
        yield


@pytest.fixture(scope="module", params=range(4))
def line(request, users_cache):
    """A live Flux line's worker, with what it says of itself."""
    named = flux.named_lines(None, load_config()["flux"])
    lines = [*named, *(line for line in flux.managed_lines() if line.installed)]
    if not lines:
        pytest.skip(
            "no live Flux found: set PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT, name one in gradbridge.toml, "
            "or let `gradbridge flux --live` install one"
        )
    if request.param >= len(lines):
        pytest.skip(f"only {len(lines)} live Flux found")
    worker = Worker(lines[request.param].launch, 600)
    yield worker, worker.start()
    worker.stop()


@pytest.fixture(scope="session")
def seed_run():
    """The default comparison of the seed report's case, run once."""
    require_mxnet()
    return bridge.compare("mxnet-21143", ["mxnet-*"])


def require_mxnet():
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("mxnet is not installed: pip install mxnet==2.0.0b1")


@pytest.fixture
def run_python(tmp_path):
    """Run a script in a fresh interpreter and return what it printed."""

    def run(script, *args):
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
