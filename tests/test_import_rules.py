"""Who may import whom, read from the source itself: the table of the design, and no way around it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import angelia

ROOT = Path(angelia.__file__).parent

# A slice's service may use the services of the slices before it; the others use what is named here.
CHAIN = ["audit", "agents", "policy", "keys", "mail", "channels"]
USES = {
    **{name: set(CHAIN[:place]) for place, name in enumerate(CHAIN)},
    "rooms": {"audit", "agents"},
    "queues": {"audit", "agents", "keys"},
    "grouplog": set(),
    "runs": {"audit", "mail", "rooms", "queues"},
    "monitoring": set(),
}
SLICES = set(USES)
FREE = {"angelia", "api", "errors", "settings", "metrics"}  # for everybody but the pure core
PURE = {"errors", "envelope"}
SHARED_STORES = {
    f"stores.{name}" for name in ("ledger", "wake", "group_commit", "partitions", "private_files", "rocks")
}


@dataclass(frozen=True)
class Import:
    """One import statement of a module, to another module of ours."""

    module: str
    target: str
    lazy: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.module} imports {self.target}"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__") or "angelia", path


NAMES = dict(modules())


@functools.cache
def imports() -> tuple[Import, ...]:
    return tuple(found for name, path in NAMES.items() for found in imports_of(name, path.read_text("utf-8")))


def imports_of(module: str, source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    lazy, for_types = set[ast.AST](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lazy.update(ast.walk(node))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for_types.update(part for statement in node.body for part in ast.walk(statement))
    for node in ast.walk(tree):
        for target in _targets(node):
            yield Import(module, target, node in lazy, node in for_types)


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        named = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports name their module in full"
        named = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in named:
        package, _, inside = name.partition(".")
        if package == "angelia":
            yield _module_of(inside)


def _module_of(dotted: str) -> str:
    """The module that a dotted name lies in: itself, or the one that defines it."""
    while dotted and dotted not in NAMES:
        dotted = dotted.rpartition(".")[0]
    return dotted or "angelia"


def part_of(module: str) -> str:
    return module.partition(".")[0]


def role_of(module: str) -> str:
    """What a module of a slice is. One with more than one subject has more than one store, declaration of operations or
    file of routes, named `…_store`, `…_api` and `…_routes`, and more than one service, named for what it does."""
    slice_name, _, role = module.partition(".")
    if role.startswith("model."):
        return "model"
    if role.endswith(("_store", "_api", "_routes")):
        return role.rpartition("_")[2]
    plain = ("", "model", "store", "api", "routes", "ticks", "slice")
    return role if slice_name not in SLICES | {"guard"} or role in plain else "service"


def broken(rule: object) -> list[str]:
    return [str(found) for found in imports() if not rule(found)]  # type: ignore[operator]


# Slices.


def test_what_all_slices_share_knows_none_of_them() -> None:
    def rule(found: Import) -> bool:
        return part_of(found.module) != "api" or part_of(found.target) in {"api", *PURE}

    assert broken(rule) == []


def test_no_two_packages_import_each_other() -> None:
    """A door that opens both ways is a package that was cut in the wrong place."""
    edges = {(part_of(found.module), part_of(found.target)) for found in imports()}
    packages = {part_of(name) for name in NAMES if "." in name}
    both = {(a, b) for a, b in edges if a < b and {a, b} <= packages and (b, a) in edges}
    assert both == set()


def test_a_model_imports_the_pure_core_and_what_all_slices_share() -> None:
    def rule(found: Import) -> bool:
        if part_of(found.module) not in SLICES | {"guard"} or role_of(found.module) != "model":
            return True
        own = part_of(found.target) == part_of(found.module) and role_of(found.target) == "model"
        return own or part_of(found.target) in PURE | {"api"}

    assert broken(rule) == []


def test_a_store_imports_its_own_model_the_pure_core_and_the_stores_only() -> None:
    def rule(found: Import) -> bool:
        slice_name = part_of(found.module)
        if slice_name not in SLICES | {"guard"} or role_of(found.module) != "store":
            return True
        own = part_of(found.target) == slice_name and role_of(found.target) == "model"
        return own or part_of(found.target) in PURE | {"api", "stores"}

    assert broken(rule) == []


def test_a_statement_is_made_of_parts_of_its_own_slice_and_of_those_that_it_may_use() -> None:
    named = re.compile(r"\{([a-z]\w*)\.[a-z]\w*\}")
    used = {
        (path.parent.name, other)
        for path in sorted(ROOT.rglob("*.sql"))
        for other in named.findall(path.read_text("utf-8"))
    }
    assert {(slice_name, other) for slice_name, other in used if other not in USES[slice_name]} == set()
    assert ("mail", "keys") in used


def test_a_store_is_imported_by_its_own_slice_only() -> None:
    def rule(found: Import) -> bool:
        if role_of(found.target) != "store" or part_of(found.target) not in SLICES | {"guard"}:
            return True
        return part_of(found.target) == part_of(found.module)

    assert broken(rule) == []


def test_services_form_a_directed_acyclic_graph() -> None:
    def rule(found: Import) -> bool:
        slice_name, other = part_of(found.module), part_of(found.target)
        if (
            slice_name not in SLICES
            or role_of(found.module) in ("model", "store", "api", "routes", "slice")
            or other == slice_name
        ):
            return True
        if other in SLICES:
            return other in USES[slice_name] and role_of(found.target) in ("service", "model")
        if other == "stores":
            return found.target in SHARED_STORES
        return other in FREE | PURE

    assert broken(rule) == []


def test_operations_are_declared_with_the_own_model_and_declarations_and_the_pure_core() -> None:
    def rule(found: Import) -> bool:
        slice_name = part_of(found.module)
        if slice_name not in SLICES | {"guard"} or role_of(found.module) != "api":
            return True
        own = part_of(found.target) == slice_name and role_of(found.target) in ("model", "api")
        return own or part_of(found.target) in PURE | {"api"}

    assert broken(rule) == []


def test_routes_import_their_own_slice() -> None:
    def rule(found: Import) -> bool:
        slice_name = part_of(found.module)
        if slice_name not in SLICES | {"guard"} or role_of(found.module) != "routes":
            return True
        if part_of(found.target) == slice_name:
            return role_of(found.target) not in ("store", "slice")
        return part_of(found.target) in FREE | PURE

    assert broken(rule) == []


def test_a_slice_builds_on_the_slices_before_it() -> None:
    def rule(found: Import) -> bool:
        slice_name, other = part_of(found.module), part_of(found.target)
        if slice_name not in SLICES | {"guard"} or role_of(found.module) != "slice" or other == slice_name:
            return True
        if other in SLICES:
            before = USES.get(slice_name, {"agents", "audit"})
            return other in before and role_of(found.target) == "slice"
        return other in FREE | PURE or found.target == "stores.open_stores"

    assert broken(rule) == []


def test_the_guard_uses_agents_and_audit_and_is_used_by_no_slice() -> None:
    def uses(found: Import) -> bool:
        if part_of(found.module) != "guard" or role_of(found.module) == "slice":
            return True
        other = part_of(found.target)
        return other in FREE | PURE | {"guard", "stores"} or found.target in ("agents.service", "audit.service")

    def used(found: Import) -> bool:
        return part_of(found.target) != "guard" or part_of(found.module) not in SLICES

    assert broken(uses) + broken(used) == []


def test_the_stores_know_no_slice() -> None:
    def rule(found: Import) -> bool:
        allowed = {"stores", "errors", "settings", "runtime_file"}
        return part_of(found.module) != "stores" or part_of(found.target) in allowed

    assert broken(rule) == []


def test_the_pure_core_imports_nothing_of_ours_but_errors() -> None:
    def rule(found: Import) -> bool:
        if part_of(found.module) not in {"envelope", "errors", "metrics", "settings"}:
            return True
        return part_of(found.target) in {part_of(found.module), "errors"}

    assert broken(rule) == []


# Around them.


@pytest.mark.parametrize("package", ["client", "mailbox"])
def test_client_and_mailbox_import_what_is_declared_and_never_a_store(package: str) -> None:
    def rule(found: Import) -> bool:
        if part_of(found.module) != package:
            return True
        allowed = {package, "mailbox", "api", "envelope", "errors", "settings", "runtime_file", "angelia"}
        return part_of(found.target) in allowed or (
            part_of(found.target) in SLICES | {"guard"} and role_of(found.target) in ("model", "api")
        )

    assert broken(rule) == []


def test_what_a_client_loads_reaches_no_store() -> None:
    """Not even by way of another module."""
    reached, waiting = set[str](), [name for name in NAMES if part_of(name) in ("client", "mailbox")]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [found.target for found in imports() if found.module == module and not found.for_types]
    assert not [m for m in reached if part_of(m) in ("stores", "http", "app") or role_of(m) in ("store", "service")]


def test_the_command_line_loads_everything_but_itself_when_it_is_needed() -> None:
    def rule(found: Import) -> bool:
        if part_of(found.module) != "cli" or found.lazy or found.for_types:
            return True
        return part_of(found.target) in {"cli", "errors", "angelia"}

    assert broken(rule) == []


def test_the_pipeline_imports_settings_objects_and_models_only() -> None:
    def rule(found: Import) -> bool:
        if part_of(found.module) != "pipeline":
            return True
        return (
            part_of(found.target) in FREE | PURE | {"pipeline"}
            or found.target in ("stores.objects", "stores.sql")
            or found.target == "rooms.words"  # pure: imported messages are found by the same words as posted ones
            or (part_of(found.target) in SLICES and role_of(found.target) == "model")
        )

    assert broken(rule) == []


def test_only_the_processes_around_it_import_the_application() -> None:
    def rule(found: Import) -> bool:
        return found.target != "app" or part_of(found.module) in {"audit_sealer", "start", "worker"}

    assert broken(rule) == []


def test_only_the_application_and_its_processes_import_the_edge() -> None:
    def rule(found: Import) -> bool:
        if part_of(found.target) != "http":
            return True
        processes = {"app", "worker", "spool_app", "spool_server", "spool_worker"}
        return part_of(found.module) in processes | {"http"} or found.target == "http.logs"

    assert broken(rule) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    edges: dict[str, set[str]] = {name: set() for name in NAMES}
    for found in imports():
        if not (found.lazy or found.for_types) and found.target != found.module:
            edges[found.module].add(found.target)
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for target in sorted(edges[module]):
                visit(target, (*way, module))
            done.add(module)

    for name in NAMES:
        visit(name, ())


# The reader itself.


def test_every_kind_of_import_is_seen() -> None:
    source = """
from typing import TYPE_CHECKING
import angelia.errors
from angelia import settings
from angelia.stores.ledger import Ledger
if TYPE_CHECKING:
    from angelia.agents.model import Agent
def late():
    from angelia.stores import valkey
    import os, json
"""
    assert [(found.target, found.lazy, found.for_types) for found in imports_of("x", source)] == [
        ("errors", False, False),
        ("settings", False, False),
        ("stores.ledger", False, False),
        ("agents.model", False, True),
        ("stores.valkey", True, False),
    ]


def test_the_rules_look_at_real_modules() -> None:
    assert {"app", "agents.service", "guard.service", "http.edge", "mail.slice", "cli.main", "client"} <= set(NAMES)
    assert len(imports()) > 200
