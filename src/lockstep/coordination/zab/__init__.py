"""ZAB with RT-ZooKeeper's three techniques, as pure machines (RT-ZooKeeper paper, sections 2 and 3).

`interface` is what an application and a host need to know; `server.Server` is the machine.
"""
