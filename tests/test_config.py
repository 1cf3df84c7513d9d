"""``gradbridge.toml``: found in order, paths relative to it, refused in one line."""

import pytest

import bridge
from bridge.config import config_path, load_config


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADBRIDGE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def test_without_a_file_there_is_nothing_in_it():
    assert config_path() is None
    assert load_config() == {"flux": [], "recordings": []}


def test_the_named_file_comes_before_the_folders_and_that_before_the_users(elsewhere, monkeypatch):
    (elsewhere / "home" / "gradbridge").mkdir(parents=True)
    (elsewhere / "home" / "gradbridge" / "gradbridge.toml").write_text('recordings = ["home"]')
    assert load_config()["recordings"][0].endswith("home/gradbridge/home")
    (elsewhere / "gradbridge.toml").write_text('recordings = ["here"]')
    assert load_config()["recordings"] == [str(elsewhere / "here")]
    (elsewhere / "other.toml").write_text('recordings = ["there"]')
    monkeypatch.setenv("GRADBRIDGE_CONFIG", str(elsewhere / "other.toml"))
    assert load_config()["recordings"] == [str(elsewhere / "there")]


def test_paths_are_relative_to_the_file_and_a_bare_program_is_left_to_path(elsewhere):
    (elsewhere / "gradbridge.toml").write_text(
        '[[flux]]\nproject = "p"\njulia = "bin/julia"\npython = "python3"\nenv = { A = "b" }\n'
        '[[flux]]\nproject = "/q"\n'
    )
    first, second = load_config()["flux"]
    assert first == {
        "project": str(elsewhere / "p"), "julia": str(elsewhere / "bin/julia"), "python": "python3", "env": {"A": "b"},
    }  # fmt: skip
    assert second == {"project": "/q", "env": {}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flux = 1", "flux: expected the keys"),
        ('[[flux]]\njulia = "x"', "missing required field `project`"),
        ('[[flux]]\nproject = "p"\nversion = 3', "unknown field `version`"),
        ('[[flux]]\nproject = "p"\nenv = { A = 1 }', "Expected `str`, got `int`"),
        ("recordings = ", "expected TOML"),
        ("colour = 'red'", "unknown field `colour`"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_it(elsewhere, text, words):
    (elsewhere / "gradbridge.toml").write_text(text)
    with pytest.raises(bridge.BadInputError) as caught:
        load_config()
    assert words in str(caught.value)
    assert "gradbridge.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
