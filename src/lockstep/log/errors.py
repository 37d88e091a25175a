"""What can go wrong with the log, each with a type of its own, so that a caller can decide by it.

None of these is ever swallowed: a reader that meets one has handed over every record before it and none
after it; an append that meets one says whether the record may be in the log.
"""

from lockstep.errors import LockstepError


class LogError(LockstepError):
    """Something is wrong with a topic or with the log as a whole."""


class LogClosed(LogError):
    """The log or the reader was closed while it was in use."""

    def __init__(self) -> None:
        super().__init__("the log is closed")


class TopicExists(LogError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} already exists", hint="use it, or choose another name")
        self.topic = topic


class UnknownTopic(LogError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic}", hint="create it first, or check its name")
        self.topic = topic


class TopicDeleted(LogError):
    """The topic was there when it was first used, and is gone."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic} was deleted while it was in use", hint="what it held is lost to this log"
        )
        self.topic = topic


class TopicRecreated(LogError):
    """A topic of the same name is there, but it is another one: its offsets mean other records."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created anew while it was in use",
            hint="its offsets start over: open the log again and read the new topic from its beginning",
        )
        self.topic = topic


class UnknownPartition(LogError):
    def __init__(self, topic: str, partition: int, partitions: int) -> None:
        super().__init__(
            f"topic {topic} has no partition {partition}", hint=f"it has {partitions}, counted from 0"
        )
        self.topic = topic
        self.partition = partition
        self.partitions = partitions


class OffsetOutOfRange(LogError):
    """The offset is before the `first` that retention has left, or after the `end` of the partition."""

    def __init__(self, topic: str, partition: int, offset: int, first: int, end: int) -> None:
        what = f"offset {offset} of {topic}/{partition} is not in the log"
        if offset < first:
            super().__init__(f"{what}: retention removed it", hint=f"the first that is left is {first}")
        else:
            super().__init__(
                f"{what}: it ends at {end}", hint="the log lost records, or the offset is not from it"
            )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.first = first
        self.end = end
        self.in_range = first <= offset <= end
        """Whether the offset has come to be there since."""


class RecordTooLarge(LogError):
    """The record was refused; nothing of the batch that it was in is in the log."""

    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        super().__init__(
            f"a record of {size} bytes is too large for {topic}/{partition}",
            hint=f"the limit is {limit}: send less, or raise the topic's max.message.bytes",
        )
        self.topic = topic
        self.partition = partition
        self.size = size
        self.limit = limit


class Unavailable(LogError):
    """The log did not answer. An append that fails so may or may not have taken place."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the log is not available: {what}", hint="is Kafka running and reachable?")


class AccessDenied(LogError):
    def __init__(self, what: str) -> None:
        super().__init__(f"the log refused access: {what}", hint="check the security options and the ACLs")
