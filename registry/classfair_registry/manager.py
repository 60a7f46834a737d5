"""Finding plugins: in-tree ones by scanning, external ones one at a time, each guarded.

A plugin is a module with functions marked ``@hookimpl``. One that fails to load is kept with its
name, version and cause, and hurts nothing else. There is no global manager: the command line builds
one :class:`Plugins` and passes it down.

Modules with methods or backbones import torch, which takes seconds. What the command line says of
them comes from *cards*: plain values, in a catalogue file for the in-tree ones and in the user's
cache for external ones, each valid only for the exact source that it was made from.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs
import pluggy

from classfair_registry import hooks
from classfair_registry.errors import UsageError, near
from classfair_registry.files import write_json
from classfair_registry.settings import Setting, describe
from classfair_registry.specs import KINDS

BUILT_IN = "classfair_plugins"
LOCAL_FILE = "classfair_plugins.py"
ENTRY_POINTS = "classfair"
CARD_VERSION = 1
_NEEDS_TORCH = ("methods", "backbones")
_FOLDERS = (*KINDS, "observers")


@dataclasses.dataclass(frozen=True)
class PluginInfo:
    """Where a plugin comes from and how its loading went.

    Attributes:
        name: of the plugin: its module, entry point or file.
        distribution: name of the installed distribution, or the file's path.
        version: of the distribution, or empty.
        origin: ``built-in``, ``entry point`` or ``file``.
        target: what to import: a module name or a file's path.
        stamp: sha256 over its source files.
        error: one line that says why it was put aside, or None.
        detail: the traceback of the error, or None.
    """

    name: str
    distribution: str
    version: str
    origin: str
    target: str
    stamp: str = ""
    error: str | None = None
    detail: str | None = None


@dataclasses.dataclass(frozen=True)
class Card:
    """A spec as plain values, readable without importing its plugin."""

    kind: str
    name: str
    plugin: PluginInfo
    values: Mapping[str, Any]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that YAML may give."""
        return tuple(Setting.from_json(item) for item in self.values["settings"])


