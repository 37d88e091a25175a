"""RT-ZooKeeper: a coordination service that recovers from a leader crash in tens of milliseconds."""
