"""TLS for clients and between servers, the shared secret, and limits: what a stranger cannot do."""

import asyncio
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble, ask
from lockstep.errors import LockstepError
from lockstep.setup import java

pytestmark = pytest.mark.real

PRIVATE_KEY = Path(__file__).with_name("PrivateKey.java")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key, made by the JDK that is needed anyway."""
    runtime = java.find()
    cert, key, store = folder / "cert.pem", folder / "key.pem", folder / "store.p12"
    keytool = [str(runtime.java.with_name("keytool")), "-keystore", str(store), "-storepass", "changeit"]
    make = "-genkeypair -alias one -keyalg EC -groupname secp256r1 -storetype PKCS12 -dname CN=localhost"
    _run(*keytool, *make.split(), "-validity", "1", "-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true")
    _run(*keytool, "-exportcert", "-rfc", "-alias", "one", "-file", str(cert))
    key.write_text(_run(str(runtime.java), str(PRIVATE_KEY), str(store), "changeit"))
    return cert, key


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_an_ensemble_speaks_tls_to_clients_and_between_servers(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(cert)]

    async def run(ensemble: Ensemble) -> None:
        trust = ssl.create_default_context(cafile=str(cert))
        async with Client(ensemble.connect_string, tls=trust) as client:
            await client.create("/secret", b"x")
            assert (await client.get("/secret"))[0] == b"x"
        in_the_clear = Client(ensemble.connect_string)
        with pytest.raises(LockstepError, match="answers"):
            await in_the_clear.start(deadline=0.4)

    with TlsEnsemble(tmp_path / "ensemble", tick_ms=500, options=options) as ensemble:
        asyncio.run(run(ensemble))


class TlsEnsemble(Ensemble):
    """Four-letter words go through TLS too."""

    def figures(self, server: int) -> dict[str, str]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        answer = b""
        try:
            plain = socket.create_connection(self.members[server].client, timeout=1)
            with plain, context.wrap_socket(plain) as sock:
                sock.sendall(b"mntr")
                while part := sock.recv(65536):
                    answer += part
        except OSError:
            return {}
        return dict(line.split("\t", 1) for line in answer.decode().splitlines() if "\t" in line)


def test_a_server_without_the_secret_stays_outside(tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("s" * 32)
    wrong.write_text("w" * 32)
    with Ensemble(tmp_path / "ensemble", tick_ms=500, options=["--secret-file", str(secret)]) as ensemble:
        outsider = next(s for s in ensemble.running if s != ensemble.wait_leader())
        ensemble.kill(outsider)
        ensemble._options[-1] = str(wrong)
        ensemble.start_server(outsider)
        log = ensemble.folder / f"server-{outsider}.log"
        deadline = time.monotonic() + 15
        others = [ensemble.folder / f"server-{s}.log" for s in ensemble.members if s != outsider]
        while not any("does not know the ensemble's secret" in path.read_text() for path in [log, *others]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ensemble.figures(outsider)["zk_server_state"] == "looking"
        assert ensemble.leader() is not None, "the others go on"


def test_oversized_requests_strange_bytes_and_floods_leave_the_server_serving(ensemble: Ensemble) -> None:
    address = ensemble.members[ensemble.wait_leader()].client
    for payload in (
        b"\x7f\xff\xff\xff" + b"x" * 100,
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x04abcd",
        b"\x00\x20\x00\x00" + b"x" * 1000,
    ):
        with socket.create_connection(address, timeout=5) as sock:
            sock.sendall(payload)
            sock.settimeout(5)
            assert sock.recv(100) == b"", "closed without an answer"
    assert ask(*address, "ruok") == "imok"


def test_connections_of_one_address_are_limited(ensemble: Ensemble) -> None:
    follower = next(s for s in ensemble.running if s != ensemble.wait_leader())
    address = ensemble.members[follower].client
    held = [socket.create_connection(address, timeout=5) for _ in range(1000)]
    try:
        with socket.create_connection(address, timeout=5) as sock:
            sock.settimeout(5)
            try:
                sock.sendall(b"ruok")
                assert sock.recv(10) == b""
            except ConnectionResetError:
                pass
    finally:
        for sock in held:
            sock.close()
    deadline = time.monotonic() + 10
    while ask(*address, "ruok") != "imok":
        assert time.monotonic() < deadline
