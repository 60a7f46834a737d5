"""``run`` and ``report``: what they hand on, what they print, how they end; one real cell."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import TOY, Commands
from toys import TOY_MATRIX, finish

from classfair import runner
from classfair.outcome import Outcome
from classfair.results import CellState, Results
from classfair_registry.records import CellInfo, MatrixInfo

MINE = """
from torch.nn import functional as F
from classfair_registry import hookimpl
from classfair_registry.plain import PlainLoss
from classfair_registry.specs import MethodSpec

class Mine(PlainLoss):
    def loss(self, batch):
        return F.cross_entropy(self.classifier(batch.images), batch.labels, label_smoothing=0.1)

@hookimpl
def classfair_methods():
    return [MethodSpec("mine", "Mine", Mine, "label smoothing", "none", 1.0)]
"""


@dataclasses.dataclass
class Runner:
    """Stands in for the runner: finishes the chosen cells and ends as it is told."""

    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    matrix: MatrixInfo | None = None
    chosen: frozenset[str] = frozenset()
    given: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(
        self, matrix: MatrixInfo, results: Path, *rest: Any, chosen: frozenset[str], **given: Any
    ) -> Outcome:
        self.matrix, self.chosen = matrix, chosen
        self.given = {"launcher": rest[1].name, "options": rest[2], **given}
        Results(results).prepare()
        Results(results).expect(matrix)
        for cell in self.cells:
            if not (results / cell.folder).exists():
                finish(results, cell)
        return self.outcome

    @property
    def cells(self) -> list[CellInfo]:
        """The cells that were to be run."""
        assert self.matrix is not None
        return [cell for cell in self.matrix.cells if cell.key in self.chosen]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Put a runner in the place of the real one."""
    made = Runner()
    monkeypatch.setattr(runner, "run", made.run)
    return made


def test_run_hands_on_cells_and_options_and_prints_the_leaderboard(
    command: Commands, fake: Runner
) -> None:
    out = command.out(
        *("run", "m.yaml", *TOY, "--results", "r", "--max-parallel", "3", "--minutes", "5"),
        *("--jobs-per-device", "2", "--device", "cpu", "--allow-skips"),
    )
    assert [(c.method.label, c.seed) for c in fake.cells] == [
        ("erm", 0),
        ("erm", 1),
        ("steep", 0),
        ("steep", 1),
    ]
    options = fake.given["options"]
    assert (options.device, options.jobs_per_device, options.max_parallel) == ("cpu", 2, 3)
    assert (fake.given["minutes"], fake.given["allow_skips"]) == (5.0, True)
    assert fake.given["launcher"] == "local"
    assert re.search(r"^ERM ◆ +50\.0 ± 0\.0 ", out, re.MULTILINE)
    assert re.search(r"^STEEP \(slope 2\) ◆ +50\.0 ± 0\.0 ", out, re.MULTILINE)
    assert "Toys." in out
    assert out.endswith("Results: r\n")


def test_run_of_some_cells_expects_all_and_prints_those(command: Commands, fake: Runner) -> None:
    out = command.out("run", "m.yaml", *TOY, "--only", "seed=1", "--only", "method=steep")
    assert [(c.method.label, c.seed) for c in fake.cells] == [("steep", 1)]
    assert fake.matrix is not None
    assert len(fake.matrix.cells) == 4
    assert "ERM" not in out.split("Results")[0].replace("ERM = 1", "")
    assert re.search(r"^STEEP \(slope 2\) +50\.0 ", out, re.MULTILINE)


def test_the_quickstart_says_what_it_shows(command: Commands, fake: Runner) -> None:
    out = command.out("run", "quickstart", "--only", "method=erm,mr2")
    words = " ".join(out.split())
    assert "shows the machinery, not the methods" in words
    assert {c.method.name for c in fake.cells} == {"erm", "mr2"}
    for heading in ("method", "overall", "easy", "medium", "hard", "gap", "worst", "n", "cost"):
        assert heading in words


def test_run_prints_tables_as_json_and_nothing_else(command: Commands, fake: Runner) -> None:
    (table,) = command.json("run", "m.yaml", *TOY)
    assert [row["overall"]["mean"] for row in table["rows"]] == [50.0, 50.0]


def test_exit_codes_are_those_of_the_outcome(command: Commands, fake: Runner) -> None:
    command.out("run", "m.yaml", *TOY)
    assert fake.matrix is not None
    failed = (fake.matrix.cells[0], CellState("failed", "oom", "no room"))
    fake.outcome = Outcome(failed=(failed,))
    code, out, _ = command("run", "m.yaml", *TOY)
    assert code == 1
    assert "STEEP" in out
    fake.outcome = Outcome(interrupted=True)
    code, out, _ = command("run", "m.yaml", *TOY)
    assert code == 130
    assert "STEEP" not in out


