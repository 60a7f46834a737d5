"""The paper's claims as predicates over results."""

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard import claims
from classfair_leaderboard.beside import paper_tables
from classfair_leaderboard.claims import Claim, check, interval, load_claims
from classfair_leaderboard.reporting import read
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import save_arrays

CLASSES = 6
LABEL = np.repeat(np.arange(CLASSES), 150)
SHARE = np.linspace(0.85, 0.5, CLASSES)
NAMES = ["ship", "truck", "dog", "deer", "bird", "cat"]


def write(results, name, more=0.0, settings=None, label="", spread=None, norm=None, trace=None):
    """Write three seeds that are this much better than ERM: a number, or one a class."""
    method = made.method(name, settings=settings or {}, label=label or name)
    for seed in range(3):
        rng = np.random.default_rng([seed, *map(ord, f"{name}{settings}")])
        right = rng.random(LABEL.size) < (SHARE + more)[LABEL]
        predictions = made.predictions(LABEL, right)
        fields = {"feature_spread": spread, "vector_norm": norm}
        for field, values in fields.items():
            if values is not None:
                object.__setattr__(predictions, field, np.asarray(values, float))
        dataset = {"classes": NAMES, "headline": "overall"}
        cell = made.cell(name, seed, method=method)
        folder = made.write(results, cell, predictions, dataset=dataset)
        if trace is not None:
            curve = np.array(trace, float) ** 2 * (1 + 0.001 * seed)
            done = np.linspace(0.1, 1, len(curve))
            save_arrays(folder / "trace.npz", {"curve_done": done, "curve_spread": curve})


def found(results, plugins, **claim) -> tuple[str, str] | None:
    values = {"id": "x", "text": "x", "place": "x", "method": "mr2"} | claim
    told = check(read(results).groups, plugins, {}, [Claim(**values)])
    return (told[0].answer, told[0].evidence) if told else None


def test_the_claims_that_ship_can_be_read_and_name_methods_that_ship(plugins) -> None:
    every = load_claims()
    assert len(every) >= 20
    assert len({claim.id for claim in every}) == len(every)
    for claim in every:
        card = plugins.card("methods", claim.method)
        names = {setting.name for setting in card.settings}
        assert set(claim.settings or {}) <= names, claim.id
        assert not claim.setting or claim.setting in names, claim.id


def test_a_broken_claim_is_named(tmp_path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("- {id: a, text: t, place: p, kind: wish, method: mr2}")
    with pytest.raises(ClassfairError, match="a: no kind 'wish'"):
        load_claims(path)
    path.write_text("- {id: a, text: t, place: p, kind: gain, methud: mr2}")
    with pytest.raises(ClassfairError, match="methud"):
        load_claims(path)


@pytest.mark.parametrize(("more", "answer"), [(0.12, "holds"), (-0.12, "fails"), (0, "undecided")])
def test_a_gain_holds_fails_or_is_undecided(tmp_path, plugins, more, answer) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", more)
    assert found(tmp_path, plugins, kind="gain", metric="overall")[0] == answer
    opposite = {"holds": "fails", "fails": "holds", "undecided": "undecided"}[answer]
    assert found(tmp_path, plugins, kind="gain", metric="overall", sign=-1)[0] == opposite


def test_no_loss_needs_a_bound_above_the_margin(tmp_path, plugins) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", 0.001)
    assert found(tmp_path, plugins, kind="gain", metric="easy", above=-30)[0] == "holds"
    assert found(tmp_path, plugins, kind="gain", metric="easy", above=-0.3)[0] == "undecided"


@pytest.mark.parametrize(
    ("margin", "more", "answer"),
    [(30, 0, "holds"), (0.1, 0, "undecided"), (0.5, 0.14, "fails")],
)
def test_equal_within_a_margin(tmp_path, plugins, margin, more, answer) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", more)
    assert found(tmp_path, plugins, kind="equal", metric="overall", margin=margin)[0] == answer


def test_the_best_of_at_least_three(tmp_path, plugins) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", 0.14)
    assert found(tmp_path, plugins, kind="best", metric="overall") is None
    write(tmp_path, "sam", -0.05)
    assert found(tmp_path, plugins, kind="best", metric="overall") == (
        ("holds", "better than all 2")
    )
    assert found(tmp_path, plugins, kind="best", metric="overall", method="sam")[0] == "fails"
    write(tmp_path, "dro", 0.14)
    answer, evidence = found(tmp_path, plugins, kind="best", metric="overall")
    assert (answer, evidence) == ("undecided", "cannot be told from 1 of 3 methods")


def sweep(results, values: dict[float, float]) -> None:
    write(results, "erm")
    for value, more in values.items():
        write(results, "mr2", more, {"c_bar": value, "p": None}, f"c {value}")


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({0: -0.1, 2: 0.12, 5: -0.1}, "holds"),
        ({0: -0.1, 2: -0.1, 5: 0.12}, "fails"),
        ({0: 0.0, 2: 0.005, 5: 0.0}, "undecided"),
    ],
)
def test_the_best_setting_is_near_a_value(tmp_path, plugins, values, answer) -> None:
    sweep(tmp_path, values)
    claim = {"kind": "setting", "metric": "overall", "setting": "c_bar", "near": 2, "within": 1}
    assert found(tmp_path, plugins, **claim)[0] == answer
    assert found(tmp_path, plugins, **claim | {"near": 9}) is None


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({1: 0.12, 2: 0.12, 0.5: -0.1}, "holds"),
        ({1: 0.12, 2: -0.1}, "fails"),
        ({1: 0.12, 2: 0}, "undecided"),
    ],
)
def test_every_setting_gains(tmp_path, plugins, values, answer) -> None:
    sweep(tmp_path, values)
    claim = {"kind": "every", "metric": "overall", "setting": "c_bar", "values": (1, 2, 3)}
    assert found(tmp_path, plugins, **claim)[0] == answer


