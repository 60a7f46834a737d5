"""Finding plugins: one at a time, each guarded; what fails is named and hurts nothing else."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from classfair_registry.errors import UsageError
from classfair_registry.manager import Plugins, discover

HOOK = "from classfair_registry import hookimpl\n@hookimpl\n"
METRIC = """
from classfair_registry import hookimpl
from classfair_registry.specs import MetricSpec

@hookimpl
def classfair_metrics():
    return [MetricSpec({name!r}, "Title", lambda p: 1.0, "higher", "%", "a definition")]
"""
METHOD = '''
"""About the method."""
import torch
from classfair_registry import hookimpl
from classfair_registry.plain import PlainLoss
from classfair_registry.specs import MethodSpec

class Mine(PlainLoss):
    """Mine, described."""

@hookimpl
def classfair_methods():
    return [MethodSpec({name!r}, "Mine", Mine, "a summary", "a reference", 1.0)]
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that puts a distribution with one plugin module on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str, version: str = "1.0") -> importlib.metadata.EntryPoint:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[classfair]\n{name} = {name}\n")
        found = importlib.metadata.Distribution.at(info).entry_points
        return next(iter(found))

    yield install
    for module in [m for m in sys.modules if m.startswith("plug_")]:
        del sys.modules[module]


def plugins(tmp_path: Path, **options) -> Plugins:
    return Plugins(cache=tmp_path / "cards", **options)


def test_an_installed_plugin_is_found_with_its_distribution(installed, tmp_path):
    found = plugins(tmp_path)
    found.add_entry_points([installed("plug_a", METRIC.format(name="shiny"), "2.5")])
    card = found.card("metrics", "shiny")
    assert (card.plugin.distribution, card.plugin.version) == ("plug_a", "2.5")
    assert found.get("metrics", "shiny").compute(None) == 1.0
    assert found.broken == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "provides nothing"),
        (
            HOOK + "def classfair_metods(): return []",
            "classfair_metods",
        ),
        (
            HOOK + "def classfair_metrics(): return [1]",
            "gave a int, not a MetricSpec",
        ),
        (
            HOOK + "def classfair_metrics(x): return []",
            "Argument",
        ),
        (METRIC.format(name="Bad Name"), "must be lower case"),
    ],
)
def test_a_broken_plugin_is_kept_with_its_cause_and_hurts_no_other(
    installed, tmp_path, source, said
):
    found = plugins(tmp_path)
    bad, good = installed("plug_bad", source), installed("plug_good", METRIC.format(name="fine"))
    found.add_entry_points([bad, good])
    assert [plugin.name for plugin in found.broken] == ["plug_bad"]
    assert said in found.broken[0].error
    assert found.get("metrics", "fine").name == "fine"
    with pytest.raises(UsageError, match="plugins that failed to load: plug_bad"):
        found.card("metrics", "finer")


def test_strict_mode_raises_for_a_broken_plugin(installed, tmp_path):
    with pytest.raises(UsageError, match="plug_bad"):
        plugins(tmp_path, strict=True).add_entry_points([installed("plug_bad", "1 / 0")])


def test_two_plugins_with_one_name_are_both_put_aside(installed, tmp_path):
    found = plugins(tmp_path)
    same = METRIC.format(name="same")
    found.add_entry_points([installed("plug_one", same), installed("plug_two", same)])
    assert sorted(plugin.name for plugin in found.broken) == ["plug_one", "plug_two"]
    assert "also provided by plug_one" in next(
        p.error for p in found.broken if p.name != "plug_one"
    )
    with pytest.raises(UsageError, match="no metric 'same'"):
        found.get("metrics", "same")


def test_a_built_in_cannot_be_replaced(installed, tmp_path):
    found = plugins(tmp_path)
    found.add_built_in()
    found.add_entry_points([installed("plug_thief", METRIC.format(name="overall"))])
    assert "built in and cannot be replaced" in found.broken[0].error
    assert found.card("metrics", "overall").plugin.origin == "built-in"


def test_one_distribution_seen_twice_is_put_aside(installed, tmp_path):
    found = plugins(tmp_path)
    points = [installed("plug_twice", METRIC.format(name="twice"), v) for v in ("1.0", "2.0")]
    found.add_entry_points(points)
    assert found.broken
    assert all("found twice" in plugin.error for plugin in found.broken)


def test_a_method_is_listed_from_the_cache_without_importing_it(installed, tmp_path):
    point = installed("plug_method", METHOD.format(name="mine"))
    plugins(tmp_path).add_entry_points([point])
    sys.modules.pop("plug_method")
    again = plugins(tmp_path)
    again.add_entry_points([point])
    assert again.card("methods", "mine").values["doc"] == "Mine, described."
    assert "plug_method" not in sys.modules
    assert again.get("methods", "mine").title == "Mine"


def test_a_changed_plugin_is_read_anew(installed, tmp_path):
    point = installed("plug_change", METHOD.format(name="before"))
    plugins(tmp_path).add_entry_points([point])
    sys.modules.pop("plug_change")
    (tmp_path / "plug_change.py").write_text(METHOD.format(name="afterwards"))
    again = plugins(tmp_path)
    again.add_entry_points([point])
    assert [card.name for card in again.cards("methods")] == ["afterwards"]


def test_a_plugin_of_one_file_is_loaded(tmp_path):
    path = tmp_path / "single.py"
    path.write_text(METRIC.format(name="single"))
    found = plugins(tmp_path)
    found.add_file(path)
    assert found.card("metrics", "single").plugin.origin == "file"
    with pytest.raises(UsageError, match="no such file"):
        found.add_file(tmp_path / "absent.py")


def test_a_local_file_is_found_beside_the_user(tmp_path, monkeypatch):
    (tmp_path / "classfair_plugins.py").write_text(METRIC.format(name="local"))
    monkeypatch.chdir(tmp_path)
    assert discover().card("metrics", "local").plugin.origin == "file"
    named = discover([tmp_path / "classfair_plugins.py"])
    assert named.card("metrics", "local").plugin.origin == "file"
    assert not named.broken


def test_an_observer_that_raises_is_reported_once(tmp_path):
    path = tmp_path / "watcher.py"
    path.write_text(
        "from classfair_registry import hookimpl\n"
        "@hookimpl\n"
        "def classfair_cell_started(cell): raise RuntimeError('no')\n"
    )
    found = plugins(tmp_path)
    found.add_file(path)
    assert found.notify("classfair_cell_started", cell=None) == [
        "observer watcher: RuntimeError: no"
    ]
    assert found.notify("classfair_cell_started", cell=None) == []


def test_an_installed_observer_is_called_at_the_second_start_too(installed, tmp_path):
    observer = "def classfair_cell_started(cell): raise RuntimeError('seen')\n"
    point = installed("plug_watch", METRIC.format(name="watching") + "\n@hookimpl\n" + observer)
    for _ in range(2):
        found = plugins(tmp_path)
        found.add_entry_points([point])
        told = found.notify("classfair_cell_started", cell=None)
        assert told == ["observer plug_watch: RuntimeError: seen"]
        sys.modules.pop("plug_watch")


def test_built_in_methods_are_listed_without_torch():
    code = (
        "import sys; from classfair_registry.manager import discover; p = discover();"
        "assert p.card('methods', 'erm').values['summary']; assert not p.broken, p.broken;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_refused_with_near_ones(tmp_path):
    found = plugins(tmp_path)
    found.add_built_in()
    with pytest.raises(UsageError, match=r"here: no method 'erms'; did you mean erm"):
        found.card("methods", "erms", "here")
