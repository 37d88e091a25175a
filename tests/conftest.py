"""What every test stands on."""

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

# A shell starts background jobs with SIGINT ignored, `nohup` with SIGHUP, and children inherit that: then a test
# of Ctrl-C, or of a terminal that hangs up, would wait for ever. With handlers here, children have the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# How long one example takes says more about the machine than about the code.
settings.register_profile("lockstep", deadline=None)
settings.load_profile("lockstep")


@pytest.fixture
def keeps_every_promise() -> Callable[[str, int], None]:
    """A protocol in the simulator over many seeds, by the command, which shares the work among processes."""

    def check(protocol: str, seeds: int) -> None:
        command = [sys.executable, "-m", "lockstep", "sim", protocol, f"--seeds={seeds}", "--jobs=2"]
        answer = subprocess.run(command, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert f"{seeds} seeds" in answer.stdout

    return check
