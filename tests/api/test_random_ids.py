"""Ids that cannot be guessed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from angelia.api import random_id


def test_no_id_comes_twice_also_from_several_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        drawn = [one for some in threads.map(lambda _: [random_id() for _ in range(5000)], range(4)) for one in some]
    assert {len(one) for one in drawn} == {16}
    assert len(set(drawn)) == 20_000
