"""Figures: what they are drawn from, what is not drawn and why, and text that is no markup."""

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard.reporting import read
from classfair_leaderboard.view import View
from classfair_registry.errors import UsageError
from classfair_registry.predictions import save_arrays

pytest.importorskip("matplotlib", reason="figures need the extra plots")

from classfair_leaderboard import figures
from classfair_leaderboard.figures import classes, methods
from classfair_leaderboard.figures.explained import measured_gains
from classfair_leaderboard.figures.style import Skip, plain

K = 6
LABEL = np.repeat(np.arange(K), 40)
HOSTILE = "<script>alert(1)</script> $x_1 \\frac{ \x00 中"


def fill(results, names=("erm", "mr2", "sam"), recipe="made", classes_=None, full=True) -> None:
    for number, name in enumerate(names):
        for seed in range(3):
            rng = np.random.default_rng([seed, number])
            right = rng.random(LABEL.size) < (np.linspace(0.9, 0.5, K) + 0.02 * number)[LABEL]
            predictions = made.predictions(LABEL, right)
            if full:
                object.__setattr__(predictions, "feature_spread", np.linspace(1, 2, K))
                object.__setattr__(predictions, "vector_norm", np.linspace(1, 1.1, K))
            dataset = {"headline": "overall", "title": "Made"} | (
                {"classes": classes_} if classes_ else {}
            )
            cell = made.cell(name, seed, recipe=recipe)
            folder = made.write(results, cell, predictions, dataset=dataset)
            if full:
                curve = np.tile(np.linspace(1, 2, K), (5, 1))
                done = np.linspace(0.2, 1, 5)
                save_arrays(folder / "trace.npz", {"curve_done": done, "curve_spread": curve})


def drawn(results, plugins) -> figures.Drawn:
    return figures.draw(read(results), plugins)


def view_of(results, plugins) -> View:
    (group,) = read(results).groups
    return View(group, plugins, {})


def kinds(told: figures.Drawn) -> list[str]:
    return [drawing.name.split("--", 2)[-1] for drawing in told.drawings]


def test_every_figure_is_drawn_or_its_reason_given(tmp_path, plugins) -> None:
    fill(tmp_path)
    told = drawn(tmp_path, plugins)
    expected = "sorted-accuracy spread norm per-class margins hard-against-overall evolution gains"
    assert kinds(told) == expected.split()
    assert told.skipped == (
        "made, sweeps: no method has rows with 3 values of a setting",
        "made, t-SNE: no run kept its features (features.npz)",
    )
    for drawing in told.drawings:
        assert drawing.title
        assert drawing.caption


def test_runs_without_features_and_traces_say_so(tmp_path, plugins) -> None:
    fill(tmp_path, full=False)
    told = drawn(tmp_path, plugins)
    reasons = "\n".join(told.skipped)
    assert "made, spread: no run has ||s||" in reasons
    assert "made, norms: no run has ||w||" in reasons
    assert "made, evolution: no traces" in reasons


def test_rows_that_miss_a_seed_are_in_no_figure(tmp_path, plugins) -> None:
    fill(tmp_path, ("erm", "mr2"))
    cells = [made.cell(name, seed) for name in ("erm", "mr2") for seed in range(4)]
    made.expect(tmp_path, cells)
    told = drawn(tmp_path, plugins)
    assert told.drawings == ()
    assert any("0 complete rows" in reason for reason in told.skipped)


def test_files_are_the_same_each_time_and_hold_no_date(tmp_path, plugins) -> None:
    fill(tmp_path / "r")
    first = figures.rendered(drawn(tmp_path / "r", plugins).drawings[0])
    assert figures.rendered(drawn(tmp_path / "r", plugins).drawings[0]) == first
    assert b"<dc:date>" not in first
    paths = figures.write(drawn(tmp_path / "r", plugins), tmp_path / "out")
    assert len(paths) == 16
    assert {path.suffix for path in paths} == {".svg", ".png"}
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        figures.write(drawn(tmp_path / "r", plugins), tmp_path / "file")


