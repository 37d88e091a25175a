"""`lockstep coord shell`: a small command line over our own client."""

import asyncio
import shlex
import sys

from lockstep.coordination.client import Client, WatchEvent
from lockstep.coordination.wire.records import Stat
from lockstep.errors import LockstepError, UsageError

HELP = """\
ls PATH                      children of a node
get PATH                     data and stat
stat PATH                    stat
create [-e] [-s] PATH [DATA] a node (-e ephemeral, -s sequential)
set PATH DATA [VERSION]      new data
delete PATH [VERSION]        remove a node without children
deleteall PATH               remove a node and all below it
watch PATH                   print every event at or below the path
acl PATH                     access list
sync                         see everything that was acknowledged before
whoami                       session and identities
quit"""


class Shell:
    def __init__(self, servers: str) -> None:
        self._servers = servers

    async def run(self, command: str = "") -> None:
        async with Client(self._servers) as client:
            if command:
                await self._do(client, command)
                return
            print(f"connected to {client.server}, session {client.session:#x}; `help` lists the commands")
            loop = asyncio.get_running_loop()
            while True:
                print("> ", end="", flush=True)
                line = await loop.run_in_executor(None, sys.stdin.readline)
                if not line or line.strip() in ("quit", "exit"):
                    return
                try:
                    await self._do(client, line)
                except LockstepError as error:
                    print(error)

    async def _do(self, client: Client, line: str) -> None:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"cannot read that line: {error}") from error
        match words:
            case []:
                return
            case ["help"]:
                print(HELP)
            case ["ls", path]:
                print("[" + ", ".join(sorted(await client.children(path))) + "]")
            case ["get", path]:
                data, stat = await client.get(path)
                print(data.decode(errors="backslashreplace"))
                _print_stat(stat)
            case ["stat", path]:
                found = await client.exists(path)
                if found is None:
                    raise LockstepError(f"there is no node {path}")
                _print_stat(found)
            case ["create", *flags_and_path]:
                flags = {word for word in flags_and_path if word in ("-e", "-s")}
                match [word for word in flags_and_path if word not in flags]:
                    case [path, *rest] if len(rest) <= 1:
                        value = rest[0].encode() if rest else b""
                        print(
                            await client.create(
                                path, value, ephemeral="-e" in flags, sequential="-s" in flags
                            )
                        )
                    case _:
                        raise UsageError("create takes a path and data", hint="create [-e] [-s] PATH [DATA]")
            case ["set", path, value, *version]:
                _print_stat(await client.set(path, value.encode(), version=_version(version)))
            case ["delete", path, *version]:
                await client.delete(path, version=_version(version))
            case ["deleteall", path]:
                await _delete_all(client, path)
            case ["watch", path]:
                await client.add_watch(path, _print_event, recursive=True)
            case ["acl", path]:
                for entry in (await client.get_acl(path))[0]:
                    print(f"{entry.scheme}:{entry.id} {entry.perms:05b}")
            case ["sync"]:
                await client.sync()
            case ["whoami"]:
                print(f"session {client.session:#x} at {client.server}: {await client.who_am_i()}")
            case _:
                raise UsageError(f"there is no command like {line.strip()!r}", hint="`help` lists them")


async def _delete_all(client: Client, path: str) -> None:
    for name in await client.children(path):
        await _delete_all(client, f"{path.rstrip('/')}/{name}")
    await client.delete(path)


def _version(words: list[str]) -> int:
    if not words:
        return -1
    try:
        (word,) = words
        return int(word)
    except ValueError:
        raise UsageError("a version is one number", hint="leave it out for any version") from None


def _print_event(event: WatchEvent) -> None:
    print(f"\n{event.type.name.lower().replace('_', ' ')} {event.path}")


def _print_stat(stat: Stat) -> None:
    for name in stat.__struct_fields__:
        value = getattr(stat, name)
        print(
            f"{name} = {value:#x}"
            if name.endswith("zxid") or name == "ephemeral_owner"
            else f"{name} = {value}"
        )