def test_named_classes_gain_more_than_the_others(tmp_path, plugins) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", np.array([0, 0, 0, 0, 0.3, 0.3]))
    claim = {"kind": "classes", "classes": ("bird", "cat")}
    assert found(tmp_path, plugins, **claim)[0] == "holds"
    assert found(tmp_path, plugins, **claim | {"classes": ("ship", "dog")})[0] == "fails"
    assert found(tmp_path, plugins, **claim | {"classes": ("horse",)}) is None
    where = {"data.name": "cifar10"}
    assert found(tmp_path, plugins, **claim, where=where) is None
    assert found(tmp_path, plugins, **claim, where={"data.name": "digits"})[0] == "holds"


def test_ranks_over_classes(tmp_path, plugins) -> None:
    claim = {"kind": "rank", "method": "erm", "of": "spread", "sign": -1}
    for name, spread in (
        ("holds", [1, 2, 3, 4, 5, 6]),
        ("fails", [6, 5, 4, 3, 2, 1]),
        ("undecided", [3, 1, 6, 2, 5, 4]),
    ):
        write(tmp_path / name, "erm", spread=spread)
        assert found(tmp_path / name, plugins, **claim)[0] == name
    assert found(tmp_path / "holds", plugins, **claim | {"method": "mr2"}) is None


def test_even_norms(tmp_path, plugins) -> None:
    claim = {"kind": "even", "method": "erm", "of": "norm", "margin": 0.1}
    write(tmp_path / "even", "erm", norm=[1, 1.05, 1, 1, 1.05, 1])
    assert found(tmp_path / "even", plugins, **claim)[0] == "holds"
    write(tmp_path / "odd", "erm", norm=[1, 2, 1, 1, 3, 1])
    assert found(tmp_path / "odd", plugins, **claim)[0] == "fails"
    write(tmp_path / "none", "erm")
    assert found(tmp_path / "none", plugins, **claim) is None


def curve(gap_first: float, gap_last: float) -> list[list[float]]:
    return [[1, 1, 1, 1, 1 + gap, 1 + gap] for gap in np.linspace(gap_first, gap_last, 8)]


def test_a_gap_widens_during_training_and_is_narrower_than_erms(tmp_path, plugins) -> None:
    write(tmp_path, "erm", trace=curve(0.1, 2))
    write(tmp_path, "mr2", trace=curve(0.5, 0.1))
    widens = {"kind": "widens", "of": "spread"}
    assert found(tmp_path, plugins, **widens, method="erm")[0] == "holds"
    assert found(tmp_path, plugins, **widens, method="mr2")[0] == "fails"
    narrower = {"kind": "narrower", "of": "spread"}
    assert found(tmp_path, plugins, **narrower)[0] == "holds"
    against = {"method": "mr2"}
    assert found(tmp_path, plugins, **narrower, method="erm", against=against)[0] == "fails"
    write(tmp_path, "sam")
    assert found(tmp_path, plugins, **widens, method="sam") is None


def test_recorded_metrics_vary_with_seeds_alone(tmp_path, plugins) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", 0.14)
    assert found(tmp_path, plugins, kind="gain", metric="margin_hard")[0] == "holds"
    assert found(tmp_path, plugins, kind="gain", metric="ece_scaled") is None


def test_intervals_over_seeds_by_hand() -> None:
    mean, low, high = interval(np.array([1.0, 2.0, 3.0]))
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / np.sqrt(3))
    assert mean - low == pytest.approx(high - mean)
    assert interval(np.array([1.0])) is None
    assert interval(np.array([1.0, np.nan])) is None


def test_the_table_has_every_claim_once_or_once_a_table(tmp_path, plugins) -> None:
    write(tmp_path, "erm")
    write(tmp_path, "mr2", 0.1)
    table = paper_tables(tmp_path, plugins)[-1]
    assert len(table.rows) == len(load_claims())
    answers = {row["claim"].text: row["answer"].text for row in table.rows}
    assert answers["MR2 raises overall accuracy"] == "holds"
    assert answers["DRO raises overall accuracy"] == "not run"
    assert claims.FILE.is_file()
