"""``plan``: its JSON, its table, and every kind of mistake before anything runs."""

from __future__ import annotations

import pytest
from commands import TOY, Commands
from toys import TOY_MATRIX

from classfair.resolve import PAPER_ORDER


@pytest.fixture(autouse=True)
def _known_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classfair.stamps.stamped", lambda *_: "known")


def test_plan_counts_the_cells_of_the_table(command: Commands) -> None:
    told = command.json("plan", "m.yaml", *TOY)
    assert (told["total"], told["cached"], len(told["cells"])) == (4, 0, 4)
    cell = told["cells"][2]
    assert (cell["method"], cell["recipe"], cell["seed"]) == ("steep", "base", 0)
    assert cell["settings"]["slope"] == 2.0
    assert len(cell["key"]) == 64
    assert cell["folder"] == f"steep--base--s0--{cell['key'][:8]}"
    assert (cell["cached"], cell["why"]) == (False, "not run yet")


def test_plan_prints_a_row_for_each_method_of_a_recipe(command: Commands) -> None:
    (command.folder / "m.yaml").write_text(TOY_MATRIX + "ranking_runs: 3\n")
    lines = command.out("plan", "m.yaml", *TOY).splitlines()
    assert lines[0] == "toys. Toys."
    assert [line.split()[:4] for line in lines[3:5]] == [
        ["base", "erm", "2", "0"],
        ["base", "steep", "2", "0"],
    ]
    assert lines[5].split()[:4] == ["base", "ranking", "runs", "3"]
    assert lines[-1] == (
        "4 cells, 0 of them done; 3 ranking runs; 112 steps over 11,200 images left to train."
    )


def test_plan_makes_no_folder_and_names_what_is_skipped(command: Commands) -> None:
    with (command.folder / "base.yaml").open("a") as recipe:
        recipe.write("regime: probe\n")
    out = command.out("plan", "m.yaml", "--add", "method=scratchy", "--results", "none", *TOY)
    assert "skipped: scratchy on base, seed 0: scratchy does not support regime probe" in out
    assert not (command.folder / "none").exists()


def test_the_quickstart_has_every_built_in_method_in_the_order_of_the_paper(
    command: Commands,
) -> None:
    told = command.json("plan", "quickstart")
    methods = list(dict.fromkeys(cell["method"] for cell in told["cells"]))
    assert methods == [name for name in PAPER_ORDER if name in methods]
    assert {"erm", "mr2", "sam", "lff", "jtt", "supcon"} <= set(methods)
    assert told["total"] == 3 * len(methods)
    assert "digits" in {cell["recipe"].partition("_")[0] for cell in told["cells"]}


@pytest.mark.parametrize("name", ["fashion_quick", "fashion15"])
def test_every_experiment_can_be_planned_without_its_data(
    command: Commands, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("classfair.stamps.stamped", lambda *_: None)
    told = command.json("plan", name)
    assert told["total"] == len(told["cells"]) > 0
    assert {cell["cached"] for cell in told["cells"]} == {None}
    assert len(told["ranking_runs"]) == (5 if name == "fashion15" else 0)


def test_options_change_the_plan(command: Commands) -> None:
    told = command.json(
        *("plan", "m.yaml", *TOY, "--set", "epochs=1", "--set", "steep.rounds=7"),
        *("--only", "method=erm", "--only", "seed=1", "--add", "method=steep"),
    )
    labels = [(cell["label"], cell["seed"]) for cell in told["cells"]]
    assert labels == [("erm", 1), ("steep", 1)]
    assert told["cells"][1]["settings"]["rounds"] == 7
    assert told["cells"][0]["steps"] == 4
    assert "Changed on the command line: epochs=1" in told["caption"]


MISTAKES = [
    (("plan", "quikstart"), "no experiment 'quikstart'; did you mean quickstart"),
    (("plan", "no.yaml"), "no.yaml: no such file"),
    (("plan", "quickstart", "--set", "epoch=1"), "--set epoch=1: no recipe key"),
    (("plan", "quickstart", "--set", "mr2.cbar=1"), "mr2: no setting 'cbar'; did you mean c_bar"),
    (("plan", "quickstart", "--only", "method=mrr"), "not in this matrix; did you mean"),
    (("plan", "quickstart", "--data", "nowhere"), "--data nowhere: no such folder"),
    (("plan", "quickstart", "--results", "m.yaml"), "--results m.yaml: not a folder"),
    (("plan",), "Missing argument 'NAME|FILE'"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_ends_with_exit_code_2_and_a_message(
    command: Commands, arguments: tuple[str, ...], message: str
) -> None:
    assert message in command.mistake(*arguments)


def test_a_mistake_in_a_file_is_named_with_line_and_column(command: Commands) -> None:
    (command.folder / "base.yaml").write_text("name: base\nname: base\n")
    message = command.mistake("plan", "m.yaml", *TOY)
    assert "base.yaml:2:1: key 'name' was already given in " in message
    assert message.endswith("base.yaml:1\n")
