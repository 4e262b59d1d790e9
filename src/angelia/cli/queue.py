"""`angelia queue`: queues of ordered partitions, which the server can read."""

from __future__ import annotations

from angelia.cli import queue_dlq, queue_look, queue_operate, queue_pop, queue_push
from angelia.cli.grammar import Noun

command = Noun("queue", "queues of ordered partitions: push, pop, tail, dead letters")

for part in (queue_push, queue_pop, queue_look, queue_operate):
    command.commands |= part.verbs.commands
command.add_command(queue_dlq.command)
