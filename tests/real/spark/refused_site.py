"""A site of its own process whose broker refuses an output: `refused_site.py BOOTSTRAP INPUT OUTPUT FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from lockstep.spark import engine, session
from lockstep.spark.pipeline import pipeline


def main(bootstrap_servers: str, source: str, sink: str, folder: Path) -> None:
    @pipeline(inputs=[source], output=sink)
    def copy(df: Any) -> Any:
        return df.select("value", "_sn", "_shard")

    spark = session.build(session.SiteSettings("refused", folder, slots=2, memory="512m"))
    settings = engine.EngineSettings(
        engine="realtime",
        bootstrap_servers=bootstrap_servers,
        checkpoint=folder / "checkpoint",
        site="site-1",
        output_partitions=1,
        input_partitions={source: 1},
        seals=f"{source}.seals",
        last_words=folder / "last_words",
    )
    engine.start(spark, copy, settings).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
