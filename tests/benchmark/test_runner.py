"""A matrix of fake cells in real processes: whatever happens to one, nothing is lost."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import fake_cell
import pytest
from rich.console import Console

from classfair import runner
from classfair.results import Results, is_running, locked
from classfair_plugins.launchers import local
from classfair_plugins.observers import json_lines
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.manager import Plugins
from classfair_registry.records import Failure, Record, Skipped
from classfair_registry.specs import JobState, LauncherSpec, LaunchOptions

OPTIONS = LaunchOptions(device="cpu", max_parallel=3)
LOCAL = LauncherSpec("local", local.launch, "processes")


@pytest.fixture
def plugins(tmp_path):
    plugins = Plugins(cache=tmp_path / "cache")
    plugins.add_file(Path(fake_cell.__file__))
    return plugins


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Give these tests a fork server that has the fake cell imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        forkserver._forkserver._stop()
        yield
        forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def more_cores(monkeypatch):
    """Let three cells run at a time anywhere."""
    monkeypatch.setattr("classfair_plugins.launchers._room.cores", lambda: 3)


class Runs:
    """Runs matrices into one folder and keeps what was printed."""

    def __init__(self, root, plugins):
        self.root, self.plugins = root, plugins
        self.results = Results(root)
        self.printed = ""

    def __call__(self, *cells, options=OPTIONS, launcher=LOCAL, skipped=(), **values):
        text = io.StringIO()
        try:
            return runner.run(
                fake_cell.matrix(*cells, skipped=list(skipped)),
                self.root,
                self.plugins,
                launcher,
                options,
                device="cpu",
                console=Console(file=text, width=80, force_terminal=False),
                module="fake_cell",
                **values,
            )
        finally:
            self.printed = text.getvalue()

    def starts(self, cell):
        """Return how many times a cell began to train."""
        return len(self.file(cell, "starts.txt").read_text().split())

    def hold(self, *cells):
        """Keep cells from finishing until they are released; return the files they write then."""
        for cell in cells:
            self.file(cell, "hold").parent.mkdir(parents=True, exist_ok=True)
            self.file(cell, "hold").touch()
        return [self.file(cell, "progress.json") for cell in cells]

    def release(self, *cells):
        for cell in cells:
            self.file(cell, "hold").unlink(missing_ok=True)

    def file(self, cell, name):
        return self.results.folder_of(cell) / name

    def kinds(self, *cells):
        return [self.results.state(cell).kind for cell in cells]


@pytest.fixture
def runs(tmp_path, plugins):
    return Runs(tmp_path / "results", plugins)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


WAYS = {
    "raise": ("plugin", "no such thing"),
    "oom": ("oom", "80 GiB"),
    "uncaught": ("error", "the last words"),
    "exit": ("plugin", "exit code 3"),
    "leave": ("plugin", "exit code 0"),
    "forged": ("error", "record.json"),
    "kill": ("killed", "SIGKILL; if nobody did it, the memory ran out"),
    "crash": ("killed", "SIGSEGV"),
}


def test_each_way_to_fail_is_classified_and_the_others_finish(runs):
    good = [fake_cell.make(seed=seed, seconds=0.1) for seed in range(2)]
    bad = {way: fake_cell.make(way, do=way) for way in WAYS}
    outcome = runs(good[0], *bad.values(), good[1])
    assert runs.kinds(*good) == ["done", "done"]
    assert outcome.done == 2
    assert outcome.exit_code == 1
    assert {cell.method.label for cell, _ in outcome.failed} == set(WAYS)
    for way, (kind, said) in WAYS.items():
        failure = Failure.load(runs.file(bad[way], "failure.json"))
        assert (way, failure.kind) == (way, kind)
        assert said in failure.message
        assert f"failed: {way} on tiny, seed 0: {kind}: {failure.message}" in runs.printed


def test_a_failure_without_a_word_names_its_log_and_keeps_its_end(runs):
    cell = fake_cell.make(do="uncaught")
    runs(cell)
    failure = Failure.load(runs.file(cell, "failure.json"))
    assert failure.traceback.endswith("the last words")
    assert (runs.root / failure.log).is_file()


def test_everything_expected_is_written_down_before_anything_runs(runs):
    cells = [fake_cell.make(seed=seed) for seed in range(2)]
    seen = []

    def launch(jobs, options):
        seen.append(runs.results.matrix("fakes").cells)
        yield from local.launch(jobs, options)

    outcome = runs(*cells, launcher=LauncherSpec("watch", launch, "x"), chosen={cells[0].key})
    assert seen == [cells]
    assert outcome.done == 1
    assert runs.kinds(*cells) == ["done", "queued"]


def test_what_is_done_is_not_run_again_and_failures_are(runs):
    good, bad = fake_cell.make(), fake_cell.make(do="oom")
    runs(good, bad)
    outcome = runs(good, bad)
    assert (outcome.done, outcome.cached) == (1, 1)
    assert (runs.starts(good), runs.starts(bad)) == (1, 2)
    assert "1 of 2 cells are done already" in runs.printed
    assert runs(good).exit_code == 0


def test_a_torn_record_is_run_again_and_named(runs):
    cell = fake_cell.make()
    runs(cell)
    runs.file(cell, "record.json").write_text("{")
    outcome = runs(cell)
    assert runs.kinds(cell) == ["done"]
    assert runs.starts(cell) == 2
    assert "record.json" in outcome.complaints[0]
    assert outcome.complaints[0] in runs.printed


def test_the_longest_cells_start_first(runs):
    cells = [fake_cell.make(seed=seed, epochs=epochs) for seed, epochs in enumerate((1, 3, 2))]
    runs(*cells, options=LaunchOptions(device="cpu", max_parallel=1))
    started = [line.split()[-1] for line in runs.printed.splitlines() if " started " in line]
    assert started == ["1", "2", "0"]


def test_a_cell_over_its_time_fails_and_its_checkpoint_is_kept(runs, monkeypatch):
    slow, quick = fake_cell.make(seconds=60), fake_cell.make("quick")
    ahead = 0

    def clock():
        return time.monotonic() + ahead

    def tick():
        nonlocal ahead
        if runs.kinds(quick) == ["done"] and runs.file(slow, "progress.json").exists():
            ahead = 3600

    monkeypatch.setattr("classfair_plugins.launchers.local._clock", clock)
    outcome = runs(slow, quick, minutes=30, options=dataclasses.replace(OPTIONS, tick=tick))
    assert [state.reason for _, state in outcome.failed] == ["timeout"]
    assert runs.kinds(quick) == ["done"]
    assert runs.file(slow, "checkpoint.pt").exists()
    assert "limit of 30 minutes" in Failure.load(runs.file(slow, "failure.json")).message


def test_a_cell_stopped_from_outside_goes_on_in_the_next_run(runs):
    cell = fake_cell.make()
    (progress,) = runs.hold(cell)

    def tick():
        if progress.exists() and not runs.file(cell, "checkpoint.pt").exists():
            os.kill(int(runs.file(cell, "starts.txt").read_text()), signal.SIGUSR1)

    outcome = runs(cell, options=dataclasses.replace(OPTIONS, tick=tick))
    assert (outcome.preempted, outcome.exit_code) == (1, 1)
    assert "goes on where this one stopped" in runs.printed
    runs.release(cell)
    step = int(runs.file(cell, "checkpoint.pt").read_text())
    assert step > 0
    assert runs(cell).exit_code == 0
    assert f"starts at step {step}" in runs.file(cell, "log.txt").read_text()


def test_a_cell_that_dies_of_sigterm_before_it_listens_is_preempted(runs):
    cell = fake_cell.make()

    def launch(jobs, options):
        for job in jobs:
            yield job, JobState("started")
            yield job, JobState("ended", -signal.SIGTERM)

    outcome = runs(cell, launcher=LauncherSpec("dying", launch, "x"))
    assert outcome.preempted == 1
    assert not runs.file(cell, "failure.json").exists()


def test_a_launcher_that_loses_a_job_loses_no_cell(runs):
    cell = fake_cell.make()
    outcome = runs(cell, launcher=LauncherSpec("lossy", lambda jobs, options: iter(()), "x"))
    assert (outcome.left, outcome.exit_code) == (1, 1)
    assert runs(cell).exit_code == 0


def test_the_launchers_word_that_all_is_well_is_not_enough(runs):
    def launch(jobs, options):
        for job in jobs:
            yield job, JobState("ended", 0)

    outcome = runs(fake_cell.make(), launcher=LauncherSpec("liar", launch, "x"))
    assert outcome.done == 0
    assert outcome.exit_code == 1


def test_an_observer_that_raises_ends_nothing_and_is_named_once(runs, tmp_path):
    path = tmp_path / "grumpy.py"
    path.write_text(
        textwrap.dedent("""
            from classfair_registry import hookimpl

            @hookimpl
            def classfair_cell_started(cell):
                raise RuntimeError("no mood")

            @hookimpl
            def classfair_cell_finished(cell):
                raise RuntimeError("still none")
        """)
    )
    runs.plugins.add_file(path)
    outcome = runs(*(fake_cell.make(seed=seed) for seed in range(3)))
    assert (outcome.done, outcome.exit_code) == (3, 0)
    assert outcome.complaints == ("observer grumpy: RuntimeError: no mood",)
    assert runs.printed.count("no mood") == 1


def test_the_json_lines_observer_writes_every_event(runs, tmp_path, monkeypatch):
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(json_lines.VARIABLE, str(events))
    runs.plugins.add_file(Path(json_lines.__file__))
    good, bad = fake_cell.make(seconds=0.5), fake_cell.make(do="oom")
    runs(good, bad)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    kinds = {cell.key: [] for cell in (good, bad)}
    for line in lines:
        kinds[line["key"]].append(line["event"])
    assert kinds[bad.key] == ["started", "failed"]
    assert kinds[good.key][0] == "started"
    assert set(kinds[good.key][1:-1]) == {"progress"}
    last = [line for line in lines if line["key"] == good.key][-1]
    assert (last["event"], last["metrics"]) == ("finished", {"overall": 0.5})


def test_without_its_variable_the_json_lines_observer_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(json_lines.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    json_lines.classfair_cell_started(fake_cell.make())
    assert list(tmp_path.iterdir()) == []


def test_skipped_cells_ask_for_exit_code_one_unless_asked_for_or_allowed(runs):
    values = {"method": "supcon", "recipe": "probe", "seed": 0, "why": "no encoder"}
    cell = fake_cell.make()
    assert runs(cell, skipped=[Skipped(**values)]).exit_code == 1
    assert runs(cell, skipped=[Skipped(**values)], allow_skips=True).exit_code == 0
    assert runs(cell, skipped=[Skipped(**values, asked=True)]).exit_code == 0


def test_a_results_folder_that_is_a_file_is_a_usage_error(runs):
    runs.root.touch()
    with pytest.raises(UsageError, match="not a folder"):
        runs(fake_cell.make())


def test_a_failure_that_cannot_be_written_is_still_told(runs, monkeypatch):
    def full(failure, path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Failure, "save", full)
    good, bad = fake_cell.make(), fake_cell.make(do="kill")
    outcome = runs(good, bad)
    assert runs.kinds(good) == ["done"]
    assert [state.reason for _, state in outcome.failed] == ["killed"]
    assert "failure.json: No space left on device" in outcome.complaints[0]


def test_a_folder_that_cannot_be_begun_is_an_error_with_its_place(runs):
    cell = fake_cell.make()
    (runs.results.folder_of(cell) / "cell.json").mkdir(parents=True)
    with pytest.raises(ClassfairError, match=r"cell\.json\..*: Is a directory"):
        runs(cell)


def test_an_error_of_the_launcher_leaves_no_claim_behind(runs):
    def launch(jobs, options):
        next(iter(jobs))
        raise UsageError("no GPU")
        yield

    cell = fake_cell.make()
    with pytest.raises(UsageError, match="no GPU"):
        runs(cell, launcher=LauncherSpec("broken", launch, "x"))
    assert runs(cell).exit_code == 0


# -- interruptions -----------------------------------------------------------------------------


def interrupted_when(condition, *numbers):
    """Return options whose tick sends signals to this process, one a tick, from then on."""
    pending = list(numbers)

    def tick():
        if pending and condition():
            os.kill(os.getpid(), pending.pop(0))

    return LaunchOptions(device="cpu", max_parallel=3, tick=tick)


@pytest.fixture
def listening():
    """Make Ctrl-C heard where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_once_every_cell_writes_a_checkpoint(runs, listening, number):
    cells = [fake_cell.make(seed=seed) for seed in range(4)]
    begun = runs.hold(*cells[:3])
    before = signal.getsignal(number)
    outcome = runs(*cells, options=interrupted_when(lambda: all(p.exists() for p in begun), number))
    assert outcome.interrupted
    assert (outcome.exit_code, outcome.preempted, outcome.left) == (130, 3, 1)
    assert runs.kinds(*cells) == ["preempted"] * 3 + ["queued"]
    assert signal.getsignal(number) == before
    assert "The same command again" in runs.printed
    runs.release(*cells)
    assert runs(*cells).exit_code == 0
    assert [runs.starts(cell) for cell in cells] == [2, 2, 2, 1]


