"""The import direction: the registry at the bottom, the other three beside one another above it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "classfair_registry": ROOT / "registry",
    "classfair_plugins": ROOT / "plugins",
    "classfair": ROOT / "benchmark",
    "classfair_leaderboard": ROOT / "leaderboard",
}
BELOW = {
    "classfair_registry": {"numpy", "pluggy", "pydantic", "platformdirs", "yaml"},
    "classfair_plugins": {"classfair_registry"},
    "classfair": {"classfair_registry"},
    "classfair_leaderboard": {"classfair_registry"},
}
NEEDS_TORCH = ("methods", "backbones")


def modules(package: str) -> list[Path]:
    return sorted((PACKAGES[package] / package).rglob("*.py"))


def imported(path: Path, *, inside_functions: bool) -> set[str]:
    """Top-level names of absolute imports that run; those for the type checker are left out."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef) and not inside_functions:
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add((node.module or "").partition(".")[0])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below(package):
    others = set(PACKAGES) - {package} - BELOW[package]
    for path in modules(package):
        # The command line is on top: inside a verb it may use the leaderboard.
        top = package == "classfair" and "cli" in path.parts
        reached = imported(path, inside_functions=not top)
        assert not reached & others, f"{path.relative_to(ROOT)} imports {reached & others}"


def test_the_registry_needs_little():
    for path in modules("classfair_registry"):
        trained = path.name == "plain.py" or "testing" in path.with_suffix("").parts
        allowed = BELOW["classfair_registry"] | {"classfair_registry"} | sys.stdlib_module_names
        beyond = imported(path, inside_functions=True) - allowed - ({"torch"} if trained else set())
        assert not beyond, f"{path.relative_to(ROOT)} imports {beyond}"


def test_plugins_that_the_command_line_reads_import_without_torch():
    for path in modules("classfair_plugins"):
        kind = path.relative_to(PACKAGES["classfair_plugins"] / "classfair_plugins").parts[0]
        if kind not in NEEDS_TORCH:
            reached = imported(path, inside_functions=False)
            assert not reached & {"torch", "torchvision"}, path


def test_the_leaderboard_never_imports_torch():
    for path in modules("classfair_leaderboard"):
        assert "torch" not in imported(path, inside_functions=True), path
