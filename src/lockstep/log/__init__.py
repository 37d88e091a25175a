"""The shared log: one small interface, Kafka behind it, an in-memory twin, and an embedded broker."""