def test_data_and_results_come_from_the_environment(
    command: Commands, fake: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("CLASSFAIR_DATA", "data")
    monkeypatch.setenv("CLASSFAIR_RESULTS", "elsewhere")
    out = command.out("run", "m.yaml", *TOY)
    assert fake.cells[0].paths["data"] == str(tmp_path / "data")
    assert out.endswith("Results: elsewhere\n")


MISTAKES = [
    (("run", "m.yaml", *TOY, "--launcher", "locl"), "--launcher: no launcher 'locl'; did you mean"),
    (("run", "m.yaml", *TOY, "--ranking", "owl"), "--ranking: no ranking 'owl'; did you mean own"),
    (("run", "m.yaml", *TOY, "--set", "steep.slpe=1"), "no setting 'slpe'; did you mean slope"),
    (("run", "m.yaml", *TOY, "--device", "tpu"), "'tpu' is not one of"),
    (("run", "m.yaml", *TOY, "--jobs-per-device", "0"), "Invalid value for '--jobs-per-device'"),
    (("run", "m.yaml", "--plugin", "none.py"), "--plugin none.py: no such file"),
    (("run", "fashion_quick", "--data", "empty"), "nothing to run: fashion_mnist needs"),
    (("report", "nowhere"), "nowhere: no such folder"),
    (("report", "r", "--ranking", "owl"), "--ranking: no ranking 'owl'"),
    (("report", "r", "--format", "markdwn"), "--format: no reporter 'markdwn'; did you mean"),
    (("report", "r", "--experiment", "toy"), "no matrix 'toy'; did you mean toys"),
    (("plugin", "check", "erms"), "no method 'erms'; did you mean erm"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_ends_with_exit_code_2_before_anything_runs(
    command: Commands,
    fake: Runner,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    from classfair_plugins.datasets import fashion_mnist

    monkeypatch.setattr(fashion_mnist, "DEBIAN", Path("nothing", "here"))
    (command.folder / "empty").mkdir()
    if arguments[0] == "report":
        command.out("run", "m.yaml", *TOY, "--results", "r")
    fake.matrix = None
    assert message in command.mistake(*arguments)
    assert fake.matrix is None


def test_report_writes_markdown_csv_latex_and_the_page(command: Commands, fake: Runner) -> None:
    command.out("run", "m.yaml", *TOY, "--results", "r")
    out = command.out("report", "r", "--out", "tables", *TOY)
    assert re.search(r"^STEEP \(slope 2\) ◆ +50\.0 ± 0\.0 ", out, re.MULTILINE)
    tables = command.folder / "tables"
    files = {file.name for file in tables.iterdir()} - {"figures"}
    assert files == {"leaderboard.csv", "leaderboard.md", "leaderboard.tex", "index.html"}
    assert "STEEP" in (tables / "index.html").read_text()
    assert "STEEP" in (tables / "leaderboard.md").read_text()
    assert "STEEP" in (tables / "leaderboard.csv").read_text()
    told = command.json("report", "r", "--experiment", "toys", *TOY)
    assert [row["method"]["text"] for row in told[0]["rows"]] == [
        "ERM",
        "STEEP (slope 2)",
    ]


def test_skipped_cells_are_told_to_the_runner(command: Commands, fake: Runner) -> None:
    (command.folder / "m.yaml").write_text(TOY_MATRIX.replace("[erm, ", "[erm, careful, "))
    command("run", "m.yaml", *TOY)
    assert fake.matrix is not None
    assert [(s.method, s.seed) for s in fake.matrix.skipped] == [("careful", 0), ("careful", 1)]


def test_a_real_run_trains_once_and_prints_the_same_table_again(tmp_path: Path) -> None:
    (tmp_path / "classfair_plugins.py").write_text(MINE)
    arguments = ("run", "quickstart", "--only", "method=erm", "--only", "seed=0")
    more = ("--add", "method=mine", "--set", "epochs=1", "--device", "cpu")
    program = [sys.executable, "-m", "classfair", *arguments, *more]
    first, second = (
        subprocess.run(program, cwd=tmp_path, capture_output=True, text=True) for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "2 of 2 cells done" in first.stderr
    assert "2 of 2 cells are done already" in second.stderr
    for title in ("ERM", "Mine"):
        assert re.search(rf"^{title}( ◆)? +\d\d\.\d ", first.stdout, re.MULTILINE)
    assert second.stdout == first.stdout
    assert "\x1b" not in first.stdout
    assert "Changed on the command line: epochs=1" in " ".join(first.stdout.split())


def test_a_conforming_method_is_checked_well_and_another_is_named(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    from classfair_registry import testing
    from classfair_registry.testing import CheckResult

    asked: list[bool] = []
    told = [CheckResult("spec", "passed"), CheckResult("gloo", "unclaimed", "left out")]

    def check_method(spec: Any, *, quick: bool) -> list[CheckResult]:
        asked.append(quick)
        return told

    monkeypatch.setattr(testing, "check_method", check_method)
    assert "erm: 2 of 2 checks hold." in command.out("plugin", "check", "erm", "--quick")
    told.append(CheckResult("repeat", "failed", "two runs differ; seed it"))
    code, out, _ = command("plugin", "check", "erm")
    assert code == 1
    assert re.search(r"^repeat +failed +two runs differ; seed it$", out, re.MULTILINE)
    assert asked == [True, False]
