"""Group commit: one transaction for many, one result for each, and nobody answers for a neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from angelia.errors import AlreadyExists, AngeliaError, Conflict, Unavailable
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, StatementError, Tx, UniqueViolation

TABLES = """
CREATE TABLE notes (id INT PRIMARY KEY, text TEXT);
-- At commit, a bad row fails the transaction and a fatal one takes the connection with it.
CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.text = 'bad at commit' THEN RAISE EXCEPTION 'refused at commit'; END IF;
  IF NEW.text = 'fatal at commit' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER judgement AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION judge();
"""


@dataclass(frozen=True)
class Note:
    id: int
    text: str = ""


@dataclass
class Notes:
    """A batch statement that remembers how it was called."""

    batches: list[list[int]] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None

    async def write(self, tx: Tx, notes: Sequence[Note]) -> list[int | AngeliaError]:
        self.batches.append([note.id for note in notes])
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        kept = [note for note in notes if note.text != "refused"]
        await tx.execute(
            "INSERT INTO notes SELECT * FROM unnest($1::int[], $2::text[])",
            [note.id for note in kept],
            [note.text for note in kept],
        )
        if any(note.text == "fatal" for note in notes):
            await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return [Conflict(f"not {note.id}") if note.text == "refused" else note.id * 2 for note in notes]


@pytest.fixture
async def tables(bare: Ledger) -> AsyncIterator[Ledger]:
    async with bare.transaction() as tx:
        await tx.execute(TABLES)
    yield bare
    async with bare.transaction() as tx:
        await tx.execute("DROP TABLE notes; DROP FUNCTION judge")


async def outcomes(group: GroupCommit[Note, int], notes: Sequence[Note]) -> list[int | BaseException]:
    async with asyncio.timeout(10):
        return list(await asyncio.gather(*(group.submit(note) for note in notes), return_exceptions=True))


async def rows(ledger: Ledger) -> list[int]:
    async with ledger.transaction() as tx:
        return [row["id"] for row in await tx.fetch("SELECT id FROM notes ORDER BY id")]


async def transactions(ledger: Ledger) -> int:
    async with ledger.transaction() as tx:
        return int(await tx.fetchval("SELECT count(DISTINCT xmin::text) FROM notes"))


async def test_items_that_come_together_share_one_transaction(tables: Ledger) -> None:
    group = GroupCommit(tables.transaction, Notes().write)
    assert await outcomes(group, [Note(n) for n in range(100)]) == [n * 2 for n in range(100)]
    assert (await transactions(tables), len(await rows(tables))) == (1, 100)


async def test_a_batch_has_its_bound(tables: Ledger) -> None:
    notes = Notes()
    group = GroupCommit(tables.transaction, notes.write, most=10)
    await outcomes(group, [Note(n) for n in range(35)])
    assert [len(batch) for batch in notes.batches] == [10, 10, 10, 5]
    assert await transactions(tables) == 4


async def test_a_batch_has_a_bound_of_its_weight_and_one_heavy_item_passes_alone(tables: Ledger) -> None:
    sizes: list[list[int]] = []

    async def batch(tx: Tx, items: Sequence[int]) -> list[int]:
        sizes.append(list(items))
        return list(items)

    group = GroupCommit[int, int](tables.reading, batch, weight=lambda item: item, most_weight=10)
    weights = [4, 4, 4, 25, 1, 9, 1]
    assert await group.submit_all(weights) == weights
    assert sizes == [[4, 4], [4], [25], [1, 9], [1]]


async def test_while_one_batch_is_committed_the_next_gathers_in_order(tables: Ledger) -> None:
    notes = Notes(gate=asyncio.Event())
    group = GroupCommit(tables.transaction, notes.write)
    waiting = [asyncio.create_task(group.submit(Note(0)))]
    await notes.entered.wait()
    waiting += [asyncio.create_task(group.submit(Note(n))) for n in range(1, 20)]
    await asyncio.sleep(0)
    assert notes.gate
    notes.gate.set()
    assert await asyncio.gather(*waiting) == [n * 2 for n in range(20)]
    assert notes.batches == [[0], list(range(1, 20))]


async def test_an_item_that_fails_the_batch_fails_alone(tables: Ledger) -> None:
    async with tables.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (5)")
    results = await outcomes(GroupCommit(tables.transaction, Notes().write), [Note(n) for n in range(10)])
    assert isinstance(results.pop(5), UniqueViolation)
    assert results == [n * 2 for n in range(10) if n != 5]
    assert await rows(tables) == list(range(10))


async def test_a_value_that_cannot_be_stored_fails_alone(tables: Ledger) -> None:
    results = await outcomes(
        GroupCommit(tables.transaction, Notes().write), [Note(1), Note(2, "a\0b"), Note(2**40), Note(4)]
    )
    assert [results[0], results[3], await rows(tables)] == [2, 8, [1, 4]]
    assert all(isinstance(result, AngeliaError) and result.code == "invalid_argument" for result in results[1:3])


async def test_an_items_own_error_reaches_its_caller_and_costs_the_others_nothing(tables: Ledger) -> None:
    group = GroupCommit(tables.transaction, Notes().write)
    results = await outcomes(group, [Note(1), Note(2, "refused"), Note(3)])
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], Conflict)
    assert results[1].message == "not 2"
    assert (await rows(tables), await transactions(tables)) == ([1, 3], 1)


async def test_a_batch_that_fails_at_commit_gives_nobody_a_result_too_early(tables: Ledger) -> None:
    results = await outcomes(
        GroupCommit(tables.transaction, Notes().write), [Note(1), Note(2, "bad at commit"), Note(3)]
    )
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], StatementError)
    assert await rows(tables) == [1, 3]


async def test_whoever_has_a_result_finds_it_committed(tables: Ledger, stores: Any) -> None:
    group = GroupCommit(tables.transaction, Notes().write, most=7)
    readers = await asyncpg.create_pool(stores.database_url, min_size=0, max_size=4)

    async def write_and_look(n: int) -> bool:
        await group.submit(Note(n))
        return bool(await readers.fetchval("SELECT EXISTS (SELECT FROM notes WHERE id = $1)", n))

    assert all(await asyncio.gather(*(write_and_look(n) for n in range(40))))
    await readers.close()


@pytest.mark.parametrize("moment", ["fatal", "fatal at commit"])
async def test_a_connection_that_breaks_is_unavailable_for_all_and_nobody_is_tried_twice(
    tables: Ledger, moment: str
) -> None:
    notes = Notes()
    results = await outcomes(GroupCommit(tables.transaction, notes.write), [Note(1), Note(2, moment), Note(3)])
    assert [type(result) for result in results] == [Unavailable] * 3
    assert (notes.batches, await rows(tables)) == ([[1, 2, 3]], [])


async def test_a_ledger_that_is_away_is_unavailable_for_all() -> None:
    ledger = await Ledger.open("postgresql://nobody@/nothing?host=/nonexistent")
    notes = Notes()
    results = await outcomes(GroupCommit(ledger.transaction, notes.write), [Note(1), Note(2)])
    await ledger.close()
    assert [type(result) for result in results] == [Unavailable] * 2
    assert notes.batches == []


async def test_it_works_again_when_the_ledger_is_back(tables: Ledger) -> None:
    group = GroupCommit(tables.transaction, Notes().write)
    await outcomes(group, [Note(1, "fatal")])
    assert await outcomes(group, [Note(2)]) == [4]


async def test_a_caller_that_left_before_its_batch_is_not_written(tables: Ledger) -> None:
    notes = Notes(gate=asyncio.Event())
    group = GroupCommit(tables.transaction, notes.write)
    first = asyncio.create_task(group.submit(Note(1)))
    await notes.entered.wait()
    gone, stays = asyncio.create_task(group.submit(Note(2))), asyncio.create_task(group.submit(Note(3)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert notes.gate
    notes.gate.set()
    assert await asyncio.gather(first, stays) == [2, 6]
    assert await rows(tables) == [1, 3]


async def test_a_caller_that_leaves_in_mid_commit_disturbs_nobody(tables: Ledger) -> None:
    notes = Notes(gate=asyncio.Event())
    group = GroupCommit(tables.transaction, notes.write)
    gone, stays = (asyncio.create_task(group.submit(Note(n))) for n in (1, 2))
    await notes.entered.wait()
    gone.cancel()
    assert notes.gate
    notes.gate.set()
    assert await stays == 4
    assert await rows(tables) == [1, 2]


async def test_close_waits_for_what_waits(tables: Ledger) -> None:
    group = GroupCommit(tables.transaction, Notes().write, most=3)
    waiting = [asyncio.create_task(group.submit(Note(n))) for n in range(10)]
    await asyncio.sleep(0)
    await group.close()
    assert await rows(tables) == list(range(10))
    assert await asyncio.gather(*waiting) == [n * 2 for n in range(10)]


async def test_close_of_an_idle_group_is_at_once(tables: Ledger) -> None:
    await GroupCommit(tables.transaction, Notes().write).close()


@pytest.mark.parametrize("answers", [[], [1], [1, 2, 3]])
async def test_results_that_do_not_fit_the_items_write_nothing(tables: Ledger, answers: list[int]) -> None:
    async def miscounted(tx: Tx, notes: Sequence[Note]) -> list[int]:
        await tx.execute("INSERT INTO notes SELECT unnest($1::int[])", [note.id for note in notes])
        return answers if len(notes) > 1 else []

    results = await outcomes(GroupCommit(tables.transaction, miscounted), [Note(1), Note(2)])
    assert all(isinstance(result, ValueError) for result in results)
    assert await rows(tables) == []


# Against a plain model: the same items one after the other, each in a transaction of its own.

KINDS = st.sampled_from(["", "", "", "refused", "poison", "bad at commit"])
ITEMS = st.lists(st.builds(Note, st.integers(0, 12), KINDS), min_size=1, max_size=25)


async def claim(tx: Tx, notes: Sequence[Note]) -> list[bool | AngeliaError]:
    """Of each id the first note makes it; a later one is told so."""
    kept = [note for note in notes if note.text != "refused"]
    made = await tx.fetch(
        "INSERT INTO notes SELECT DISTINCT ON (id) id, text FROM unnest($1::int[], $2::text[]) WITH ORDINALITY"
        " AS given (id, text, place) ORDER BY id, place ON CONFLICT DO NOTHING RETURNING id",
        [note.id for note in kept],
        [note.text for note in kept],
    )
    if any(note.text == "poison" for note in notes):
        await tx.execute("SELECT 1/0")
    new = {row["id"] for row in made}
    answers: list[bool | AngeliaError] = []
    for note in notes:
        if note.text == "refused":
            answers.append(Conflict("refused"))
        else:
            answers.append(True if note.id in new else AlreadyExists("known"))
            new.discard(note.id)
    return answers


def model(notes: Sequence[Note]) -> tuple[list[str], set[int]]:
    known: set[int] = set()
    said = []
    for note in notes:
        if note.text == "refused":
            said.append("conflict")
        elif note.text == "poison" or (note.text == "bad at commit" and note.id not in known):
            said.append("fault")
        elif note.id in known:
            said.append("already_exists")
        else:
            known.add(note.id)
            said.append("made")
    return said, known


async def _said(result: Awaitable[bool]) -> str:
    try:
        await result
    except AngeliaError as error:
        return error.code
    except StatementError:
        return "fault"
    return "made"


@given(notes=ITEMS, most=st.integers(1, 8), pauses=st.lists(st.booleans(), min_size=25, max_size=25))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_in_any_grouping_each_item_fares_as_it_would_alone(
    tables: Ledger, notes: list[Note], most: int, pauses: list[bool]
) -> None:
    async with tables.transaction() as tx:
        await tx.execute("DELETE FROM notes")
    group: GroupCommit[Note, bool] = GroupCommit(tables.transaction, claim, most=most)
    waiting = []
    for note, pause in zip(notes, pauses, strict=False):
        waiting.append(asyncio.create_task(_said(group.submit(note))))
        if pause:
            await asyncio.sleep(0.0005)
    expected, known = model(notes)
    assert (await asyncio.gather(*waiting), set(await rows(tables))) == (expected, known)
