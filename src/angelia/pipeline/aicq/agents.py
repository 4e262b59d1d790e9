"""Imports agents: by the rules of registration, with the ids that they had."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from angelia.agents.model import Registration
from angelia.errors import InvalidArgument
from angelia.pipeline.aicq.database import AicqDatabase, Rows
from angelia.pipeline.aicq.importing import Import
from angelia.pipeline.aicq.rows import agent_of


@dataclass(frozen=True, slots=True)
class _Standing:
    """How an agent of AICQ stands to those here: the one that has or had its key, and whether its id is in use."""

    agent: Registration
    holder: UUID | None
    taken: bool

    @property
    def new(self) -> bool:
        return self.holder is None and not self.taken


def import_agents(into: Import, source: AicqDatabase) -> None:
    """Registers agents that are new here. One whose key is known is the agent that has it, whatever its id."""
    into.work.progress.stage("importing agents")
    for rows in source.agents():
        wanted = _checked(into, rows)
        for one in into.batch("agents", functools.partial(_write, into, wanted)):
            _count(into, one)
        into.work.progress.advance(len(rows))


def _checked(into: Import, rows: Rows) -> list[Registration]:
    wanted: dict[UUID, Registration] = {}
    for row in rows:
        try:
            agent = agent_of(row)
            if agent.id in wanted or agent.id in into.holders:
                raise InvalidArgument("its id occurs twice")
            wanted[agent.id] = agent
        except InvalidArgument as error:
            into.agents.skip(row["id"], error.message)
    return list(wanted.values())


def _write(into: Import, wanted: Sequence[Registration]) -> list[_Standing]:
    sql, given = into.sql("agents"), _given(wanted)
    if into.run is not None:
        locks = sorted({int.from_bytes(one.key_id.bytes[:8], "big", signed=True) for one in wanted})
        into.database.rows(sql["lock_keys"], json.dumps(locks))
    found = {row["id"]: row for row in into.database.rows(sql["standing"], given)}
    standings = [_standing(one, found[str(one.id)]["holder"], found[str(one.id)]["taken"]) for one in wanted]
    new = [one.agent for one in standings if one.new]
    if into.run is not None and new:
        into.database.execute(sql["register"], _given(new))
        for agent in new:
            into.record("agent_registered", str(agent.id), {"id": str(agent.id), "key_id": str(agent.key_id)})
    return standings


def _standing(agent: Registration, holder: str | None, taken: bool) -> _Standing:
    return _Standing(agent, None if holder is None else UUID(holder), taken)


def _count(into: Import, one: _Standing) -> None:
    if one.new:
        into.agents.imported += 1
    elif one.holder is None:
        into.agents.skip(one.agent.id, "its id belongs to an agent with another key")
        return
    else:
        into.agents.there += 1
    holder = into.holders[one.agent.id] = one.holder or one.agent.id
    if holder != one.agent.id:
        into.mapped[str(one.agent.id)] = str(holder)


def _given(agents: Sequence[Registration]) -> str:
    return json.dumps(
        [
            {
                "id": str(one.id),
                "public_key": one.public_key.hex(),
                "key_id": str(one.key_id),
                "name": one.name,
                "email": one.email,
                "registered_at": one.at.isoformat(),
            }
            for one in agents
        ]
    )
