"""The spool process of a server (`python -m angelia.spool_worker`): the group log, behind the web processes."""

from __future__ import annotations

import socket

from angelia.stores.embedded.datadir import DataDir
from angelia.worker import Handover, StartReport, main


def run_spool(handover: Handover, report: StartReport) -> None:
    """Builds the application and serves it until a signal stops the process."""
    # Imported here, so that an import that fails is reported too.
    from angelia.http import logs, serving
    from angelia.keys.node_key import load_or_make
    from angelia.spool_app import SpoolApplication, SpoolProtocol

    settings = handover.loaded.settings
    logs.configure(settings)
    logs.requests.configure(wanted=False, stream=None)  # the web process logs them
    node = load_or_make(DataDir(settings.data_dir).node_key)
    application = SpoolApplication(settings, node, open_mode=handover.open_mode, token=None, behind_web=True)
    report.listen()
    serving.serve(
        application,
        socket.socket(fileno=handover.listener),
        drain_seconds=settings.drain_seconds,
        on_ready=report.ready,
        protocol=SpoolProtocol,
    )


if __name__ == "__main__":
    main(run_spool)
