"""What an egress makes of a transaction that failed."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from lockstep.replicas.egress import Fenced, explain


class Producer:
    """Answers an abort with this error, or with none."""

    def __init__(self, answer: int | None = None) -> None:
        self._answer = answer

    def abort_transaction(self, _: float) -> None:
        if self._answer is not None:
            raise KafkaException(KafkaError(self._answer))


def failed(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED])
def test_a_fenced_producer_is_told_at_once(code: int) -> None:
    assert isinstance(explain(Producer(), failed(code), 1), Fenced)


def test_a_producer_that_is_told_only_when_it_aborts_is_fenced_too() -> None:
    assert isinstance(explain(Producer(KafkaError._FENCED), failed(KafkaError.UNKNOWN), 1), Fenced)


@pytest.mark.parametrize("answer", [None, KafkaError._TIMED_OUT])
def test_any_other_failure_keeps_its_own_words(answer: int | None) -> None:
    error = explain(Producer(answer), failed(KafkaError.UNKNOWN), 1)
    assert not isinstance(error, Fenced)
    assert "partition 1 failed: " in error.message
