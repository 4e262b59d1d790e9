"""The checker itself: it finds what is wrong, and only that."""

from __future__ import annotations

from mail_history import Handing, History, Opening, Try

WAY = ("alice", "bob", 1)


def history(*openings: tuple[int, float, int], acknowledged: dict[int, float], tries: dict[int, float]) -> History:
    """Openings as (message, when, attempt); messages are numbers."""
    made = [Opening(Handing("bob", f"{n:064d}", at, 1e6, attempt), b"%d" % n) for n, at, attempt in openings]
    return History(
        tries={b"%d" % n: Try(WAY, at) for n, at in tries.items()},
        acknowledged={f"{n:064d}": at for n, at in acknowledged.items()},
        handings=[one.handing for one in made],
        openings=made,
    )


def test_what_was_acknowledged_and_never_opened_is_lost_unless_it_expired() -> None:
    seen = history((1, 5, 1), acknowledged={1: 1, 2: 2, 3: 3}, tries={1: 0, 2: 1, 3: 2})
    verdict = seen.check(expired={f"{3:064d}"}, lease=5)
    assert len(verdict.lost) == len(verdict.violations) == 1


def test_what_was_opened_twice_or_never_sent_is_found() -> None:
    verdict = history((1, 5, 1), (1, 6, 2), (9, 7, 1), acknowledged={1: 1}, tries={1: 0}).check(set(), 5)
    assert (len(verdict.doubled), len(verdict.invented), len(verdict.violations)) == (1, 1, 2)


def test_one_that_was_sent_after_anothers_acknowledgment_may_not_come_first() -> None:
    seen = history((2, 5, 1), (1, 6, 1), acknowledged={1: 1, 2: 3}, tries={1: 0, 2: 2})
    assert len(seen.check(set(), 5).overtaken) == 1


def test_of_two_that_were_sent_at_once_either_may_come_first() -> None:
    seen = history((2, 5, 1), (1, 6, 1), acknowledged={1: 2.5, 2: 3}, tries={1: 0, 2: 2})
    assert seen.check(set(), 5).violations == []


def test_one_whose_acknowledgment_was_lost_may_be_passed() -> None:
    seen = history((2, 5, 1), (1, 6, 1), acknowledged={2: 3}, tries={1: 0, 2: 2})
    assert seen.check(set(), 5).violations == []


def test_one_that_was_handed_out_before_may_be_passed() -> None:
    seen = history((2, 5, 1), (1, 6, 2), acknowledged={1: 1, 2: 3}, tries={1: 0, 2: 2})
    verdict = seen.check(set(), 5)
    assert (verdict.violations, verdict.redelivered) == ([], 1)


def test_a_lost_answer_excuses_for_as_long_as_its_lease() -> None:
    for at, wrong in ((4.0, 0), (0.5, 0), (-0.1, 1), (-9.0, 1)):
        seen = history((2, 5, 1), (1, 6, 1), acknowledged={1: 1, 2: 3}, tries={1: 0, 2: 2})
        seen.unanswered = [("bob", at), ("carol", 4.0)]
        assert len(seen.check(set(), 5).overtaken) == wrong


def test_a_poll_that_failed_excuses_only_when_its_server_died() -> None:
    for deaths, excused in (([(3.5, 3.9)], 1), ([(4.5, 5.0)], 0), ([(0.0, 1.0)], 0), ([], 0)):
        seen = history((2, 5, 1), (1, 6, 1), acknowledged={1: 1, 2: 3}, tries={1: 0, 2: 2})
        seen.failed, seen.deaths = [("bob", 4.0)], deaths
        verdict = seen.check(set(), 5)
        assert (len(verdict.overtaken), verdict.after_failed_polls) == (1 - excused, excused)


def test_what_is_handed_out_after_its_end_is_late() -> None:
    seen = history((1, 5, 1), acknowledged={1: 1}, tries={1: 0})
    seen.handings = [Handing("bob", "1", 12.0, 0.0, 1), Handing("bob", "2", 1.0, 0.0, 1)]
    assert len(seen.check(set(), 5).late) == 1
