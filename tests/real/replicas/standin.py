"""A stand-in for a site: writes a run's outputs with their identities, dies anywhere, resumes from a checkpoint.

The outputs are a function of the seed, as a deterministic pipeline's are of its input. A checkpoint is written
only after everything before it was acknowledged, as Spark's commit log is; what comes after is written again.

    python standin.py BOOTSTRAP TOPIC PARTITIONS SITE SEED INPUTS CHECKPOINT_FILE [PAUSE]
"""

import random
import sys
import time
from pathlib import Path

from confluent_kafka import Producer

from lockstep.spark.identity import REALTIME, Identity, encode, output_partition

Output = tuple[int, bytes, bytes, bytes]
"""(partition, key, value, identity)"""


def outputs(seed: int, inputs: int, partitions: int) -> list[Output]:
    choose = random.Random(seed)
    next_sn = [0, 0]
    written = []
    for _ in range(inputs):
        shard = choose.randrange(2)
        sn = next_sn[shard]
        next_sn[shard] += 1
        key = b"key-%d" % choose.randrange(20)
        reducer = sum(key) % 3
        for k in range(choose.choice([0, 1, 1, 1, 2, 3])):
            identity = Identity(REALTIME, shard, reducer, sn, k)
            value = b"%d/%d/%d of %s" % (shard, sn, k, key)
            written.append((output_partition(key, identity, partitions), key, value, encode(identity)))
    return written


def main() -> None:
    bootstrap, topic, partitions, site, seed, inputs, checkpoint = sys.argv[1:8]
    pause = float(sys.argv[8]) if len(sys.argv) > 8 else 0.0
    file = Path(checkpoint)
    start = int(file.read_text()) if file.exists() else 0
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    all_outputs = outputs(int(seed), int(inputs), int(partitions))
    for number in range(start, len(all_outputs)):
        partition, key, value, identity = all_outputs[number]
        producer.produce(
            topic, value, key, partition=partition, headers=[("ls", identity), ("lss", site.encode())]
        )
        producer.poll(0)
        if pause:
            time.sleep(pause)
        if number % 200 == 199:
            producer.flush()
            temporary = file.with_suffix(".tmp")
            temporary.write_text(str(number + 1))
            temporary.replace(file)
    producer.flush()
    file.with_suffix(".done").touch()


if __name__ == "__main__":
    main()
