"""What an embedded broker may demand of its clients: a user with a password, over TLS where there is a key store.

Off unless asked for: the broker listens on loopback only. Brokers among themselves log in as the same user.
"""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import UsageError

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass(frozen=True)
class Security:
    """`keystore`: a PKCS12 file with the broker's key; `certificates`: a PEM file by which clients trust it."""

    user: str
    password: str = field(repr=False)
    keystore: Path | None = None
    keystore_password: str = field(default="", repr=False)
    certificates: Path | None = None

    def __post_init__(self) -> None:
        if any(character in self.user + self.password for character in '"\\\n\r'):
            raise UsageError("a user or password with a quote, a backslash or a line break is not supported")
        if (self.keystore is None) != (self.certificates is None):
            raise UsageError("TLS needs a key store for the broker and certificates for its clients")

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.keystore is not None else "SASL_PLAINTEXT"

    def java_options(self) -> dict[str, str]:
        """For Kafka's Java clients, and for `lockstep.run(options=...)` with the prefix `kafka.`."""
        login = f'{_LOGIN} username="{self.user}" password="{self.password}";'
        options = {
            "security.protocol": self.protocol,
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login,
        }
        if self.certificates is not None:
            options["ssl.truststore.type"] = "PEM"
            options["ssl.truststore.location"] = str(self.certificates)
        return options

    def client_options(self) -> dict[str, str]:
        """For librdkafka."""
        options = {
            "security.protocol": self.protocol,
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.user,
            "sasl.password": self.password,
        }
        return (
            options if self.certificates is None else {**options, "ssl.ca.location": str(self.certificates)}
        )

    def broker_settings(self, address: str, controller: str) -> dict[str, str]:
        """Over those of a broker that demands nothing. Its controller, on a port of its own, stays as it is."""
        login = f'username="{self.user}" password="{self.password}" user_{self.user}="{self.password}"'
        settings = {
            "listeners": f"{self.protocol}://{address},CONTROLLER://{controller}",
            "advertised.listeners": f"{self.protocol}://{address}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{self.protocol}:{self.protocol}",
            "inter.broker.listener.name": self.protocol,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"listener.name.{self.protocol.lower()}.plain.sasl.jaas.config": f"{_LOGIN} {login};",
        }
        if self.keystore is not None:
            settings |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self.keystore),
                "ssl.keystore.password": self.keystore_password,
                "ssl.key.password": self.keystore_password,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates),
            }
        return settings
