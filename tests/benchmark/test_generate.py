"""What is generated from the code, and that a change of the code is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from classfair import generate
from classfair_registry.errors import ClassfairError
from classfair_registry.hooks import PROJECT
from classfair_registry.specs import KINDS


def test_everything_that_is_generated_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_file_is_named_by_the_check_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("plugins", "registry"):
        (tmp_path / folder).mkdir()
        text = (generate.ROOT / folder / "README.md").read_text()
        (tmp_path / folder / "README.md").write_text(text)
    shutil.copy(generate.ROOT / "README.md", tmp_path)
    shutil.copytree(generate.ROOT / "leaderboard" / "results", tmp_path / generate.RESULTS)
    shutil.copy(generate.ROOT / "leaderboard" / "README.md", tmp_path / "leaderboard")
    (tmp_path / "pyproject.toml").touch()
    readme, catalogue = tmp_path / "registry" / "README.md", tmp_path / "catalogue.json"
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "catalogue_file", lambda: catalogue)
    generate.main([])
    catalogue.unlink()
    readme.write_text(f"Words.\n{generate.BEGIN}\nlast year's text\n{generate.END}\nMore words.\n")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    printed = capsys.readouterr().out
    assert "registry/README.md: is out of date; run python -m classfair.generate" in printed
    assert "catalogue.json: is out of date" in printed
    assert "plugins/README.md" not in printed
    assert not catalogue.exists()
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    written = readme.read_text()
    assert written.startswith("Words.\n")
    assert written.endswith("More words.\n")
    assert "last year" not in written
    targets = json.loads(catalogue.read_text())
    assert "classfair_plugins.methods.erm" in targets


@pytest.mark.parametrize(
    "document",
    [
        "no marks\n",
        f"{generate.BEGIN}\n",
        f"{generate.END}\n{generate.BEGIN}\n",
        f"{generate.BEGIN}\n{generate.END}\n{generate.END}\n",
    ],
)
def test_a_document_without_its_two_marks_is_refused(document: str) -> None:
    with pytest.raises(ClassfairError, match="a document needs one line"):
        generate.spliced(document, "text")


def test_the_reference_has_every_hook_with_its_signature_and_every_spec_with_its_fields() -> None:
    text = generate.hook_reference()
    for kind, spec in KINDS.items():
        assert f"### `{PROJECT}_{kind}() -> Iterable[{spec.__name__}]`" in text
        assert f"### `{spec.__name__}`" in text
    assert "### `classfair_progress(cell: CellInfo, progress: Progress) -> None`" in text
    assert "- `regimes`: where it can be used." in text
    assert ":class:" not in text
    assert ":mod:" not in text


def test_the_tables_have_every_plugin_that_ships() -> None:
    plugins = generate.built_in_plugins()
    text = generate.plugin_tables(plugins)
    for kind in KINDS:
        for card in plugins.cards(kind):
            assert f"| `{card.name}` |" in text
