"""`lockstep state RUN`: compare what the sites of a run keep, not only what they write."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lockstep import home
from lockstep.errors import UsageError
from lockstep.replicas.layout import RunFolder, check_name
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.settings import RunSettings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

_LONG = 300


@app.command(
    help="Compare the states of a run's sites at a position that they have all committed, row by row.\n\n"
    "In micro-batch any batch that two sites have in common will do. In real time sites are at the same position "
    "only when the input rests: stop it, wait for two batches, then ask. The run may go on meanwhile.\n\n"
    "Exit code 0: equal. 1: they differ; the first difference is named. 3: there is no position to compare at."
)
def state(
    run: Annotated[str, typer.Argument(help="The run's name, or its folder.")],
    site: Annotated[
        list[str] | None, typer.Option(help="Compare only these; repeatable. All without it.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, by its name. All without it.")] = None,
) -> None:
    console = Console()
    folder = _folder(run)
    settings, manifest = RunSettings.read(folder.settings), Manifest.read(folder.manifest)
    if manifest is None:
        raise UsageError(f"{folder.path} has no manifest", hint="has the run ever started?")
    sites = _sites(folder, settings, site)
    stages = {one.pipeline: "" if one is manifest else one.pipeline for one in manifest.all_stages}
    if stage is not None and stage not in stages:
        raise UsageError(f"this run has no stage {stage!r}", hint=f"one of: {', '.join(stages)}")
    differ = False
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-state-") as scratch,
        console.status("starting Spark") as now,
    ):
        from lockstep.spark import session, states

        first, *others = sites
        wanted = {name: suffix for name, suffix in stages.items() if stage in (None, name)}
        pairs = [(name, suffix, other) for name, suffix in wanted.items() for other in others]
        found = {}
        for name, suffix, other in pairs:  # what cannot be compared is told before Spark starts
            paths = (folder.site(first).checkpoint_of(suffix), folder.site(other).checkpoint_of(suffix))
            found[name, other] = (paths, states.common(*paths))
        spark = session.build(session.SiteSettings("state", Path(scratch), slots=2))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for (name, other), (paths, at) in found.items():
                now.update(f"{name}: comparing {first} and {other}")
                result = states.compare(spark, paths, at)
                told = f"{name}: {first} (batch {at.batches[0]}) and {other} (batch {at.batches[1]})"
                if result.difference is None:
                    what = (
                        f"{result.rows:,} rows of state are equal"
                        if result.views
                        else "this stage keeps no state"
                    )
                    console.print(f"{told}: {what}, at {at}", highlight=False)
                    continue
                differ = True
                one = result.difference
                console.print(f"{told}: the states differ in {one.count:,} rows, at {at}", highlight=False)
                console.print(
                    f"  first in {one.view}, partition {one.partition}, key {one.key}", highlight=False
                )
                for holder, rows in zip((first, other), one.rows, strict=True):
                    shown = "; ".join(row[:_LONG] for row in rows) or "nothing"
                    console.print(f"  {holder} has {shown}", highlight=False, markup=False)
        finally:
            spark.stop()
    if differ:
        raise typer.Exit(1)


def _folder(run: str) -> RunFolder:
    given = Path(run)
    folder = RunFolder(
        given.absolute() if (given / "run.json").is_file() else home.runs_folder() / check_name(given.name)
    )
    if not folder.settings.is_file():
        raise UsageError(f"there is no run {run}", hint=f"looked in {folder.path}")
    return folder


def _sites(folder: RunFolder, settings: RunSettings, wanted: list[str] | None) -> list[str]:
    there = list(folder.all_sites())
    for one in wanted or ():
        if one not in there:
            raise UsageError(f"there is no site {one!r}", hint=f"one of: {', '.join(there) or 'none yet'}")
    sites = list(dict.fromkeys(wanted)) if wanted else [one for one in settings.site_names if one in there]
    if len(sites) < 2:
        raise UsageError(
            "it takes two sites to compare", hint=f"this run has {', '.join(there) or 'none yet'}"
        )
    return sites
