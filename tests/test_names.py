"""Names of the source: one public class name stands for one concept."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import angelia

ROOT = Path(angelia.__file__).parent


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
