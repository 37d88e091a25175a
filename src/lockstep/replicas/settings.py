"""What a run was asked to do, as its supervisor hands it to every site (`run.json`)."""

from pathlib import Path
from typing import Literal, get_args

import msgspec

from lockstep.errors import LockstepError, UsageError
from lockstep.replicas.layout import check_name, write_json

Engine = Literal["realtime", "microbatch", "auto"]
Order = Literal["auto", "partition", "liverobin", "kazoo", "inband"]
ORDERS: tuple[str, ...] = get_args(Order)
Policy = Literal["warn", "stop"]
MAX_SITES = 16


class RunSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    pipeline_file: str
    bootstrap_servers: str
    pipeline: str | None = None
    """The name of one pipeline, where the file declares several."""
    sites: int = 2
    engine: Engine = "auto"
    order: Order = "auto"
    coordination: str | None = None
    """An ensemble for order `kazoo`, `host:port,host:port`; the run starts its own without it."""
    period_ms: float | None = None
    """Between two cuts of order `liverobin`, or heartbeats of `inband`; their own default without it."""
    master: str | None = None
    batch_ms: int | None = None
    options: dict[str, str] = {}
    """Spark's settings (`spark.*`) and Kafka's (`kafka.*`), by their own names: `--set key=value`."""
    allow: tuple[str, ...] = ()
    on_divergence: Policy = "warn"
    output_partitions: int | None = None
    clean: str | None = None
    """The topic that an egress writes once, if one is wanted."""
    digests: bool = True
    trim_seconds: float = 60.0
    """Between two trimmings of order and stage topics behind all checkpoints; 0: they keep everything."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.sites <= MAX_SITES:
            raise UsageError(f"a run has 1 to {MAX_SITES} sites, not {self.sites}")
        if self.engine not in ("realtime", "microbatch", "auto"):
            raise UsageError(f"no engine is called {self.engine!r}", hint="realtime, microbatch or auto")
        if self.order not in ORDERS:
            raise UsageError(f"no order is called {self.order!r}", hint=f"one of: {', '.join(ORDERS)}")
        if self.order == "inband" and self.engine == "microbatch":
            raise UsageError(
                "order inband runs in real time only: where a batch ends would be known after it is read",
                hint="use --order liverobin",
            )
        if self.on_divergence not in ("warn", "stop"):
            raise UsageError(f"no policy is called {self.on_divergence!r}", hint="warn or stop")
        if self.batch_ms is not None and not 100 <= self.batch_ms <= 3_600_000:
            raise UsageError(f"a batch of {self.batch_ms} ms is out of bounds", hint="100 ms to an hour")
        if self.trim_seconds and not 0.1 <= self.trim_seconds <= 86_400:
            raise UsageError(
                f"trimming every {self.trim_seconds} s is out of bounds", hint="0.1 s to a day; 0 for never"
            )

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(f"site-{number}" for number in range(1, self.sites + 1))

    @property
    def spark_options(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.startswith("spark.")}

    @property
    def kafka_options(self) -> dict[str, str]:
        """Without their prefix, as a Kafka client takes them."""
        return {n.removeprefix("kafka."): v for n, v in self.options.items() if n.startswith("kafka.")}

    def write(self, path: Path) -> None:
        write_json(path, msgspec.to_builtins(self))

    @classmethod
    def read(cls, path: Path) -> "RunSettings":
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError as error:
            raise LockstepError(f"{path.parent} is not a run folder") from error
        except msgspec.DecodeError as error:
            raise LockstepError(f"{path} is damaged: {error}", hint="remove the run folder") from error


def parse_options(pairs: list[str]) -> dict[str, str]:
    """`--set key=value`, repeated. `key=@FILE` reads the value from a file: all can see a command line."""
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.startswith(("spark.", "kafka.")):
            raise UsageError(
                f"--set {pair!r} is not an option", hint="spark.<name>=<value> or kafka.<name>=<value>"
            )
        options[name] = _content(name, Path(value[1:])) if value.startswith("@") else value
    return options


def _content(name: str, file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {name} from {file}: {error}") from error
