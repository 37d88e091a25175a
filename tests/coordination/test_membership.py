"""The list of servers: mistakes in it are told, not guessed at."""

from pathlib import Path

import pytest

from lockstep.coordination import membership
from lockstep.errors import UsageError

LIST = "1=127.0.0.1:2888:2181,2=127.0.0.1:2889:2182,3=127.0.0.1:2890:2183"


def test_a_list_is_read_and_written() -> None:
    assert membership.format_list(membership.parse(LIST)) == LIST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "x=h:1:2",
        "1=h:1",
        "1=h:1:2,1=h:3:4",
        "1=h:1:2,2=h:1:4",
        "0=h:1:2",
        "254=h:1:2",
        "1=h:0:2",
        "1=:1:2",
        ",".join(f"{i}=h:{i}:{i + 100}" for i in range(1, 11)),
    ],
)
def test_a_wrong_list_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as error:
        membership.parse(text)
    assert error.value.hint


def test_a_data_folder_of_another_server_or_ensemble_is_refused(tmp_path: Path) -> None:
    members = membership.parse(LIST)
    membership.claim(tmp_path, 1, members, "blue")
    membership.claim(tmp_path, 1, members, "blue")
    for server, others, name in (
        (2, members, "blue"),
        (1, membership.parse("1=h:1:2"), "blue"),
        (1, members, ""),
    ):
        with pytest.raises(UsageError, match="belongs to server 1"):
            membership.claim(tmp_path, server, others, name)


def test_another_list_has_another_fingerprint() -> None:
    members = membership.parse(LIST)
    other = membership.parse(LIST.replace("2890", "2891"))
    assert membership.fingerprint(members) != membership.fingerprint(other)
    assert membership.fingerprint(members) != membership.fingerprint(members, "blue")
