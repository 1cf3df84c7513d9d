"""Shared by all tests."""

import importlib.util
import subprocess
import sys

import pytest

import bridge


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
