"""Processes of this machine: how they start, how they end, and that they end."""

import contextlib
import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from classfair_plugins.launchers import _room, local
from classfair_registry.errors import UsageError
from classfair_registry.specs import Job, LaunchOptions, Resources

CPU = LaunchOptions(device="cpu")


@pytest.fixture
def job(tmp_path):
    """Return a function that makes jobs, each with a folder of its own."""
    made = []

    def make(*args, module="launched", **resources):
        folder = tmp_path / f"job{len(made)}"
        folder.mkdir()
        filled = tuple(str(folder) if arg == "FOLDER" else str(arg) for arg in args)
        made.append(Job(module, filled, folder, Resources(**resources)))
        return made[-1]

    return make


def run(*jobs, options=CPU, **values):
    """Return the final state of each job, in the order given."""
    ended = {
        job: state for job, state in local.launch(jobs, options, **values) if state.kind == "ended"
    }
    return [ended[job] for job in jobs]


def facts(job):
    return json.loads((job.folder / "facts.json").read_text())


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def open_files():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir() if path.exists())


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_each_way_to_end_is_told_and_touches_no_other_job(job):
    ways = {
        ("sleep", 0): 0,
        ("exit", 3): 3,
        ("raise",): 1,
        ("signal", signal.SIGKILL): -signal.SIGKILL,
        ("signal", signal.SIGTERM): -signal.SIGTERM,
        ("crash",): -signal.SIGSEGV,
        ("sleep", 0.1): 0,
    }
    states = run(*(job(*way) for way in ways))
    assert [state.exit_code for state in states] == list(ways.values())
    assert {state.reason for state in states} == {""}


def test_a_job_whose_module_cannot_be_imported_ends_with_one(job):
    broken = job("sleep", 0, module="no_such_module")
    assert run(broken)[0].exit_code == 1
    assert "No module named 'no_such_module'" in (broken.folder / "log.txt").read_text()


def test_a_job_is_told_started_before_it_is_told_ended(job):
    one = job("sleep", 0)
    assert [state.kind for _, state in local.launch([one], CPU)] == ["started", "ended"]


