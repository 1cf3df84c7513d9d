"""``gradbridge env``: whole or not at all, with a tiny package in MXNet's place, which pip really installs."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import bridge
from bridge import environments
from bridge.backends.registry import Sources, select
from bridge.cli import main
from bridge.doctor import examine

GRADIENT = 'Reply({quantity: Answer(np.full(task.case.x.shape, 0.5)) for quantity in ("y", "dx")})'
PACKAGE = """
import numpy as np
import bridge.backends.mxnet as backend
from bridge.answers import Answer, Reply

%s

class runtime:
    Features = dict

def run(self, task, variant):
    return %s

backend.MXNet.run, backend.MXNet.disturb = run, lambda self: None
"""


def wheel(folder, name, version, files, needs=()):
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(path, text)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that finds nothing but a package called mxnet and what goes with it."""
    offered = tmp_path / "wheels"
    offered.mkdir()
    real = sysconfig.get_paths()["purelib"]  # this Python's NumPy stands in for the one that pip would download
    for version in ("1.23.5", "1.26.4"):
        wheel(offered, "numpy", version, {"here.pth": f"{real}\n"})
    wheel(offered, "setuptools", "80.0", {})
    offer(offered)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    monkeypatch.setenv("GRADBRIDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def offer(folder, begin="", gradient=GRADIENT, needs=()):
    wheel(folder, "mxnet", "1.0.0", {"mxnet/__init__.py": PACKAGE % (begin, gradient)}, needs)


def left(cache):
    """What there is in the cache, but for the lock and the folder of environments."""
    return sorted(
        path.name for path in [*cache.glob("*"), *cache.glob("envs/*")] if path.name not in ("envs", "envs.lock")
    )


def gradbridge(*args):
    return CliRunner().invoke(main, list(args))


def start(*args):
    command = [sys.executable, "-m", "bridge", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_added_environment_is_a_backend_like_any_other_until_it_is_removed(cache):
    assert "no environments" in gradbridge("env", "list").output
    with pytest.raises(bridge.BadInputError):
        select(["mxnet-1.0.0/*"])
    done = gradbridge("env", "add", "mxnet==1.0.0")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"mxnet==1.0.0 is ready: {cache / 'envs' / 'mxnet-1.0.0'}"
    assert left(cache) == ["mxnet-1.0.0"]
    again = gradbridge("env", "add", "mxnet == 1.0")
    assert (again.exit_code, "is there already" in again.output) == (0, True)
    assert gradbridge("env", "list").output.startswith("mxnet==1.0.0 ")
    done = gradbridge("env", "remove", "mxnet==2")
    assert (done.exit_code, "expected mxnet==1.0.0, found mxnet==2" in done.output) == (2, True)

    case = bridge.load_case("flux-1547").replace(requested=("x",))
    summary = bridge.compare(case, ["mxnet-1.0.0/*-native"]).summary
    assert set(summary["backend"]) == {f"mxnet-1.0.0/{way}-native" for way in ("fused", "cached", "gluon")}
    assert set(summary["verdict"]) == {"disagrees"}  # 0.5 is not the gradient
    (found,) = [finding for finding in examine(Sources(live=False)) if finding.what == "mxnet-1.0.0"]
    assert found.state == "found"
    assert "version=1.0.0" in found.detail

    done = gradbridge("env", "remove", "mxnet==1.0.0")
    assert (done.exit_code, done.stdout.strip()) == (0, "mxnet==1.0.0 is removed")
    assert left(cache) == []
    with pytest.raises(bridge.BadInputError):
        select(["mxnet-1.0.0/*"])


def test_an_environment_whose_interpreter_is_gone_is_unavailable_with_the_reason(cache):
    (cache / "envs" / "mxnet-1.0.0").mkdir(parents=True)
    (row,) = bridge.compare("mxnet-21143", ["mxnet-1.0.0/unrolled"]).backend_rows
    assert (row["state"], "there is no interpreter" in row["reason"]) == ("unavailable", True)
    (found,) = [finding for finding in examine(Sources(live=False)) if finding.what == "mxnet-1.0.0"]
    assert found.state == "broken"
    assert found.remedy == "gradbridge env remove mxnet==1.0.0; gradbridge env add mxnet==1.0.0"


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ({"begin": 'raise ImportError("libgfortran.so.3")'}, "does not start: ImportError: libgfortran.so.3"),
        ({"begin": "import os; os._exit(7)"}, "does not start: the process ended with exit code 7"),
        ({"gradient": "1 / 0"}, "it starts, but gives no gradient: ZeroDivisionError"),
        ({"gradient": GRADIENT.replace("0.5", "np.nan")}, "it starts, but y of flux-1547 is not finite"),
        (
            {"needs": ["no-such-package==3"]},
            "pip says: Could not find a version that satisfies the requirement no-such",
        ),
    ],
)
def test_what_fails_is_explained_in_one_line_and_nothing_is_left(cache, package, words):
    offer(cache.parent / "wheels", **package)
    done = gradbridge("env", "add", "mxnet==1.0.0")
    assert done.exit_code == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gradbridge: mxnet==1.0.0 could not be made; nothing is left of it: ")
    assert words in last
    assert left(cache) == []