def test_asked_to_stop_twice_it_waits_for_nobody(runs, listening):
    cell = fake_cell.make(do="deaf", seconds=60)
    begun = time.monotonic()
    progress = runs.file(cell, "progress.json")
    outcome = runs(cell, options=interrupted_when(progress.exists, signal.SIGINT, signal.SIGINT))
    assert outcome.interrupted
    assert outcome.left == 1
    assert time.monotonic() < begun + 20
    assert not is_running(runs.results.folder_of(cell))


RUNNER = textwrap.dedent("""
    import pathlib, sys
    import fake_cell
    from rich.console import Console
    from classfair import runner
    from classfair_plugins.launchers import _room, local
    from classfair_registry.manager import Plugins
    from classfair_registry.records import MatrixInfo
    from classfair_registry.specs import LauncherSpec, LaunchOptions
    _room.cores = lambda: 3
    plugins = Plugins()
    plugins.add_file(pathlib.Path(fake_cell.__file__))
    outcome = runner.run(
        MatrixInfo.load(pathlib.Path(sys.argv[1])),
        pathlib.Path(sys.argv[2]),
        plugins,
        LauncherSpec("local", local.launch, "processes"),
        LaunchOptions(device="cpu", max_parallel=2),
        device="cpu",
        console=Console(),
        module="fake_cell",
    )
    sys.exit(outcome.exit_code)
""")