def test_the_log_holds_what_was_printed_even_before_a_kill_and_is_appended_to(job):
    one = job("print", "words")
    run(one)
    run(one)
    lines = (one.folder / "log.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("==")] == ["words", "WORDS"] * 2
    assert sum(line.startswith("==") and " process " in line for line in lines) == 2


def test_a_crash_leaves_a_stack_in_the_log(job):
    one = job("crash")
    run(one)
    assert "Segmentation fault" in (one.folder / "log.txt").read_text()


def test_what_a_job_is_born_with(job, monkeypatch):
    monkeypatch.setenv("CLASSFAIR_TEST", "now")
    one = job("report", "FOLDER", threads=2)
    run(one)
    found = facts(one)
    assert found["cuda"] == ""
    assert found["threads"] == "2"
    assert found["given"] == "now"
    assert found["sigint"]
    assert found["main"] != "__mp_main__"


def test_the_server_imports_ahead_on_a_single_thread(job, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    multiprocessing.forkserver._forkserver._stop()
    one = job("report", "FOLDER")
    run(one)
    assert facts(one)["warm"]
    assert len(list(Path(f"/proc/{facts(one)['server']}/task").iterdir())) == 1


def test_the_server_outlives_signals_to_the_whole_group(job):
    first, second = job("report", "FOLDER"), job("report", "FOLDER")
    run(first)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(facts(first)["server"], number)
    run(second)
    assert facts(second)["server"] == facts(first)["server"]


def test_loading_the_launcher_changes_no_signal_of_the_runner():
    code = """
        import signal
        def met():
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            return masked, [signal.getsignal(number) for number in signal.valid_signals()]
        before = met()
        from classfair_plugins.launchers import local
        assert met() == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_no_descriptor_is_leaked_to_the_next_job_or_kept(job):
    run(job("sleep", 0))
    before = open_files()
    first, second = job("report", "FOLDER"), job("report", "FOLDER")
    run(first)
    run(*(job("sleep", 0) for _ in range(3)))
    run(second)
    assert open_files() == before
    assert len(facts(first)["files"]) == len(facts(second)["files"])


def test_jobs_share_the_cores_by_their_threads(job, monkeypatch):
    monkeypatch.setattr(_room, "cores", lambda: 3)
    jobs = [job("span", "FOLDER", 0.3, threads=2) for _ in range(2)]
    jobs += [job("span", "FOLDER", 0.3, threads=1), job("span", "FOLDER", 0.1, threads=99)]
    assert [state.exit_code for state in run(*jobs)] == [0] * 4
    spans = [json.loads((one.folder / "span.json").read_text()) for one in jobs]
    at = sorted(
        (moment, sign * min(one.resources.threads, 3))
        for one, span in zip(jobs, spans, strict=True)
        for moment, sign in zip(span, (1, -1), strict=True)
    )
    used = [sum(sign for _, sign in at[: count + 1]) for count in range(len(at))]
    assert max(used) == 3


def test_max_parallel_bounds_the_jobs_at_a_time(job, monkeypatch):
    monkeypatch.setattr(_room, "cores", lambda: 8)
    running, most = 0, 0
    options = LaunchOptions(device="cpu", max_parallel=2)
    for _, state in local.launch([job("sleep", 0.05) for _ in range(5)], options):
        running += 1 if state.kind == "started" else -1
        most = max(most, running)
    assert most == 2


def test_a_sequence_starts_longest_first(job):
    jobs = [job("sleep", 0, cost=cost) for cost in (1.0, 3.0, 2.0)]
    options = LaunchOptions(device="cpu", max_parallel=1)
    stream = local.launch(jobs, options)
    started = [one.resources.cost for one, state in stream if state.kind == "started"]
    assert started == [3.0, 2.0, 1.0]


def test_an_iterator_is_asked_for_a_job_only_when_there_is_room(job):
    taken = []

    def lazily():
        for number in range(3):
            taken.append(number)
            yield job("sleep", 0)

    options = LaunchOptions(device="cpu", max_parallel=1)
    seen = [len(taken) for _, state in local.launch(lazily(), options) if state.kind == "started"]
    assert seen == [1, 2, 3]


def test_a_job_over_its_time_is_stopped_and_if_deaf_killed(job, monkeypatch):
    polite, deaf = job("polite", 60, "FOLDER", minutes=30), job("deaf", 60, "FOLDER", minutes=30)
    quick = job("sleep", 0, minutes=30)
    hours = 0

    def tick():
        nonlocal hours
        if all((one.folder / "pid").exists() for one in (polite, deaf)):
            hours += 1

    monkeypatch.setattr(local, "_clock", lambda: time.monotonic() + 3600 * hours)
    monkeypatch.setattr(_room, "cores", lambda: 3)
    states = run(polite, deaf, quick, options=LaunchOptions(device="cpu", tick=tick))
    assert [state.exit_code for state in states] == [75, -signal.SIGKILL, 0]
    assert [state.reason for state in states] == ["timeout", "timeout", ""]


def test_tick_is_called_while_jobs_run(job):
    ticks = []
    run(job("sleep", 0.6), options=LaunchOptions(device="cpu", tick=lambda: ticks.append(1)))
    assert 2 <= len(ticks) <= 20


def test_closing_the_iterator_stops_the_jobs_and_waits(job):
    one = job("sleep", 60, "FOLDER")
    stream = local.launch([one], CPU)
    next(stream)
    wait_until((one.folder / "pid").exists)
    stream.close()
    assert gone(int((one.folder / "pid").read_text()))


def test_an_interrupt_stops_the_jobs_and_a_second_one_kills_them(job):
    one = job("deaf", 60, "FOLDER")
    begun = time.monotonic()

    def tick():
        if (one.folder / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(one, options=LaunchOptions(device="cpu", tick=tick))
    assert multiprocessing.active_children() == []
    assert time.monotonic() < begun + 30


def test_a_job_that_stays_when_asked_to_stop_is_killed_after_the_grace(job):
    one = job("deaf", 60, "FOLDER")
    stream = local.launch([one], CPU, grace=0.2)
    next(stream)
    wait_until((one.folder / "pid").exists)
    stream.close()
    assert multiprocessing.active_children() == []


def test_an_error_of_the_caller_stops_the_jobs(job):
    one = job("polite", 60, "FOLDER")

    def tick():
        raise ValueError("the display is broken")

    with pytest.raises(ValueError, match="broken"):
        run(one, options=LaunchOptions(device="cpu", tick=tick))
    assert multiprocessing.active_children() == []


def test_a_killed_server_is_told_and_the_next_job_gets_another(job):
    one = job("sleep", 60, "FOLDER")
    stream = local.launch([one], CPU)
    next(stream)
    wait_until((one.folder / "pid").exists)
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    _, state = next(stream)
    assert state.exit_code is None
    wait_until(lambda: gone(int((one.folder / "pid").read_text())))
    stream.close()
    assert run(job("sleep", 0))[0].exit_code == 0


RUNNER = textwrap.dedent("""
    import sys, pathlib, signal
    from classfair_plugins.launchers import local
    from classfair_registry.specs import Job, LaunchOptions
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in background jobs.
    folder = pathlib.Path(sys.argv[1])
    jobs = [Job("launched", ("sleep", "60", str(folder)), folder)]
    for _, state in local.launch(jobs, LaunchOptions(device="cpu")):
        print(state.kind, flush=True)
""")


@contextlib.contextmanager
def runner(folder, *flags, **environment):
    """Run a launcher in a process of its own until its job runs; yield it and the job's pid."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment}
    command = [sys.executable, *flags, "-c", RUNNER, str(folder)]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
            yield process, int((folder / "pid").read_text())
        finally:
            process.kill()


def test_nothing_outlives_a_runner_that_was_killed(tmp_path):
    with runner(tmp_path) as (process, pid):
        server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        process.kill()
        wait_until(lambda: gone(pid) and gone(server))


def test_the_terminals_interrupt_reaches_the_job_only_through_the_runner(tmp_path):
    with runner(tmp_path) as (process, pid):
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        assert gone(pid)
        assert "KeyboardInterrupt" not in (tmp_path / "log.txt").read_text()


def test_warnings_that_are_errors_hurt_nothing(tmp_path):
    with runner(tmp_path, "-W", "error", PYTHONWARNINGS="error") as (_, pid):
        assert not gone(pid)


# -- room on the machine -----------------------------------------------------------------------


def test_gpus_are_shared_by_the_idlest_first(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, 3,-1,4")
    room = _room.Room(LaunchOptions(jobs_per_device=2))
    one = Resources(devices=1)
    taken = [room.take(one) for _ in range(5)]
    assert taken == [("GPU-a",), ("3",), ("GPU-a",), ("3",), None]
    assert not room.some
    room.give_back(one, ("3",))
    assert room.some
    assert room.take(one) == ("3",)


def test_a_cell_of_more_devices_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    room = _room.Room(LaunchOptions())
    assert room.take(Resources(devices=2)) == ("0", "1")
    with pytest.raises(UsageError, match="wants 3 devices; this machine has 2"):
        room.take(Resources(devices=3))


def test_auto_falls_back_to_the_cpu_and_cuda_does_not(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _room.Room(LaunchOptions(device="auto")).take(Resources(devices=1)) == ()
    with pytest.raises(UsageError, match="no GPU found"):
        _room.Room(LaunchOptions(device="cuda"))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("printf 'GPU-1\\nGPU-2\\n'", ("GPU-1", "GPU-2")),
        ("echo 'No devices were found'; exit 6", ()),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ()),
    ],
)
def test_gpus_are_found_through_nvidia_smi(monkeypatch, tmp_path, said, found):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{said}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _room.gpus() == found


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_the_control_groups_quota_is_kept(tmp_path, files, quota):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert _room._quota(tmp_path) == quota


def test_there_is_always_a_core(monkeypatch):
    monkeypatch.setattr(_room, "_quota", lambda: 0.5)
    assert _room.cores() == 1
