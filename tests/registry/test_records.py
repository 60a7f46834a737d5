"""Records: JSON both ways, edits noticed, files whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from classfair_registry.errors import ClassfairError
from classfair_registry.files import digest, write_json, writing
from classfair_registry.records import CellInfo, Cost, Failure, MethodInfo, Record, finite, slug


def cell(**changes) -> CellInfo:
    method = MethodInfo(
        name="erm",
        label="erm",
        title="ERM",
        plugin="p",
        version="1",
        revision=1,
        settings={"a": 0.1},
        source="0" * 64,
    )
    values = {
        "key": "ab" * 32,
        "method": method,
        "recipe": {"epochs": 1},
        "recipe_name": "tiny",
        "recipe_key": "cd" * 32,
        "fingerprint": "ef" * 32,
        "seed": 0,
    }
    return CellInfo(**(values | changes))


def record() -> Record:
    return Record(
        cell=cell(),
        dataset={"name": "made"},
        metrics={"overall": float("nan"), "worst": np.float64(12.5)},
        class_accuracy=[0.5, None],
        class_count=[2, 0],
        selection={"rule": "last"},
        cost=Cost(images_forward=1, images_backward=1, steps=1, seconds={}, peak_memory=1),
        machine={},
        provenance={},
        digests={},
        result_digest="0" * 64,
    )


def test_a_record_comes_back_as_it_went(tmp_path):
    sealed = record().sealed()
    sealed.save(tmp_path / "record.json")
    back = Record.load(tmp_path / "record.json")
    back.check("here")
    assert back.metrics == {"overall": None, "worst": 12.5}
    assert back.to_json() == sealed.to_json()


def test_an_edited_record_is_noticed(tmp_path):
    path = tmp_path / "record.json"
    record().sealed().save(path)
    values = json.loads(path.read_text())
    values["metrics"]["worst"] = 99.0
    path.write_text(json.dumps(values))
    with pytest.raises(ClassfairError, match="edited"):
        Record.load(path).check("here")


def test_a_record_torn_at_any_length_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "record.json"
    record().sealed().save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ClassfairError, match=r"record\.json"):
            Record.load(path)


def test_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "failure.json"
    write_json(path, {"kind": "oom", "message": "m", "more": 1})
    with pytest.raises(ClassfairError, match="more: Extra"):
        Failure.load(path)


def test_numbers_become_plain_and_finite():
    value = {"a": np.float32(0.5), "b": [np.int64(3), float("inf")], "c": np.array([1.0, np.nan])}
    assert finite(value) == {"a": 0.5, "b": [3, None], "c": [1.0, None]}
    assert json.loads(json.dumps(finite(value), allow_nan=False))


def test_a_folder_is_named_by_what_it_holds():
    assert cell().folder == "erm--tiny--s0--abababab"


@pytest.mark.parametrize("label", ["../x", "/etc", "a\0b", "x" * 300, "MR2 (uniform)", "ß", ""])
def test_no_label_leaves_the_results_folder(label):
    name = slug(label)
    assert 0 < len(name) <= 40
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(ZeroDivisionError), writing(path) as file:
        file.write(b"half" * (1 // 0))
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})
