"""Placement: every device computes the same nodes alone, and a change of nodes moves little."""

from __future__ import annotations

import hashlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from angelia.grouplog.model.groups import GroupConfig
from angelia.grouplog.model.placement import Shape, copies, ranked, shape

GROUP, SENDER = b"g" * 32, b"s" * 8
node_lists = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=12, unique=True)
NODES = (1, 2, 3, 5, 7, 8, 10, 12)
FORMULA_ALONE = {
    0: (1, 1, 1, 1, 1, 2, 2, 2),
    1: (1, 1, 2, 2, 3, 3, 4, 5),
    2: NODES,
    15: NODES,
}
SHAPES = {3: (2, 1), 4: (2, 2), 5: (3, 2), 6: (4, 2), 8: (5, 3), 9: (6, 3), 10: (6, 4), 12: (8, 4)}


@pytest.mark.parametrize("level", FORMULA_ALONE)
def test_the_number_of_copies_is_that_of_the_table(level: int) -> None:
    alone = GroupConfig(depth=2, min_copies=1)
    assert tuple(copies(alone, level, nodes) for nodes in NODES) == FORMULA_ALONE[level]


@given(st.integers(0, 15), st.integers(1, 32), st.integers(1, 32), st.integers(0, 15))
def test_copies_are_at_least_the_least_and_at_most_the_nodes(level: int, nodes: int, least: int, depth: int) -> None:
    found = copies(GroupConfig(depth=depth, min_copies=least), level, nodes)
    assert min(least, nodes) <= found <= nodes


def test_by_default_an_update_is_on_two_nodes() -> None:
    assert [copies(GroupConfig(), 0, nodes) for nodes in (1, 2, 3, 7)] == [1, 2, 2, 2]


@given(node_lists, st.integers(1, 2**53 - 1))
def test_the_order_of_nodes_does_not_depend_on_how_they_are_listed(nodes: list[bytes], seq: int) -> None:
    found = ranked(nodes, GROUP, SENDER, seq)
    assert sorted(found) == sorted(nodes)
    assert ranked(reversed(nodes), GROUP, SENDER, seq) == found


def test_the_score_is_over_node_group_sender_and_little_endian_seq() -> None:
    nodes = [hashlib.sha256(bytes((number,))).digest() for number in range(8)]
    scores = {node: xxhash.xxh3_64_intdigest(node + GROUP + SENDER + (258).to_bytes(8, "little")) for node in nodes}
    assert ranked(nodes, GROUP, SENDER, 258) == sorted(nodes, key=lambda node: scores[node], reverse=True)


def test_equal_scores_are_ordered_by_the_smaller_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda _: 1)  # 64 bits do not collide on demand
    nodes = [b"c" * 32, b"a" * 32, b"b" * 32]
    assert ranked(nodes, GROUP, SENDER, 1) == sorted(nodes)


@given(node_lists, st.data())
def test_a_node_that_leaves_moves_only_the_messages_it_ranked_for(nodes: list[bytes], chance: st.DataObject) -> None:
    leaving, count = chance.draw(st.sampled_from(nodes)), chance.draw(st.integers(1, len(nodes)))
    for seq in range(1, 20):
        before = ranked(nodes, GROUP, SENDER, seq)
        after = ranked([node for node in nodes if node != leaving], GROUP, SENDER, seq)
        assert after == [node for node in before if node != leaving]
        if leaving not in before[:count]:
            assert after[:count] == before[:count]


@pytest.mark.parametrize("count", SHAPES)
def test_the_code_of_a_snapshot_is_that_of_the_table(count: int) -> None:
    data, parity = SHAPES[count]
    assert shape(count, 4096) == Shape(data, data + parity)


@pytest.mark.parametrize("count", [1, 2])
def test_on_one_or_two_nodes_a_snapshot_is_whole(count: int) -> None:
    assert shape(count, 1 << 20) is None


def test_a_snapshot_below_4_kib_is_whole() -> None:
    assert shape(5, 4095) is None
    assert shape(5, 4096) == Shape(3, 5)


def test_no_code_has_more_than_32_shards() -> None:
    assert shape(32, 1 << 20) == Shape(21, 32)
    with pytest.raises(ValueError, match="32"):
        shape(33, 1 << 20)


@pytest.mark.parametrize(("data", "total", "needed"), [(3, 5, 4), (8, 12, 9), (2, 3, 3), (3, 3, 3), (1, 1, 1)])
def test_one_shard_more_than_decoding_needs_must_be_confirmed(data: int, total: int, needed: int) -> None:
    assert Shape(data, total).needed_receipts == needed
