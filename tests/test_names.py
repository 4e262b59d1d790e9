"""Names of the source: one public class name, and one name of a limit, stands for one concept."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import angelia
from angelia.api import Rule

ROOT = Path(angelia.__file__).parent


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_name_of_a_limit_stands_for_one_rule() -> None:
    """The setting `limits` changes a rule by its name, for all who have it."""
    rules: defaultdict[str, set[Rule]] = defaultdict(set)
    for path in sorted(ROOT.rglob("api.py")):
        module = importlib.import_module(f"angelia.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}")
        for value in vars(module).values():
            if isinstance(value, Rule):
                rules[value.name].add(value)
    assert len(rules) > 20
    assert {name: found for name, found in rules.items() if len(found) > 1} == {}