class Plugins:
    """All plugins that were found, by kind and name."""

    def __init__(self, *, strict: bool = False, cache: Path | None = None) -> None:
        self.strict = strict
        self._cache = cache or cache_folder() / "cards"
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._plugins: dict[str, PluginInfo] = {}
        self._cards: dict[str, dict[str, Card]] = {kind: {} for kind in KINDS}
        self._specs: dict[tuple[str, str], Any] = {}
        self._reported: set[str] = set()

    # -- what is there -------------------------------------------------------------------------

    @property
    def plugins(self) -> list[PluginInfo]:
        """All plugins, those that failed included."""
        return list(self._plugins.values())

    @property
    def broken(self) -> list[PluginInfo]:
        """The plugins that were put aside."""
        return [plugin for plugin in self.plugins if plugin.error]

    def cards(self, kind: str) -> list[Card]:
        """Return the cards of a kind, sorted by name."""
        return [card for _, card in sorted(self._cards[kind].items())]

    def card(self, kind: str, name: str, where: str = "") -> Card:
        """Return one card.

        Raises:
            UsageError: for an unknown name, with near ones and the plugins that failed to load.
        """
        if name in self._cards[kind]:
            return self._cards[kind][name]
        place = f"{where}: " if where else ""
        failed = [f"{p.name} ({p.error})" for p in self.broken]
        also = f"; plugins that failed to load: {', '.join(failed)}" if failed else ""
        hint = near(name, self._cards[kind])
        raise UsageError(f"{place}no {kind.removesuffix('s')} {name!r}{hint}{also}")

    def get(self, kind: str, name: str, where: str = "") -> Any:
        """Return the spec itself, importing its plugin if that has not happened yet.

        Raises:
            UsageError: for an unknown name or a plugin that does not load.
        """
        card = self.card(kind, name, where)
        if (kind, name) not in self._specs:
            self.load(card.plugin)
        if (kind, name) not in self._specs:
            cause = self._plugins[card.plugin.name].error or "it no longer provides it"
            raise UsageError(f"{kind.removesuffix('s')} {name!r}: {card.plugin.name}: {cause}")
        return self._specs[kind, name]

    def specs(self, kind: str) -> list[Any]:
        """Return the specs of a kind, sorted by name."""
        return [self.get(kind, card.name) for card in self.cards(kind)]

    def notify(self, hook: str, **arguments: Any) -> list[str]:
        """Call an observing hook plugin by plugin; return the complaints that are new."""
        complaints = []
        for implementation in self._manager.hook.__dict__[hook].get_hookimpls():
            accepted = {name: arguments[name] for name in implementation.argnames}
            try:
                implementation.function(**accepted)
            except Exception as error:  # noqa: BLE001 - an observer ends nothing
                if implementation.plugin_name not in self._reported:
                    self._reported.add(implementation.plugin_name)
                    complaints.append(f"observer {implementation.plugin_name}: {_line(error)}")
        return complaints

    # -- loading -------------------------------------------------------------------------------

    def add_built_in(self) -> None:
        """Scan the in-tree plugins; import those that need torch only if their card is old."""
        catalogue = read_catalogue()
        for folder in _FOLDERS:
            for target in _modules(f"{BUILT_IN}.{folder}"):
                stamp = _stamp(_source_files(target))
                plugin = PluginInfo(target, "classfair", version(), "built-in", target, stamp)
                self._add(plugin, catalogue.get(target), lazy=folder in _NEEDS_TORCH)

    def add_entry_points(
        self, points: Iterable[importlib.metadata.EntryPoint] | None = None
    ) -> None:
        """Add the installed plugins of the entry-point group ``classfair``, one at a time."""
        if points is None:
            points = importlib.metadata.entry_points(group=ENTRY_POINTS)
        found = [_from_entry_point(point) for point in points]
        for plugin in found:
            twins = [p for p in found if p.name == plugin.name or p.target == plugin.target]
            if len(twins) > 1:
                names = " and ".join(f"{p.distribution} {p.version}" for p in twins)
                self._put_aside(plugin, f"found twice: {names}; uninstall one")
                continue
            self._add(plugin, self._cached(plugin), lazy=True)

    def add_file(self, path: Path) -> None:
        """Add a plugin of one file, such as ``--plugin FILE`` names.

        Raises:
            UsageError: if there is no such file.
        """
        if not path.is_file():
            raise UsageError(f"--plugin {path}: no such file")
        resolved = str(path.resolve())
        plugin = PluginInfo(path.stem, resolved, "", "file", resolved, _stamp([path]))
        self._add(plugin, None, lazy=False)

    def _add(self, plugin: PluginInfo, cards: Mapping[str, Any] | None, *, lazy: bool) -> None:
        if plugin.name in self._plugins:
            other = self._plugins[plugin.name]
            self._put_aside(plugin, f"a plugin of this name comes from {other.distribution}")
            return
        self._plugins[plugin.name] = plugin
        if lazy and cards is not None and cards["stamp"] == plugin.stamp:
            self._file_cards(plugin, cards["cards"])
            return
        specs = self.load(plugin)
        if specs is None:
            return
        values = [card_values(kind, spec) for kind, spec in specs]
        # An observer is called without being asked for by name, so it is imported every time.
        kept = plugin.origin == "entry point" and not self._observes(plugin.name)
        if self._file_cards(plugin, values) and kept:
            self._remember(plugin, values)

    def load(self, plugin: PluginInfo) -> list[tuple[str, Any]] | None:
        """Import, register and ask one plugin for its specs; put it aside if anything fails."""
        module: ModuleType | None = None
        try:
            module = _import(plugin)
            if self._manager.get_plugin(plugin.name) is None:
                self._manager.register(module, plugin.name)
            self._manager.check_pending()
            specs = list(self._provided(plugin.name))
            if not specs and not self._observes(plugin.name):
                raise UsageError("provides nothing: no function is marked @hookimpl")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it hurts nothing else
            if self._manager.get_plugin(plugin.name) is not None:
                self._manager.unregister(name=plugin.name)
            self._put_aside(plugin, _line(error), traceback.format_exc())
            return None
        for kind, spec in specs:
            self._specs[kind, spec.name] = spec
        return specs

    def _provided(self, plugin: str) -> Iterator[tuple[str, Any]]:
        for kind, spec_type in KINDS.items():
            for implementation in self._manager.hook.__dict__[f"classfair_{kind}"].get_hookimpls():
                if implementation.plugin_name != plugin:
                    continue
                for spec in implementation.function():
                    if not isinstance(spec, spec_type):
                        raise TypeError(
                            f"classfair_{kind} gave a {type(spec).__name__}, "
                            f"not a {spec_type.__name__}"
                        )
                    yield kind, spec

    def _observes(self, plugin: str) -> bool:
        callers = self._manager.get_hookcallers(self._manager.get_plugin(plugin)) or []
        return any(caller.name.removeprefix("classfair_") not in KINDS for caller in callers)

    def _file_cards(self, plugin: PluginInfo, values: Sequence[Mapping[str, Any]]) -> bool:
        """Enter a plugin's cards; on a clash of names put aside whoever must yield."""
        for value in values:
            card = self._cards[value["kind"]].get(value["name"])
            if card is None or card.plugin.name == plugin.name:
                continue
            what = f"{value['kind'].removesuffix('s')} {value['name']!r}"
            if card.plugin.origin == "built-in":
                self._put_aside(plugin, f"{what} is built in and cannot be replaced")
            else:
                for one, two in ((plugin, card.plugin), (card.plugin, plugin)):
                    self._put_aside(one, f"{what} is also provided by {two.distribution}")
            return False
        for value in values:
            kind, name = value["kind"], value["name"]
            self._cards[kind][name] = Card(kind, name, plugin, value)
        return True

    def _put_aside(self, plugin: PluginInfo, error: str, detail: str | None = None) -> None:
        name = plugin.name
        if name in self._plugins and self._plugins[name].target != plugin.target:
            name = f"{plugin.name} ({plugin.distribution})"
        self._plugins[name] = dataclasses.replace(plugin, error=error, detail=detail)
        for cards in self._cards.values():
            for card in [c for c in cards.values() if c.plugin == plugin]:
                del cards[card.name]
                self._specs.pop((card.kind, card.name), None)
        if self.strict:
            raise UsageError(f"plugin {plugin.name} ({plugin.distribution}): {error}")

    # -- the cache of external plugins' cards --------------------------------------------------

    def _cache_file(self, plugin: PluginInfo) -> Path:
        identity = f"{plugin.distribution} {plugin.version} {plugin.target}"
        return self._cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"

    def _cached(self, plugin: PluginInfo) -> Mapping[str, Any] | None:
        try:
            cached = json.loads(self._cache_file(plugin).read_text())
            return cached if cached["version"] == CARD_VERSION else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, plugin: PluginInfo, values: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            cards = {"version": CARD_VERSION, "stamp": plugin.stamp, "cards": list(values)}
            write_json(self._cache_file(plugin), cards, durable=False)
        except OSError:
            pass  # A read-only home costs the next start an import and nothing else.