@contextlib.contextmanager
def other_runner(runs, tmp_path, *cells):
    """Run the cells from another process."""
    path = tmp_path / "matrix.json"
    fake_cell.matrix(*cells).save(path)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", RUNNER, str(path), str(runs.root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_after_a_killed_runner_nothing_trains_on_and_the_next_one_goes_on(runs, tmp_path):
    cells = [fake_cell.make(seed=seed) for seed in range(2)]
    begun = runs.hold(*cells)
    with other_runner(runs, tmp_path, *cells) as process:
        wait_until(lambda: all(progress.exists() for progress in begun))
        process.kill()
        process.wait()
    wait_until(lambda: "running" not in runs.kinds(*cells))
    assert runs.kinds(*cells) == ["preempted", "preempted"]
    runs.release(*cells)
    assert runs(*cells).exit_code == 0
    assert [runs.starts(cell) for cell in cells] == [2, 2]


def test_two_runners_at_once_train_nothing_twice(runs, tmp_path):
    cells = [fake_cell.make(seed=seed, seconds=0.4) for seed in range(6)]
    with other_runner(runs, tmp_path, *cells) as process:
        wait_until((runs.root / "matrices").exists)
        outcome = runs(*cells, options=LaunchOptions(device="cpu", max_parallel=1))
        assert process.wait() == 0
    assert (outcome.done, outcome.exit_code) == (6, 0)
    assert [runs.starts(cell) for cell in cells] == [1] * 6


