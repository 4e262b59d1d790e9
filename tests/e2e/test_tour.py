"""What the README says to paste works when pasted."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import ServerProcess

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"tour-{secrets.token_hex(4)}")
    server.start()
    yield server
    server.stop()


def block(language: str) -> str:
    tour = README.read_text("utf-8").split("## Five minutes")[1]
    found = re.search(rf"```{language}\n(.*?)```", tour, re.DOTALL)
    assert found is not None
    return found[1]


def environment(server: ServerProcess, home: Path) -> dict[str, str]:
    bin_directory = str(Path(sys.executable).parent)
    return {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANGELIA_DATA_DIR": str(server.data_dir),
    }


def test_the_five_minute_tour_works_when_pasted(server: ServerProcess, tmp_path: Path) -> None:
    commands = "\n".join(line for line in block("sh").splitlines() if "activate" not in line)
    run = subprocess.run(
        ["sh", "-euc", commands], env=environment(server, tmp_path), capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"^handle +alice \(claimed; a handle is for ever\)$", run.stdout, re.MULTILINE)
    assert re.search(r"agent_registered", run.stdout)
    assert re.search(r"\d+ entries sound", run.stdout)
    assert "0 failures" in run.stdout
    script = block("python").replace("http://localhost:8080", server.start_url)
    python = subprocess.run(
        [sys.executable, "-c", script], env=environment(server, tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (python.stdout, python.stderr) == ("alice\n", "")


def test_a_copy_of_a_stopped_data_directory_holds_every_acknowledged_write(
    server: ServerProcess, directory: Path, tmp_path: Path
) -> None:
    """The back-up that docs/operations.md describes."""
    angelia = Path(sys.executable).parent / "angelia"
    made = subprocess.run(
        [angelia, "agent", "new", "alice", "--register", "-q"],
        env=environment(server, tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert server.stop() == 0
    copy = ServerProcess(directory / f"copy-{secrets.token_hex(4)}")
    subprocess.run(["cp", "-a", server.data_dir, copy.data_dir], check=True)
    shutil.rmtree(server.data_dir)
    copy.start()
    try:
        found = subprocess.run(
            [angelia, "agent", "show", "alice"], env=environment(copy, tmp_path), capture_output=True, text=True
        )
        assert made.stdout.strip() in found.stdout
        verified = subprocess.run([angelia, "audit", "verify"], env=environment(copy, tmp_path), capture_output=True)
        assert verified.returncode == 0
    finally:
        copy.stop()
