"""What every test stands on."""

import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that: then a test of Ctrl-C would wait
# for ever. With a handler here, children start with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
