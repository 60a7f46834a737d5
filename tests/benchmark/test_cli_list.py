"""``list`` and ``describe``: what there is, with its plugin and version."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import TOY, Commands

from classfair.describe import ALL_KINDS
from classfair_registry.manager import version

BROKEN = "import a_module_that_is_not_there\n"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_is_listed_with_name_summary_plugin_and_version(
    command: Commands, kind: str
) -> None:
    found = command.json("list", kind, *TOY)
    assert found
    for entry in found:
        assert {"name", "summary", "plugin", "version"} <= set(entry)
        assert "\n" not in entry["summary"]
    names = [entry["name"] for entry in found]
    assert len(set(names)) == len(names)
    text = command.out("list", kind, *TOY)
    assert len(text.splitlines()) == len(found) + 1
    assert all(name in text for name in names)


def test_a_plugin_of_one_file_is_listed_before_or_after_the_verb(command: Commands) -> None:
    after = {entry["name"]: entry for entry in command.json("list", "methods", *TOY)}
    before = {entry["name"]: entry for entry in command.json(*TOY, "list", "method")}
    assert after == before
    assert after["steep"]["plugin"] == "toy_plugin"
    assert after["steep"]["origin"] == "file"
    assert after["mr2"]["version"] == version()
    assert after["mr2"]["origin"] == "built-in"
    assert "steep" not in {entry["name"] for entry in command.json("list", "methods")}


def test_a_plugin_that_fails_to_load_is_shown_with_its_cause_and_hurts_nothing(
    command: Commands, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    arguments = ("list", "plugins", "--plugin", "broken.py", *TOY)
    found = {entry["name"]: entry for entry in command.json(*arguments)}
    assert "No module named 'a_module_that_is_not_there'" in found["broken"]["error"]
    assert found["toy_plugin"]["error"] is None
    assert "method steep" in found["toy_plugin"]["provides"]
    code, out, err = command(*arguments)
    assert code == 0
    assert "FAILED: ModuleNotFoundError" in out
    assert "plugin broken (" in err
    detail = command.out("describe", "plugin", "broken", "--plugin", "broken.py")
    assert "Traceback" in detail


def test_the_local_file_is_a_plugin(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "classfair_plugins.py").write_text(Path(TOY[1]).read_text())
    found = {entry["name"]: entry for entry in command.json("list", "methods")}
    assert found["steep"]["plugin"] == "classfair_plugins"


def test_a_method_is_described_with_settings_ranges_and_sources(command: Commands) -> None:
    text = command.out("describe", "method", "steep", *TOY)
    assert "STEEP (steep)" in text
    assert "slope: float, default 1.0, 0 to inf, searched 0.5 to 2.0" in text
    assert "lambda: float, default 0.5, -inf to 1" in text
    assert "source: paper, eq. 3" in text
    assert "mode: str, default up, one of up, down" in text
    assert "capabilities: distributed false, resume exact" in text
    assert "reference: Nobody, A Toy, 2020" in text
    assert "cost: 1.0" in text
    assert "A plugin of one file for tests" in text


def test_a_built_in_method_is_described_by_its_module(command: Commands) -> None:
    told = command.json("describe", "method", "mr2")
    assert "margins" in told["doc"]
    assert "Equations." in told["doc"]
    assert {"regimes", "revision", "cost", "reference", "capabilities"} <= set(told)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dataset", "digits"),
        ("backbone", "resnet8"),
        ("metric", "overall"),
        ("launcher", "local"),
        ("reporter", "csv"),
        ("plugin", "classfair_plugins.datasets.digits"),
    ],
)
def test_one_of_each_kind_is_described(command: Commands, kind: str, name: str) -> None:
    text = command.out("describe", kind, name)
    assert name in text.splitlines()[0]
    assert "plugin: " in text or kind == "plugin"
    assert "partial" not in text


def test_recipes_and_experiments_are_printed_as_written(command: Commands) -> None:
    recipe = command.out("describe", "recipe", "digits_resnet8")
    assert "epochs: 10" in recipe
    assert "methods: all" in command.out("describe", "experiment", "quickstart")
    assert "seeds: [0, 1]" in command.out("describe", "experiment", "m.yaml")


MISTAKES = [
    (("list", "methds"), "no kind 'methds'; did you mean methods"),
    (("describe", "methods", "mr"), "no method 'mr'; did you mean mr2"),
    (("describe", "experiments", "quickstar"), "no experiment 'quickstar'; did you mean"),
    (("describe", "plugin", "digits"), "no plugin 'digits'"),
    (("list", "methods", "--plugin", "no.py"), "--plugin no.py: no such file"),
    (("list", "methods", "--jsn"), "No such option: --jsn"),
    (("lst", "methods"), "No such command 'lst'"),
    (("list",), "Missing argument 'KIND'"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_ends_with_exit_code_2_and_a_message(
    command: Commands, arguments: tuple[str, ...], message: str
) -> None:
    assert message in command.mistake(*arguments)


def test_help_names_every_verb_and_the_version_is_the_installed_one(command: Commands) -> None:
    text = command.out("--help")
    for verb in ("list", "describe", "plan", "run", "status", "report", "doctor", "plugin"):
        assert f"  {verb} " in text
    assert command.out("--version") == f"classfair {version()}\n"