def discover(files: Sequence[Path] = (), *, strict: bool = False) -> Plugins:
    """Return all plugins: in-tree, installed, a local ``classfair_plugins.py``, and ``files``.

    Args:
        files: plugins of one file each.
        strict: raise for the first plugin that fails instead of putting it aside.
    """
    plugins = Plugins(strict=strict)
    plugins.add_built_in()
    plugins.add_entry_points()
    local = Path(LOCAL_FILE)
    wanted = [*([local] if local.is_file() else []), *files]
    for path in {path.resolve(): path for path in wanted}.values():
        plugins.add_file(path)
    return plugins


def card_values(kind: str, spec: Any) -> dict[str, Any]:
    """Return what is said of a spec without importing it: its plain fields, settings and docs."""
    values: dict[str, Any] = {"kind": kind, "settings": []}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name == "settings":
            values["settings"] = [dataclasses.asdict(item) for item in describe(value)]
            values["doc"] = inspect.getdoc(sys.modules[value.__module__]) or ""
        elif field.name == "manifest":
            values["manifest"] = dataclasses.asdict(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            values[field.name] = dataclasses.asdict(value)
        elif not callable(value):
            values[field.name] = value
    maker = next((getattr(spec, n) for n in ("make", "open", "compute") if hasattr(spec, n)), None)
    if isinstance(maker, functools.partial):
        maker = maker.func
    values["doc"] = (inspect.getdoc(maker) if maker else "") or values.get("doc", "")
    values["summary"] = spec.summary
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def build_catalogue() -> dict[str, Any]:
    """Import every in-tree plugin that needs torch and return the catalogue's content."""
    catalogue = {}
    plugins = Plugins(strict=True)
    for folder in _NEEDS_TORCH:
        for target in _modules(f"{BUILT_IN}.{folder}"):
            stamp = _stamp(_source_files(target))
            plugin = PluginInfo(target, "classfair", version(), "built-in", target, stamp)
            specs = plugins.load(plugin) or []
            cards = [card_values(kind, spec) for kind, spec in specs]
            catalogue[target] = {"stamp": stamp, "cards": cards}
    return catalogue


def catalogue_file() -> Path:
    """Return the path of the catalogue that ships with the in-tree plugins."""
    found = importlib.util.find_spec(BUILT_IN)
    if found is None or found.origin is None:
        raise UsageError(f"{BUILT_IN} is not installed; reinstall classfair")
    return Path(found.origin).parent / "catalogue.json"


def read_catalogue() -> dict[str, Any]:
    """Return the catalogue's content, empty if there is none."""
    try:
        content: dict[str, Any] = json.loads(catalogue_file().read_text())
        return content
    except (FileNotFoundError, ValueError):
        return {}


@functools.cache
def version() -> str:
    """Return the installed version of classfair."""
    return importlib.metadata.version("classfair")


def cache_folder() -> Path:
    """Return the folder for what can be made again: ``CLASSFAIR_CACHE`` or the user's cache."""
    named = os.environ.get("CLASSFAIR_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("classfair"))


def _modules(package: str) -> list[str]:
    """Return the names of the plugin modules directly inside a package."""
    found = importlib.import_module(package)
    names = (item.name for item in pkgutil.iter_modules(found.__path__))
    return [f"{package}.{name}" for name in sorted(names) if not name.startswith("_")]


def _source_files(target: str) -> list[Path]:
    """Return the source files of a module, or of all modules of a package, without importing it."""
    found = importlib.util.find_spec(target)
    if found is None or found.origin is None:
        return []
    origin = Path(found.origin)
    return sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]


def _stamp(files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _from_entry_point(point: importlib.metadata.EntryPoint) -> PluginInfo:
    distribution = point.dist
    name = distribution.name if distribution else "?"
    release = distribution.version if distribution else ""
    try:
        stamp = _stamp(_source_files(point.module))
    except (ImportError, OSError, ValueError):
        stamp = ""  # Found to be broken when it is loaded.
    return PluginInfo(point.name, name, release, "entry point", point.value, stamp)


def _import(plugin: PluginInfo) -> Any:
    if plugin.origin != "file":
        module, _, attribute = plugin.target.partition(":")
        found: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
        return found
    name = f"classfair_file_{plugin.stamp[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, plugin.target)
        if spec is None or spec.loader is None:
            raise UsageError(f"{plugin.target}: not a Python file")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"
