"""No code outside ``wattune.devices`` asks for a device's class: it asks the device."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import wattune
import wattune.devices
from wattune.devices import Device

SOURCES = Path(wattune.__file__).parent
DEVICES = Path(wattune.devices.__file__).parent


def device_classes() -> dict[str, bool]:
    """Names of ``Device`` and of every class below it, and whether it is abstract: a base for devices elsewhere."""
    for module in pkgutil.walk_packages(wattune.devices.__path__, "wattune.devices."):
        importlib.import_module(module.name)

    def below(kind: type) -> Iterator[type]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    kinds = [kind for kind in below(Device) if kind.__module__.startswith("wattune.devices.")]
    return {kind.__name__: inspect.isabstract(kind) for kind in kinds}


def class_checks(source: str, classes: dict[str, bool]) -> list[int]:
    """Lines that test an object against one of the classes, or import an implementation."""
    tree = ast.parse(source)
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }

    def names(node: ast.AST) -> set[str]:
        mentioned = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        mentioned |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        return {aliases.get(name, name) for name in mentioned}

    def is_check(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and names(node.func) & {"isinstance", "issubclass"}:
            return any(names(argument) & classes.keys() for argument in node.args[1:])
        if isinstance(node, ast.MatchClass):
            return bool(names(node.cls) & classes.keys())
        if isinstance(node, ast.ImportFrom):
            return any(not classes.get(alias.name, True) for alias in node.names)
        return False

    return [node.lineno for node in ast.walk(tree) if is_check(node)]


def test_the_implementations_are_found():
    assert {"Device", "RealDevice", "SimulatedDevice", "ReplayDevice", "BoardDevice"} <= device_classes().keys()


def test_no_class_of_a_device_is_asked_for_outside_the_package():
    classes = device_classes()
    files = [path for path in SOURCES.rglob("*.py") if DEVICES not in path.parents]
    assert len(files) > 100
    checks = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in files
        for line in class_checks(path.read_text(encoding="utf-8"), classes)
    ]
    assert checks == []
