"""Kafka's Java client options in the words of librdkafka: one declaration serves Spark and Python.

A pipeline says `kafka.security.protocol`, `kafka.sasl.jaas.config` and so on, once. Most names are the same
in both worlds; credentials and trust stores are not. What only concerns the Java side is left out.
"""

import re
from collections.abc import Mapping

from lockstep.errors import UsageError

_SAME = ("security.protocol", "sasl.mechanism", "client.id", "ssl.key.password")
_JAAS = re.compile(r"""\b(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")
_ESCAPED = re.compile(r"\\(.)")
_PEM = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """`options` without their `kafka.` prefix, as librdkafka takes them."""
    translated = {name: options[name] for name in _SAME if name in options}
    for field, value in _JAAS.findall(options.get("sasl.jaas.config", "")):
        quoted = value[0] in "\"'"
        translated[f"sasl.{field}"] = _ESCAPED.sub(r"\1", value[1:-1]) if quoted else value
    translated |= {ours: options[java] for java, ours in _PEM.items() if java in options}
    check = "ssl.endpoint.identification.algorithm"
    if check in options:
        translated[check] = options[check] or "none"
    return translated | _trust_store(options) | _key_store(options)


def _trust_store(options: Mapping[str, str]) -> dict[str, str]:
    location = options.get("ssl.truststore.location")
    if location is None:
        return {}
    if options.get("ssl.truststore.type", "JKS") != "PEM":
        raise UsageError(
            f"only Java can read the trust store {location}",
            hint="export its certificates (keytool -exportcert -rfc), give that file as ssl.truststore.location, "
            "and kafka.ssl.truststore.type=PEM",
        )
    return {"ssl.ca.location": location}


def _key_store(options: Mapping[str, str]) -> dict[str, str]:
    location = options.get("ssl.keystore.location")
    if location is None:
        return {}
    match options.get("ssl.keystore.type", "JKS"):
        case "PEM":
            return {"ssl.certificate.location": location, "ssl.key.location": location}
        case "PKCS12":
            return {
                "ssl.keystore.location": location,
                "ssl.keystore.password": options.get("ssl.keystore.password", ""),
            }
        case _:
            raise UsageError(
                f"only Java can read the key store {location}",
                hint="give it as PKCS12 or PEM, with ssl.keystore.type",
            )
