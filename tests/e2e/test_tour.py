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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.api import http_signature
from angelia.envelope.ids import KeyType, key_id
from angelia.stores import migrations
from server_process import ServerProcess

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"tour-{secrets.token_hex(4)}")
    server.start()
    yield server
    server.stop()


def block(language: str, page: Path = README, after: str = "## Five minutes") -> str:
    text = page.read_text("utf-8").split(after)[1]
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def environment(server: ServerProcess, home: Path) -> dict[str, str]:
    bin_directory = str(Path(sys.executable).parent)
    return {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANGELIA_DATA_DIR": str(server.data_dir),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


def test_the_five_minute_tour_works_when_pasted(server: ServerProcess, tmp_path: Path) -> None:
    commands = "\n".join(line for line in block("sh").splitlines() if "activate" not in line)
    run = subprocess.run(
        ["sh", "-euc", commands],
        env=environment(server, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"^handle +alice \(claimed; a handle is for ever\)$", run.stdout, re.MULTILINE)
    assert "the server cannot read this" in run.stdout
    assert re.search(
        r"^sent to bob, sealed \(X-Wing, Ed25519 \+ ML-DSA-65\), [\d,]+ bytes, expires in 7d$", run.stdout, re.MULTILINE
    )
    assert "acknowledged; alice gets a signed receipt" in run.stderr
    assert re.search(r"^[0-9a-f]{12} +alice +bob +delivered +recipient ", run.stdout, re.MULTILINE)
    assert re.search(r"agent_registered", run.stdout)
    assert re.search(r"\d+ entries sound", run.stdout)
    assert "0 failures" in run.stdout
    assert "warn  archive" not in run.stdout
    assert not (server.data_dir / "lake").exists(), "what is simulated goes elsewhere"
    by_hand = block("python", README.parent / "docs/signing.md", "## A worked example")
    script = by_hand.replace("localhost:8080", server.start_url.removeprefix("http://"))
    signed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert signed.stdout.endswith("carol\n"), signed.stderr


def test_the_guide_to_mail_works_when_pasted(server: ServerProcess, tmp_path: Path) -> None:
    page = (README.parent / "docs/mail.md").read_text("utf-8")
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    run = subprocess.run(
        ["sh", "-euc", commands],
        env=environment(server, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("deploy at 18:00") == 2
    assert re.search(r"^[0-9a-f]{12} +alice +bob +delivered +recipient ", run.stdout, re.MULTILINE)
    script = block("python", README.parent / "docs/mail.md", "## Wait for an answer")
    asked = subprocess.run(
        [sys.executable, "-c", script.replace("http://localhost:8080", server.start_url)],
        env=environment(server, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (asked.stdout, asked.stderr) == ("ARE YOU THERE?\n", "")


def test_mail_without_a_server_works_when_pasted(tmp_path: Path) -> None:
    page = README.parent / "docs/mailbox.md"
    handed_over = block("sh", page, "## Without a server")
    receipt = block("sh", page, "signed receipt:")
    bin_directory = str(Path(sys.executable).parent)
    environ = {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "ANGELIA_URL": "http://127.0.0.1:9",
    }
    run = subprocess.run(
        ["sh", "-euc", handed_over + receipt], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert "deploy at 18:00" in run.stdout
    assert re.search(r"bob signed: [0-9a-f]{12} read", run.stdout)


def test_the_example_of_an_envelope_works_when_pasted() -> None:
    script = block("python", README.parent / "docs/envelopes.md", "## From Python")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.stdout == "b'deploy at 18:00'\n", run.stderr


def test_the_worked_example_of_a_signature_is_right() -> None:
    page = (README.parent / "docs/signing.md").read_text("utf-8")
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    id_ = key_id(KeyType.ED25519, key.public_key().public_bytes_raw())
    body = b'{"handle":"alice"}'
    target = http_signature.Target("PUT", "localhost:8080", "/v1/agents/me/handle", "", http_signature.digest(body))
    headers = http_signature.sign(key, id_, target, created=1794767869, nonce="AAECAwQFBgcICQoLDA0ODxAR")
    for value in (str(id_), *headers.values()):
        assert value in page


def test_going_back_in_the_schema_is_asked_for_and_going_forward_is_not(server: ServerProcess, tmp_path: Path) -> None:
    server.stop()

    def schema(*words: str) -> subprocess.CompletedProcess[str]:
        angelia = Path(sys.executable).parent / "angelia"
        command = [angelia, "serve", "--schema", *words]
        return subprocess.run(command, env=environment(server, tmp_path), capture_output=True, text=True, timeout=60)

    before, newest = migrations.available()[-2:]
    refused = schema(str(before.version))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "confirmation_required" in refused.stderr
    named = f"{newest.version:04}_{newest.name}"
    assert schema(str(before.version), "--dry-run").stdout == ""
    assert schema(str(before.version), "--yes").stdout == f"down {named}\n"
    assert schema(str(newest.version)).stdout == f"up {named}\n"
    assert schema(str(newest.version)).stdout == ""


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
