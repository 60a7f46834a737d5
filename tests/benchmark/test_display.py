"""What a person sees while a matrix runs."""

import io
import re

import fake_cell
import pytest
from rich.console import Console

from classfair.display import Board, Display, Pace, duration, render
from classfair.results import CellState
from classfair_registry.records import Progress


def progress(done=0.456, **values):
    values = {"loss": 1.23456, "images_per_second": 3421.4, **values}
    return Progress(phase="main", done=done, step=3, seconds=1.0, pid=1, **values)


def running(*cells, total=9, **values):
    return Board(
        "quickstart",
        total,
        running={cell.key: progress() for cell in cells},
        cells={cell.key: cell for cell in cells},
        **values,
    )


def drawn(board, width=80, height=24):
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(render(board, height))
    return console.file.getvalue().splitlines()


def test_a_running_cell_has_a_line_with_all_that_is_known_of_it():
    lines = drawn(running(fake_cell.make("mr2", seed=2)))
    line = next(line for line in lines if "mr2" in line)
    for part in ("mr2", "tiny", "seed 2", "main", "46%", "loss 1.235", "3,421 img/s"):
        assert part in line


def test_the_matrix_has_its_counts_and_the_time_left():
    board = running(fake_cell.make(), done=4, failed=1, preempted=1, left=75.0)
    first, second, *_ = drawn(board)
    assert first.startswith("quickstart")
    assert first.rstrip().endswith("1 min 15 s left")
    assert second.rstrip() == "4/9 done, 1 running, 2 queued, 1 failed, 1 preempted"


def test_a_cell_that_has_not_reported_yet_starts():
    board = running(fake_cell.make("mr2"))
    board.running = dict.fromkeys(board.running)
    assert "starts" in drawn(board)[-1]


def test_a_loss_or_speed_that_is_not_known_is_left_out():
    board = running(fake_cell.make("mr2"))
    board.running = {key: progress(loss=None, images_per_second=None) for key in board.running}
    assert "loss" not in drawn(board)[-1]
    assert "img/s" not in drawn(board)[-1]


@pytest.mark.parametrize("width", [80, 60])
def test_long_names_are_cut_and_never_wrapped(width):
    cells = [fake_cell.make("a_method_with_a_name_of_forty_characters", seed=n) for n in range(3)]
    lines = drawn(running(*cells), width)
    assert len(lines) == 2 + 3
    assert max(map(len, lines)) <= width
    assert all(f"seed {n}" in line for n, line in enumerate(lines[2:]))


def test_more_cells_than_lines_are_counted():
    cells = [fake_cell.make(seed=seed) for seed in range(30)]
    lines = drawn(running(*cells), height=12)
    assert len(lines) <= 12
    assert "and 23 more" in lines[-1]


def test_brackets_in_a_name_are_no_markup():
    assert "mr2[/b]" in "".join(drawn(running(fake_cell.make("mr2[/b]"))))


def test_while_stopping_it_says_what_a_second_interrupt_does():
    assert "Ctrl-C again stops at once" in drawn(running(fake_cell.make(), stopping=True))[-1]


def test_a_ranking_run_is_called_one():
    cell = fake_cell.make().model_copy(update={"ranking_run": True})
    assert "rank 0" in drawn(running(cell))[-1]


def test_without_a_terminal_each_start_and_end_is_a_line_with_the_time():
    cell, bad = fake_cell.make("mr2"), fake_cell.make("erm")
    console = Console(file=io.StringIO(), width=40)
    with Display(console, Board("quickstart", 2)) as display:
        display.started(cell)
        display.refresh(now=True)
        display.board.done = 1
        display.ended(cell, CellState("done"))
        display.ended(bad, CellState("failed", "oom", "tried to allocate 80 GiB"))
        display.ended(bad, CellState("preempted"))
    lines = console.file.getvalue().splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "started  mr2 on tiny, seed 0",
        "finished mr2 on tiny, seed 0 (1/2 done, 1 queued)",
        "failed   erm on tiny, seed 0: oom: tried to allocate 80 GiB (1/2 done, 1 queued)",
        "stopped  erm on tiny, seed 0 (1/2 done, 1 queued)",
    ]


def test_on_a_terminal_failures_stay_and_the_rest_is_drawn():
    cell, bad = fake_cell.make("mr2"), fake_cell.make("erm")
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with Display(console, running(cell)) as display:
        display.started(cell)
        display.ended(cell, CellState("done"))
        display.ended(bad, CellState("failed", "oom", "80 GiB"))
    shown = console.file.getvalue()
    assert shown.count("failed   erm on tiny, seed 0: oom: 80 GiB") == 1
    assert "started" not in shown
    assert "finished" not in shown
    assert "0/9 done" in shown


def test_a_terminal_is_drawn_a_few_times_a_second_at_most():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with Display(console, running(fake_cell.make())) as display:
        display.refresh(now=True)
        before = console.file.tell()
        for _ in range(50):
            display.refresh()
        assert console.file.tell() < before + 2 * before


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59, "59 s"), (75, "1 min 15 s"), (3900, "1 h 5 min")]
)
def test_a_duration_has_two_units(seconds, said):
    assert duration(seconds) == said


def test_the_time_left_follows_the_costs():
    pace = Pace({"a": 1.0, "b": 3.0}, now=100.0)
    assert pace.left(110.0) is None
    pace.started("a", fresh=True)
    pace.at("a", 0.5)
    assert pace.left(102.0) is None  # Too early to say.
    assert pace.left(110.0) == pytest.approx(70.0)  # 0.5 took 10 s, 3.5 are left.
    pace.over("a", finished=True)
    assert pace.left(120.0) == pytest.approx(60.0)
    pace.started("b", fresh=True)
    pace.over("b", finished=True)
    assert pace.left(150.0) is None


def test_what_a_checkpoint_holds_does_not_count_as_speed():
    pace = Pace({"a": 1.0}, now=0.0)
    pace.started("a", fresh=False)
    pace.at("a", 0.8)
    pace.at("a", 0.9)
    assert pace.left(10.0) == pytest.approx(10.0)


def test_a_failed_cell_leaves_nothing_to_wait_for():
    pace = Pace({"a": 1.0, "b": 1.0}, now=0.0)
    pace.started("a", fresh=True)
    pace.at("a", 0.5)
    pace.over("a", finished=False)
    assert pace.left(10.0) == pytest.approx(20.0)
