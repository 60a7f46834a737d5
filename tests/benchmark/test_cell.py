"""One cell from its settings to its record: stops, goes on, and says why it failed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from classfair import cell as cells
from classfair.keys import run_key
from classfair.recipe import Recipe
from classfair.stamps import fingerprint
from classfair.trainer import Stopped
from classfair_registry.files import file_digest
from classfair_registry.manager import discover
from classfair_registry.predictions import Predictions, load_arrays
from classfair_registry.records import CellInfo, Failure, MethodInfo, Record
from classfair_registry.settings import resolve

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
CPU = torch.device("cpu")


def prepared(folder: Path, method: str = "good", **changes) -> Path:
    """Write ``cell.json`` of a short run on a tenth of digits."""
    values = {
        "name": "tiny",
        "data": {"name": "digits", "fraction": 0.1},
        "backbone": {"name": "resnet8"},
        "batch_size": 32,
        "epochs": 2,
        "augmentation": {"name": "crop_flip", "pad": 1, "flip": False},
        "trace": {"points": 2, "images": 20, "losses": 2},
    }
    recipe = Recipe.model_validate(values | changes)
    plugins = discover([MISBEHAVING])
    card = plugins.card("methods", method)
    info = CellInfo(
        key="",
        method=MethodInfo(
            name=method,
            label=method,
            title=card.values["title"],
            plugin=card.plugin.name,
            version="",
            revision=1,
            settings=resolve(card.settings, {}, method),
            source=card.plugin.stamp,
        ),
        recipe=recipe.model_dump(mode="json"),
        recipe_name="tiny",
        recipe_key="0" * 64,
        fingerprint=fingerprint(plugins.get("datasets", "digits"), recipe.data, None),
        seed=0,
        paths={"data": None, "plugin 0": str(MISBEHAVING)},
    )
    info = info.model_copy(update={"key": run_key(info)})
    folder.mkdir(exist_ok=True)
    info.save(folder / "cell.json")
    return folder


def finished(folder: Path) -> Record:
    cells.Cell(folder, CPU, lambda: False).run()
    return Record.load(folder / "record.json")


def test_a_cell_leaves_a_record_with_everything_behind_its_numbers(tmp_path):
    record = finished(prepared(tmp_path / "cell", keep="last"))
    record.check("here")
    assert sorted(p.name for p in (tmp_path / "cell").iterdir()) == [
        "cell.json",
        "model.pt",
        "predictions.npz",
        "record.json",
        "trace.npz",
    ]
    for name, expected in record.digests.items():
        assert file_digest(tmp_path / "cell" / name) == expected
    judged = Predictions.load(tmp_path / "cell" / "predictions.npz")
    assert record.metrics["overall"] == pytest.approx(100 * judged.correct.mean())
    assert record.class_count == judged.count.tolist()
    assert record.dataset["train"] == 120
    assert record.cost.steps == len(range(0, 120, 32)) * 2
    assert record.cost.images_backward == record.cost.images_forward == 120 * 2
    assert torch.__version__.startswith(record.machine["packages"]["torch"])
    trace = load_arrays(tmp_path / "cell" / "trace.npz")
    assert trace["curve_accuracy"].shape == (2, 10)
    torch.load(tmp_path / "cell" / "model.pt", weights_only=True)


def test_equal_runs_have_equal_digests_and_other_seeds_do_not(tmp_path):
    one = finished(prepared(tmp_path / "one"))
    two = finished(prepared(tmp_path / "two"))
    assert one.result_digest == two.result_digest
    other = prepared(tmp_path / "other")
    info = json.loads((other / "cell.json").read_text())
    (other / "cell.json").write_text(json.dumps(info | {"seed": 1}))
    assert finished(other).result_digest != one.result_digest


@pytest.mark.parametrize("stop", [1, 4, 5, 8])
def test_a_stopped_cell_goes_on_to_the_same_digest(tmp_path, stop):
    whole = finished(prepared(tmp_path / "whole"))
    folder = prepared(tmp_path / "stopped")
    asked = iter([False] * (stop - 1) + [True])
    with pytest.raises(Stopped):
        cells.Cell(folder, CPU, lambda: next(asked)).run()
    assert (folder / "checkpoint.pt").exists()
    record = finished(folder)
    assert record.result_digest == whole.result_digest
    assert record.cost.images_forward == whole.cost.images_forward
    assert not (folder / "checkpoint.pt").exists()


def test_a_checkpoint_torn_at_any_length_costs_time_and_no_number(tmp_path):
    whole = finished(prepared(tmp_path / "whole"))
    folder = prepared(tmp_path / "torn")
    asked = iter([False, True])
    with pytest.raises(Stopped):
        cells.Cell(folder, CPU, lambda: next(asked)).run()
    saved = (folder / "checkpoint.pt").read_bytes()
    for length in (0, 10, len(saved) // 2, len(saved) - 1):
        (folder / "checkpoint.pt").write_bytes(saved[:length])
        assert cells.checkpoint.load(folder / "checkpoint.pt", "k") is None
    damaged = bytearray(saved)
    damaged[len(saved) // 2] ^= 0xFF
    (folder / "checkpoint.pt").write_bytes(damaged)
    assert finished(folder).result_digest == whole.result_digest


@pytest.mark.parametrize(
    ("method", "kind", "said"),
    [
        ("raises", "plugin", "KeyError: 'lost my way'"),
        ("hungry", "oom", "tried to allocate 2 TiB"),
        ("greedy", "oom", "allocate"),
        ("diverges", "diverged", "loss became nan at step 4"),
        ("exits", "plugin", "ended the process with exit code 7"),
        ("peeks", "plugin", "reads split 'test', but its spec names only train"),
    ],
)
def test_a_failed_cell_says_why(tmp_path, monkeypatch, method, kind, said):
    monkeypatch.setattr(cells.signal, "signal", lambda *arguments: None)
    folder = prepared(tmp_path / "cell", method)
    assert cells.main([str(folder), "cpu"]) == 1
    failure = Failure.load(folder / "failure.json")
    assert (failure.kind, failure.log) == (kind, "cell/log.txt")
    assert said in failure.message
    assert not (folder / "record.json").exists()


def test_changed_data_are_a_failure_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(cells.signal, "signal", lambda *arguments: None)
    folder = prepared(tmp_path / "cell")
    info = json.loads((folder / "cell.json").read_text())
    (folder / "cell.json").write_text(json.dumps(info | {"fingerprint": "0" * 64}))
    assert cells.main([str(folder), "cpu"]) == 1
    assert Failure.load(folder / "failure.json").kind == "data"


def test_a_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cells.signal, "signal", lambda *arguments: None)
    folder = prepared(tmp_path / "cell")
    finished(folder)
    before = (folder / "record.json").read_bytes()
    assert cells.main([str(folder), "cpu"]) == 0
    assert (folder / "record.json").read_bytes() == before


def test_metrics_that_are_not_defined_are_none(tmp_path):
    record = finished(prepared(tmp_path / "cell"))
    assert record.metrics["ece_scaled"] is None
    assert all(v is None or np.isfinite(v) for v in record.metrics.values())
