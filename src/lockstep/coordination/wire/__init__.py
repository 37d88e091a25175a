"""The ZooKeeper client protocol as bytes: the jute encoding, the records and the codes."""
