"""Names of rows, captions and footnotes."""

import made_records as made
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill, rows_of

from classfair_leaderboard import report
from classfair_leaderboard.load import load
from classfair_registry.records import Skipped


def test_names_tell_apart_what_titles_do_not(tmp_path, plugins) -> None:
    """The defaults of a method that ships are known; a label is the user's own word."""
    card = plugins.card("methods", "mr2")
    setting = next(s for s in card.settings if s.type == "float" and not s.choices)
    default = {s.name: s.default for s in card.settings}
    plain = made.method("mr2", title="MR2", settings=default, revision=card.values["revision"])
    changed = {**default, setting.name: 0.125}
    methods = [
        plain,
        plain.model_copy(update={"settings": changed}),
        plain.model_copy(update={"settings": changed | {"x": 1}, "label": "mine", "title": "mine"}),
        plain.model_copy(update={"revision": 99}),
    ]
    for method in methods:
        made.write(tmp_path, made.cell("mr2", method=method), made.exactly(LABEL, MR2[0]))
    names = set(rows_of(report(tmp_path, plugins).tables[0]))
    assert names == {"MR2", f"MR2 ({setting.name} 0.125)", "mine", "MR2 (revision 99)"}


def test_footnotes_say_what_a_number_alone_does_not(tmp_path, plugins) -> None:
    methods = [
        made.method("erm"),
        made.method("ldam", reduces_to="erm"),
        made.method("jtt", budget="its second phase takes 5 passes more"),
        made.method("odd", label="same"),
        made.method("even", label="same"),
    ]
    machine = {"device_name": "H200", "packages": {"torch": "2.13.0"}}
    for method in methods:
        given = {"machine": machine} if method.name == "jtt" else {}
        cell = made.cell(method.name, method=method)
        made.write(tmp_path, cell, made.exactly(LABEL, MR2[0]), **given)
    cells = [run.record.cell for run in load(tmp_path)[0]]
    skip = [Skipped(method="supcon", recipe="made", seed=s, why="no encoder") for s in (0, 1)]
    other = Skipped(method="supcon", recipe="another", seed=0, why="no encoder")
    made.expect(tmp_path, cells, skipped=[*skip, other])
    notes = report(tmp_path, plugins, "quick").tables[0].footnotes
    assert "LDAM: identical to ERM here." in notes
    assert "JTT: its second phase takes 5 passes more." in notes
    assert "supcon: seeds 0, 1 left out: no encoder." in notes
    assert "2 rows are called same: they differ in settings, revision or code." in notes
    assert "Runs on different devices: H200 (1), a CPU (4)." in notes
    assert "Runs on different versions of torch: 2.13.0 (1), 2.14.1 (4)." in notes
    assert len(notes) == 7
    assert notes[0].startswith("◆: Pareto set")


def test_ranking_runs_that_are_still_missing_are_said(tmp_path, plugins) -> None:
    cells = fill(tmp_path, erm=ERM)
    ranking = add_ranking_runs(tmp_path, ERM[:2])
    made.expect(tmp_path, [*cells, *ranking, made.cell("erm", 10_002, ranking_run=True)])
    (table,) = report(tmp_path, plugins).tables
    assert "2 of 3 ranking runs are there: the ranking is not final." in table.footnotes


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({}, "Seeds differ in initial weights and order of the images, not in"),
        ({"augmentation": {"name": "crop_flip"}}, "initial weights, order of the images and augm"),
        ({"backbone": {"name": "x", "weights": "y"}}, "Seeds differ in the head's initial weights"),
    ],
)
def test_the_caption_says_what_varies_between_seeds(tmp_path, plugins, recipe, said) -> None:
    cell = made.cell("erm", recipe="made")
    changed = cell.model_copy(update={"recipe": {**cell.recipe, **recipe}})
    made.write(tmp_path, changed, made.exactly(LABEL, ERM[0]))
    assert said in report(tmp_path, plugins).tables[0].caption
