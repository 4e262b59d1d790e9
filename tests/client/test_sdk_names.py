"""What the SDK offers: the same names for the interpreter, which imports them late, and for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import angelia
from angelia import client

SOURCE = Path(client.__file__).read_text("utf-8")


def for_type_checkers() -> dict[str, str]:
    """The names that the imports for types re-export, with their modules."""
    [block] = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_the_two_lists_of_names_are_the_same() -> None:
    assert vars(client)["_HOME_OF"] == for_type_checkers()
    assert set(client.__all__) == set(for_type_checkers())


def test_every_name_is_the_object_of_its_module_here_and_in_the_package() -> None:
    for name, module in for_type_checkers().items():
        found = getattr(client, name)
        assert found is getattr(sys.modules[module], name)
        assert found is getattr(angelia, name)
        assert {name} <= set(dir(client)) & set(dir(angelia))


def test_a_star_import_brings_every_name() -> None:
    told = "from angelia.client import *; print(Agent.__name__, SentMail.__name__, WrongPassphrase.__name__)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "Agent SentMail WrongPassphrase\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(client, "Nothing")
