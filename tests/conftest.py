"""What every test stands on."""

import signal

from hypothesis import settings

# A shell starts background jobs with SIGINT ignored, `nohup` with SIGHUP, and children inherit that: then a test
# of Ctrl-C, or of a terminal that hangs up, would wait for ever. With handlers here, children have the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# How long one example takes says more about the machine than about the code.
settings.register_profile("lockstep", deadline=None)
settings.load_profile("lockstep")
