"""Four-letter words: what an operator, or a monitoring script for ZooKeeper, asks a server for in plain text."""

import platform
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import __version__
from lockstep.coordination import membership
from lockstep.coordination.zab.interface import Following, Leading

if TYPE_CHECKING:
    from lockstep.coordination.node import Node


class Words:
    def __init__(self, node: "Node") -> None:
        self._node = node

    def answer(self, word: str) -> str | None:
        """The answer to a word, or None if it is not one."""
        match word:
            case "ruok":
                return "imok"
            case "srvr":
                return self._srvr()
            case "stat":
                return self._srvr(self._connections())
            case "mntr":
                return "".join(f"{key}\t{value}\n" for key, value in self.figures().items())
            case "cons":
                return self._connections() + "\n"
            case "conf":
                return self._conf()
            case "envi":
                return self._envi()
            case "isro":
                return "null" if self.mode == "looking" else "rw"
        return None

    @property
    def mode(self) -> str:
        match self._node.service.role:
            case Leading():
                return "leader" if len(self._node.config.members) > 1 else "standalone"
            case Following():
                return "follower"
        return "looking"

    def figures(self) -> dict[str, str | int | float]:
        """What `mntr` prints, with ZooKeeper's names."""
        service = self._node.service
        low, average, high = service.latency.summary()
        figures: dict[str, str | int | float] = {
            "zk_version": f"lockstep-{__version__}",
            "zk_server_state": self.mode,
            "zk_min_latency": low,
            "zk_avg_latency": average,
            "zk_max_latency": high,
            "zk_packets_received": service.received,
            "zk_packets_sent": service.sent,
            "zk_num_alive_connections": len(service.clients),
            "zk_outstanding_requests": service.outstanding,
            "zk_znode_count": len(service.tree.nodes),
            "zk_watch_count": len(service.watches),
            "zk_ephemerals_count": sum(len(s.ephemerals) for s in service.tree.sessions.values()),
            "zk_global_sessions": len(service.tree.sessions),
            "zk_last_zxid": service.tree.last_zxid,
            "zk_uptime": int((time.monotonic() - self._node.started) * 1000),
            "zk_connection_rejected": self._node.front.refused,
            "zk_open_file_descriptor_count": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }
        phases = self._node.phases
        figures |= {
            "zk_phase": self._node.machine.phase,
            "zk_cnt_election_time": phases.elections,
            "zk_election_time": phases.last_election_ms,
            "zk_max_election_time": phases.longest_election_ms,
            "zk_recovery_time": phases.last_recovery_ms,
            "zk_max_recovery_time": phases.longest_recovery_ms,
        }
        match service.role:
            case Leading(epoch):
                figures["zk_epoch"] = epoch
                figures["zk_synced_followers"] = self._node.machine.synced_followers
            case Following(leader, epoch):
                figures["zk_epoch"] = epoch
                figures["zk_leader"] = leader
        return figures

    def _srvr(self, clients: str = "") -> str:
        service = self._node.service
        if self.mode == "looking":
            return "This ZooKeeper instance is not currently serving requests\n"
        low, average, high = service.latency.summary()
        lines = [f"Zookeeper version: lockstep-{__version__}, built on Python {platform.python_version()}"]
        if clients:
            lines += ["Clients:", clients]
        lines += [
            f"Latency min/avg/max: {low}/{average}/{high}",
            f"Received: {service.received}",
            f"Sent: {service.sent}",
            f"Connections: {len(service.clients)}",
            f"Outstanding: {service.outstanding}",
            f"Zxid: {service.tree.last_zxid:#x}",
            f"Mode: {self.mode}",
            f"Node count: {len(service.tree.nodes)}",
        ]
        return "\n".join(lines) + "\n"

    def _connections(self) -> str:
        return "\n".join(
            f" /{client.address}[1](queued={len(client.queue)},recved={client.received},sent={client.sent},"
            f"sid={client.session & (1 << 64) - 1:#x},to={client.timeout})"
            for client in self._node.service.clients
        )

    def _conf(self) -> str:
        config = self._node.config
        lines = [
            f"clientPort={self._node.client_address.port}",
            f"dataDir={config.folder}",
            f"tickTime={config.tick_ms}",
            f"maxClientCnxns={config.limits.connections_per_address}",
            f"minSessionTimeout={2 * config.tick_ms}",
            f"maxSessionTimeout={20 * config.tick_ms}",
            f"serverId={config.server}",
            membership.config_text(config.members),
        ]
        return "\n".join(lines) + "\n"

    def _envi(self) -> str:
        lines = [
            "Environment:",
            f"zookeeper.version=lockstep-{__version__}",
            f"host.name={socket.gethostname()}",
            f"python.version={sys.version.split()[0]}",
            f"os.name={platform.system()}",
            f"os.version={platform.release()}",
            f"os.arch={platform.machine()}",
        ]
        return "\n".join(lines) + "\n"
