"""`angelia log`: group logs, whose members trust none of the nodes that keep them."""

from __future__ import annotations

from angelia.cli import log_groups, log_updates, log_upkeep
from angelia.cli.grammar import Noun

command = Noun("log", "group logs: create, append, read, follow, compact, verify, repair")

for part in (log_groups, log_updates, log_upkeep):
    command.commands |= part.verbs.commands
