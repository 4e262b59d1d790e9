"""httpx is loaded without its command line, and is whole all the same."""

from __future__ import annotations

import subprocess
import sys


def told(script: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_httpx_is_loaded_without_its_command_line() -> None:
    script = """
import sys
from angelia.cli import lean_httpx
lean_httpx.load()
import httpx
print(httpx.Client.__name__, "httpx._main" in sys.modules, "rich" in sys.modules)
"""
    assert told(script) == "Client False False\n"


def test_an_httpx_that_is_there_already_is_left_alone() -> None:
    script = """
import sys
import httpx
main, before = httpx.main, set(sys.modules)
from angelia.cli import lean_httpx
lean_httpx.load()
print(httpx.main is main, set(sys.modules) - before - {"angelia", "angelia.cli", "angelia.cli.lean_httpx"})
"""
    assert told(script) == "True set()\n"


def test_an_httpx_that_needs_its_command_line_is_loaded_as_it_wants() -> None:
    """As a later release might: the import fails once, and the ordinary import that follows it works."""
    script = """
import sys, tempfile, pathlib
package = pathlib.Path(tempfile.mkdtemp()) / "httpx"
package.mkdir()
(package / "__init__.py").write_text("from httpx._main import main")
(package / "_main.py").write_text("main = 'needed'")
sys.path.insert(0, str(package.parent))
from angelia.cli import lean_httpx
lean_httpx.load()
import httpx
print(httpx.main)
"""
    assert told(script) == "needed\n"
