"""The superuser of an embedded PostgreSQL. It cannot log in, so it works in single-user mode, on a stopped cluster."""

from __future__ import annotations

import subprocess

from angelia.stores.embedded.binaries import postgres_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.system_user import store_environment


def as_superuser(data_dir: DataDir, *statements: str, database: str = "postgres") -> str:
    """Runs statements, each on one line, as the role that made the cluster. Returns what PostgreSQL printed."""
    owner = data_dir.owner
    program = postgres_for(data_dir, None).directory / "postgres"
    told = subprocess.run(
        [program, "--single", "-D", data_dir.postgres, "-c", "exit_on_error=on", database],
        input="".join(f"{statement}\n" for statement in statements),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env=store_environment(),
        **owner.popen_options,
    )
    return told.stdout
