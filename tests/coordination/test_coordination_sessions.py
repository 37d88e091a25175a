"""The leader's book of deadlines."""

from lockstep.coordination.sessions import SessionTracker


def test_a_session_expires_after_its_timeout_and_not_before() -> None:
    tracker = SessionTracker(10)
    tracker.add(1, 100, 1000)
    assert list(tracker.expired(1100)) == []
    assert list(tracker.expired(1120)) == [1]
    assert list(tracker.expired(5000)) == []


def test_a_sign_of_life_moves_the_deadline() -> None:
    tracker = SessionTracker(10)
    tracker.add(1, 100, 1000)
    tracker.add(2, 100, 1000)
    assert tracker.touch(1, 1090)
    assert list(tracker.expired(1130)) == [2]
    assert list(tracker.expired(1210)) == [1]
    assert not tracker.touch(1, 1300), "it is forgotten"


def test_a_clock_that_goes_back_expires_nobody() -> None:
    tracker = SessionTracker(10)
    tracker.add(1, 100, 1000)
    tracker.touch(1, 200)
    assert list(tracker.expired(1090)) == []


def test_a_new_leader_starts_every_deadline_anew() -> None:
    tracker = SessionTracker(10)
    tracker.restart({1: 100, 2: 200}, 5000)
    assert list(tracker.expired(5090)) == []
    assert list(tracker.expired(5120)) == [1]
    assert list(tracker.expired(5220)) == [2]
