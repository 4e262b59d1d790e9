"""Lists in pages, and ids by their beginning."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from angelia.cli.errors import Usage
from angelia.cli.paging import Page, ago, every, full_id, until
from angelia.client import BadAnswer
from angelia.errors import AmbiguousId, NotFound
from cli.running import Angelia
from client.recorder import Recorder
from client.test_verbs import TOKEN

IDS = [
    "32a040ba-429b-483b-8da8-76d0b634730f",
    "32a040ba-5555-483b-8da8-76d0b634730f",
    "f0e9b445-432e-4dc1-995e-01cf53a697b8",
]


def pages(server: Recorder) -> None:
    tokens = [{**TOKEN, "id": id_, "label": f"t{i}"} for i, id_ in enumerate(IDS)]
    server.tell("GET", "/v1/tokens", {"tokens": tokens[:2], "next": "c2", "total": 3})
    server.tell("GET", "/v1/tokens", {"tokens": tokens[2:], "next": None, "total": 3})


def test_a_cut_list_says_so_on_stderr(server: Recorder, angelia: Angelia) -> None:
    pages(server)
    ended = angelia("token", "list", "-n", "2")
    assert len(ended.out.splitlines()) == 3
    assert ended.err == "2 of 3 shown; --all or --cursor c2\n"
    assert server.seen[0].query == "limit=2"


def test_the_cursor_goes_on_where_the_page_ended(server: Recorder, angelia: Angelia) -> None:
    pages(server)
    angelia("token", "list", "--cursor", "c2")
    assert server.seen[0].query == "cursor=c2"


@pytest.mark.parametrize("manner", [[], ["--json"]])
def test_all_means_all(server: Recorder, angelia: Angelia, manner: list[str]) -> None:
    pages(server)
    ended = angelia("token", "list", "--all", *manner)
    assert ended.err == ""
    assert len(ended.out.splitlines()) == (3 if manner else 4)
    if manner:
        assert [json.loads(line)["id"] for line in ended.out.splitlines()] == IDS


@pytest.mark.parametrize("manner", [[], ["--json"]])
def test_an_empty_list_is_no_error_unless_something_is_required(
    server: Recorder, angelia: Angelia, manner: list[str]
) -> None:
    server.tell("GET", "/v1/tokens", {"tokens": [], "next": None, "total": 0})
    empty = angelia("token", "list", *manner)
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == "no tokens yet\nhint: angelia token create --role read-only\n"
    required = angelia("token", "list", "--require", *manner)
    assert (required.code, required.out) == (8, "")


def test_a_unique_beginning_of_eight_or_more_is_an_id() -> None:
    assert full_id("f0e9b445", IDS, "token", "look") == IDS[2]
    assert full_id("F0E9B445-432E", IDS, "token", "look") == IDS[2]
    assert full_id(IDS[0], [*IDS, f"{IDS[0]}0"], "token", "look") == IDS[0]


def test_a_beginning_that_is_short_shared_or_unknown_is_refused() -> None:
    with pytest.raises(Usage):
        full_id("f0e9b44", IDS, "token", "look")
    with pytest.raises(AmbiguousId, match="2 tokens begin with 32a040ba"):
        full_id("32a040ba", IDS, "token", "look")
    with pytest.raises(NotFound):
        full_id("ffffffff", IDS, "token", "look")


def test_pages_that_lead_nowhere_come_to_an_end(server: Recorder, angelia: Angelia) -> None:
    token = {**TOKEN, "id": IDS[0]}
    for page in ({"tokens": [token], "next": "c", "total": 3}, {"tokens": [], "next": "c", "total": 3}):
        server.told.clear()
        server.seen.clear()
        server.tell("GET", "/v1/tokens", page)
        for words in (("list", "--all"), ("list", "--all", "--json"), ("revoke", "f0e9b445", "--yes")):
            ended = angelia("token", *words)
            assert "the server's pages do not come to an end" in ended.err
        assert len(server.seen) == 6


def test_a_list_that_is_made_up_row_by_row_is_not_looked_through_for_ever() -> None:
    def endless(cursor: str | None, limit: int) -> Page[str]:
        number = int(cursor or 0)
        return Page([str(number)], str(number + 1))

    def empty(cursor: str | None, limit: int) -> Page[str]:
        return Page([], str(int(cursor or 0) + 1))

    for fetch in (endless, empty):
        with pytest.raises(BadAnswer):
            list(every(fetch))


def test_ages_and_ends() -> None:
    now = datetime.now(UTC)
    assert (ago(None), until(None)) == ("", "")
    assert ago(now - timedelta(hours=3, seconds=5)) == "3h"
    assert until(now + timedelta(days=5, seconds=5)) == "in 5d"
    assert until(now - timedelta(seconds=1)) == "over"