def test_without_a_network_one_line_says_so(cache, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    done = gradbridge("env", "add", "mxnet==1.0.0")
    assert done.exit_code == 3
    assert "pip reaches no package index ([Errno 111] Connection refused)" in done.stderr.splitlines()[-1]
    assert left(cache) == []


@pytest.mark.parametrize(
    ("command", "spec", "words"),
    [
        ("add", "mxnet", "expected mxnet==VERSION, mxnet-native==VERSION, flux==0.14 or flux==0.16, found 'mxnet'"),
        ("add", "mxnet==../x", "expected mxnet==VERSION"),
        ("add", "torch==2", "expected mxnet==VERSION"),
        ("add", "mxnet==1.0.1", "mxnet==1.0.1: expected a version that pip finds for this Python, such as 1.0.0"),
        ("add", "mxnet==1.0", "mxnet==1.0: expected the version in full, mxnet==1.0.0, found 1.0"),
        ("add", "flux==0.12.1", "expected flux==0.14 or flux==0.16, which juliapkg can install"),
        ("remove", "mxnet==1.0.0", "expected an environment that is there (there is none), found mxnet==1.0.0"),
        ("remove", "flux==0.16", "expected an environment that is there (there is none), found flux==0.16"),
        ("remove", "1.0.0", "expected mxnet==VERSION"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_tells_what_can(cache, command, spec, words):
    done = gradbridge("env", command, spec)
    assert done.exit_code == 2
    assert words in done.stderr.splitlines()[-1]
    assert left(cache) == []


def test_a_cache_that_cannot_be_written_is_refused(cache):
    cache.write_text("a file")
    done = gradbridge("env", "add", "mxnet==1.0.0")
    assert done.exit_code == 2
    assert "expected a folder that can be written" in done.stderr


@pytest.fixture
def stuck(cache):
    """An ``env add`` that has come to the import of its package, which does not return."""
    pipe = cache.parent / "pipe"
    os.mkfifo(pipe)
    begin = (
        f"import os, time\nwith open({str(pipe)!r}, 'w') as pipe:\n    pipe.write(str(os.getpid()))\ntime.sleep(600)"
    )
    offer(cache.parent / "wheels", begin)
    process = start("env", "add", "mxnet==1.0.0")
    worker = psutil.Process(int(pipe.read_text()))  # waits until the package is imported
    assert left(cache) == [".mxnet-1.0.0"]
    yield process
    process.kill()
    process.communicate()
    psutil.wait_procs([worker], timeout=30)
    assert not worker.is_running()


def test_an_interrupt_leaves_nothing(cache, stuck):
    stuck.send_signal(signal.SIGINT)
    _, said = stuck.communicate(timeout=60)
    assert stuck.returncode == 130
    assert "Traceback" not in said
    assert left(cache) == []


def test_an_interrupt_while_pip_downloads_ends_pip_too(cache, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        process = start("env", "add", "mxnet==1.0.0")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(3) == b"GET"  # an answer never comes
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            while connection.recv(65536):
                pass  # the rest of the request, then the end, as pip has gone
    assert process.returncode == 130
    assert "Traceback" not in said
    assert left(cache) == []


def test_what_a_killed_process_left_is_removed_by_the_next_command(cache, stuck):
    stuck.kill()
    stuck.wait()
    assert left(cache) == [".mxnet-1.0.0"]
    with pytest.raises(bridge.BadInputError):
        select(["mxnet-1.0.0/*"])  # not a backend
    done = gradbridge("env", "list")
    assert "removed what an interrupted `gradbridge env` left of mxnet-1.0.0" in done.stderr
    assert left(cache) == []


def test_who_comes_second_waits_and_the_list_does_not(cache, stuck):
    second = start("env", "add", "mxnet==1.0.0")
    assert "waiting for it" in second.stderr.readline()
    done = gradbridge("env", "list")
    assert (done.exit_code, "no environments" in done.stdout) == (0, True)
    assert left(cache) == [".mxnet-1.0.0"]  # what is being built is left alone
    offer(cache.parent / "wheels")
    stuck.kill()
    said, _ = second.communicate(timeout=120)
    assert (second.returncode, "is ready" in said) == (0, True)
    assert left(cache) == ["mxnet-1.0.0"]


def test_a_flux_that_juliapkg_cannot_install_is_explained_and_nothing_is_left(cache, tmp_path, monkeypatch):
    pytest.importorskip("juliapkg")
    (tmp_path / "julia").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "julia").chmod(0o755)
    monkeypatch.setenv("PYTHON_JULIAPKG_EXE", str(tmp_path / "julia"))
    for name in ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    done = gradbridge("env", "add", "flux==0.14")
    assert done.exit_code == 3
    last = done.stderr.splitlines()[-1]
    assert "flux==0.14 could not be made; nothing is left of it: juliapkg, which installs Julia and Flux for it" in last
    assert "is not a Julia executable" in last
    assert left(cache) == []


def test_a_flux_of_juliapkgs_is_listed_and_removed_and_half_of_one_is_swept(cache):
    project = cache / "flux-0.14" / "pyjuliapkg"
    project.mkdir(parents=True)
    (project / "meta.json").write_text("{}")
    assert "by juliapkg" in gradbridge("env", "list").output
    assert "flux==0.14 is there already" in gradbridge("env", "add", "flux==0.14.25").output
    (cache / "envs" / ".flux-0.14").mkdir(parents=True)  # as a killed `env add flux==0.14` leaves it
    assert "left of flux-0.14" in gradbridge("env", "list").stderr
    assert left(cache) == []
    project.mkdir(parents=True)
    (project / "meta.json").write_text("{}")
    assert gradbridge("env", "remove", "flux==0.14").exit_code == 0
    assert left(cache) == []


def test_what_this_python_has_is_neither_added_nor_listed_twice(cache):
    here = next(backend.name for backend in select(["mxnet-*/unrolled"])).partition("/")[0]
    spec = here.replace("-", "==", 1)
    if any(backend.unavailable for backend in select([f"{here}/unrolled"])):
        pytest.skip("mxnet is not installed: pip install mxnet==2.0.0b1")
    assert f"{spec} is installed in this Python already" in gradbridge("env", "add", spec).output
    (cache / "envs" / here).mkdir(parents=True)
    assert len(select([f"{here}/unrolled"])) == 1
    assert [b.launch.python for b in select([f"{here}/unrolled"])] == [sys.executable]


def test_a_spec_reads_the_version_not_its_spelling(cache):
    assert environments.parse("mxnet-native==1.8.0-post0").spec == "mxnet-native==1.8.0.post0"
    assert environments.parse("flux==0.16.5").spec == "flux==0.16"
    assert Path(environments.parse("mxnet==1.9.1").folder) == cache / "envs" / "mxnet-1.9.1"