def test_a_cell_of_another_runner_is_waited_for_and_its_failure_believed(runs, tmp_path):
    bad = fake_cell.make(do="raise")
    (progress,) = runs.hold(bad)
    options = dataclasses.replace(OPTIONS, tick=lambda: runs.release(bad))
    with other_runner(runs, tmp_path, bad) as process:
        wait_until(progress.exists)
        outcome = runs(bad, options=options)
        assert process.wait() == 1
    assert [state.reason for _, state in outcome.failed] == ["plugin"]
    assert runs.starts(bad) == 1


def test_a_cell_whose_owner_dies_is_taken_over(runs, tmp_path):
    cell = fake_cell.make()
    (progress,) = runs.hold(cell)
    with other_runner(runs, tmp_path, cell) as process:
        wait_until(progress.exists)

        def tick():
            process.kill()
            if runs.file(cell, "checkpoint.pt").exists():
                runs.release(cell)

        outcome = runs(cell, options=dataclasses.replace(OPTIONS, tick=tick))
    assert outcome.exit_code == 0
    assert runs.starts(cell) == 2


def test_a_cell_that_waits_for_its_lock_in_vain_is_tried_again(runs):
    cell = fake_cell.make()
    tries = []

    def launch(jobs, options):
        for job in jobs:
            tries.append(job)
            if len(tries) > 1:
                yield from local.launch([job], options)
                continue
            yield job, JobState("started")
            with locked(job.folder):
                yield job, JobState("ended", 1)

    assert runs(cell, launcher=LauncherSpec("late", launch, "x")).exit_code == 0
    assert len(tries) == 2
    assert Record.load(runs.file(cell, "record.json")).cell == cell


def test_the_runner_works_outside_the_main_thread(runs):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(runs(fake_cell.make())))
    thread.start()
    thread.join()
    assert outcomes[0].exit_code == 0
