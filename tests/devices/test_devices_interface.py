"""No code outside ``wattune.devices`` asks for a device's class: it asks the device."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
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


def class_checks(source: str, classes: dict[str, bool]) -> Iterator[int]:
    """Lines that test an object against one of the classes, or import an implementation."""
    for node in ast.walk(ast.parse(source)):
        asked: set[str] = set()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = set(re.findall(r"\w+", ast.unparse(node.args[1])))
        elif isinstance(node, ast.MatchClass):
            asked = set(re.findall(r"\w+", ast.unparse(node.cls)))
        elif isinstance(node, ast.ImportFrom):
            asked = {alias.name for alias in node.names if not classes.get(alias.name, True)}
        if asked & classes.keys():
            yield node.lineno


def test_no_class_of_a_device_is_asked_for_outside_the_package():
    classes = device_classes()
    assert {"Device", "RealDevice", "SimulatedDevice", "ReplayDevice", "BoardDevice"} <= classes.keys()
    files = [path for path in SOURCES.rglob("*.py") if DEVICES not in path.parents]
    assert len(files) > 100
    checks = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in files
        for line in class_checks(path.read_text(encoding="utf-8"), classes)
    ]
    assert checks == []