def test_names_are_shown_as_they_are(tmp_path, plugins) -> None:
    names = [f"{HOSTILE} {k}" for k in range(K)]
    fill(tmp_path, ("erm",), classes_=names)
    method = made.method("sam", label=HOSTILE)
    for seed in range(3):
        cell = made.cell("sam", seed, method=method)
        made.write(tmp_path, cell, made.predictions(LABEL, LABEL > 1))
    told = drawn(tmp_path, plugins)
    assert "per-class" in kinds(told)
    assert all(figures.rendered(drawing, "svg") for drawing in told.drawings)
    assert plain("a$b$\n") == r"a\$b\$ "


def test_a_sweep_shows_every_value_with_erm_beside_it(tmp_path, plugins) -> None:
    fill(tmp_path, ("erm",))
    for value in (0.0, 1.0, 2.0):
        method = made.method("mr2", label=f"c {value}", settings={"c_bar": value, "logit": True})
        for seed in range(3):
            right = np.random.default_rng(seed).random(LABEL.size) < 0.5 + value / 10
            cell = made.cell("mr2", seed, method=method)
            made.write(tmp_path, cell, made.predictions(LABEL, right))
    (drawing,) = methods.sweeps(view_of(tmp_path, plugins))
    assert drawing.name.endswith("--sweep--mr2--c_bar")
    points, *_, erm = drawing.figure.axes[0].get_lines()
    assert points.get_xdata().tolist() == [0, 1, 2]
    assert points.get_ydata()[2] > points.get_ydata()[0] + 10
    assert len(set(erm.get_ydata())) == 1


def test_gains_stand_side_by_side_with_their_intervals(tmp_path, plugins) -> None:
    for recipe in ("a", "b"):
        fill(tmp_path, ("erm", "mr2"), recipe)
    told = drawn(tmp_path, plugins)
    (gains,) = [drawing for drawing in told.drawings if drawing.name == "gains"]
    axes = gains.figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert len(axes.patches) == 8


def test_a_dumbbell_of_many_classes_shows_the_hardest_and_those_that_differ_most() -> None:
    base = np.linspace(0, 100, 200)
    mine = base.copy()
    mine[[150, 160]] += 5
    shown = classes._shown(base, mine)
    assert len(shown) == classes.MOST_CLASSES
    assert {150, 160, *range(20)} <= set(shown)
    assert shown == sorted(shown, reverse=True)


def test_labels_are_spaced_in_their_order() -> None:
    placed = methods._spaced(np.array([0.5, 0.5, 0.51, 0.9]), 0.05)
    assert np.diff(np.sort(placed)).min() > 0.049
    assert placed[3] == pytest.approx(0.9)
    assert placed[0] < placed[1] < placed[2]


def test_features_that_were_kept_are_embedded(tmp_path, plugins) -> None:
    fill(tmp_path, ("erm", "mr2"))
    rng = np.random.default_rng(0)
    features = rng.normal(0, 1, (LABEL.size, 8)) + 3 * LABEL[:, None]
    for folder in tmp_path.glob("*--s0--*"):
        save_arrays(folder / "features.npz", {"features": features, "label": LABEL})
    told = drawn(tmp_path, plugins)
    assert "t-sne" in kinds(told)
    assert not any("t-SNE" in reason for reason in told.skipped)


def test_without_matplotlib_the_mend_is_said(tmp_path, plugins, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'classfair\[plots\]'"):
        drawn(tmp_path, plugins)


def test_nothing_to_draw_is_no_error(tmp_path, plugins) -> None:
    told = drawn(tmp_path, plugins)
    assert told.drawings == ()
    assert told.skipped == ("gains: no table has complete rows of ERM and of another method",)


def test_a_skip_is_no_error_of_the_program() -> None:
    assert issubclass(Skip, Exception)
    assert not issubclass(Skip, UsageError)


def test_the_figure_of_the_rankings_shows_what_the_documents_say(monkeypatch) -> None:
    monkeypatch.setattr("classfair_leaderboard.figures.explained.WORLDS", 60)
    equal = measured_gains(0.0)
    assert equal["compared"] > equal["reference"] > 1
    assert abs(equal["crossfit"]) < 1
    assert abs(equal["own"]) < 1
