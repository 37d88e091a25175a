"""Set-up: find a JDK, fetch the pinned jars, compile our own Java, and check the machine."""
