"""A wheel holds what the program needs and nothing else, and works outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.install
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def pip(*arguments: str | Path) -> None:
    command = [*PIP, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel and a guest's plugin package, seen before everything else."""
    folder = tmp_path_factory.mktemp("site")
    guests = [ROOT / "plugins" / "examples" / name for name in ("focal", "logit_adjust", "cdb")]
    pip("install", "--no-deps", "--no-build-isolation", "--target", folder, wheel, *guests)
    broken = folder / "shattered-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: shattered\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[classfair]\nshattered = shattered_plugin\n")
    (folder / "shattered_plugin.py").write_text("import a_module_that_nobody_has\n")
    return folder


def classfair(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command line from a folder that has nothing to do with the repository."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "CLASSFAIR_CACHE": str(site / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-m", "classfair", *arguments],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wheel_holds_the_program_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {"classfair_registry", "classfair_plugins", "classfair", "classfair_leaderboard"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    for needed in (
        "classfair_plugins/catalogue.json",
        "classfair/recipes/digits_resnet8.yaml",
        "classfair/experiments/quickstart.yaml",
        *(f"{package}/py.typed" for package in packages),
    ):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test_" in name or name.endswith(".pyc")]


def test_the_installed_program_finds_its_plugins(site):
    done = classfair(site, "list", "methods", "--json")
    assert done.returncode == 0, done.stderr
    methods = {item["name"]: item for item in json.loads(done.stdout)}
    assert {"erm", "mr2", "cmic_dl"} <= set(methods)
    assert {"name", "summary", "plugin", "version"} <= set(methods["erm"])


def test_a_guest_is_listed_and_a_broken_one_hurts_nothing(site):
    methods = classfair(site, "list", "methods")
    assert methods.returncode == 0
    assert "focal" in methods.stdout
    plugins = classfair(site, "list", "plugins")
    assert "shattered" in plugins.stdout
    assert "a_module_that_nobody_has" in plugins.stdout


@pytest.mark.parametrize("guest", ["focal", "logit_adjust", "cdb"])
def test_a_guest_runs_beside_the_built_in_ones(site, tmp_path, guest):
    done = classfair(
        site,
        *("run", "quickstart", "--results", str(tmp_path / "r"), "--device", "cpu"),
        *("--only", "method=erm", "--only", "seed=0", "--add", f"method={guest}"),
        *("--set", "epochs=1", "--set", "data.fraction=0.1"),
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(classfair(site, "status", str(tmp_path / "r"), "--json").stdout)
    assert (status["done"], status["failed"]) == (2, 0)
