"""`lockstep doctor --bootstrap-servers` asks a real broker."""

import pytest

from lockstep.setup import doctor


@pytest.mark.real
def test_a_broker_that_answers_is_good(bootstrap_servers: str) -> None:
    (finding,) = doctor.check_kafka(bootstrap_servers, {})
    assert finding.state is doctor.State.GOOD
    assert "1 broker(s)" in finding.found
