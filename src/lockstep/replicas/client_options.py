"""Kafka's Java client options in the words of librdkafka: one declaration serves Spark and Python.

A pipeline says `kafka.security.protocol`, `kafka.sasl.jaas.config` and so on, once. Most names are the same
in both worlds; credentials and trust stores are not. What only concerns the Java side is left out.
"""

import re
from collections.abc import Mapping

_SAME = ("security.protocol", "sasl.mechanism", "client.id", "ssl.endpoint.identification.algorithm")
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_PEM = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.password": "ssl.key.password",
}


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """`options` without their `kafka.` prefix, as librdkafka takes them."""
    translated = {name: options[name] for name in _SAME if name in options}
    for field, value in _JAAS.findall(options.get("sasl.jaas.config", "")):
        translated[f"sasl.{field}"] = value.replace('\\"', '"')
    for java, ours in _PEM.items():
        if java in options and (
            java != "ssl.truststore.location" or options.get("ssl.truststore.type") == "PEM"
        ):
            translated[ours] = options[java]
    return translated
