"""Properties files as Java reads them, and secrets that are elsewhere."""

from pathlib import Path

import pytest

from pipeline.cluster.properties_file import parse_properties, read_properties, resolved
from pipeline.errors import ClientPropertiesInvalid
from pipeline.text_file import UnreadableFile


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("  a = b=c ", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ("# a=b\n! a=c\n\n", {}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\r\n\tc", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        (r"a=\"x\"\\\:\ttab", {"a": '"x"\\:\ttab'}),
        (r"a=J\u00e9r\u00f4me", {"a": "Jérôme"}),
        (r"a\=b\ c=d", {"a=b c": "d"}),
    ],
)
def test_a_file_means_what_it_means_to_java(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text, "file") == properties


def test_lines_that_are_no_settings_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("a=b\nnonsense\nmore\n")
    with pytest.raises(ClientPropertiesInvalid, match="setting 2, 'nonsense', is not key=value; setting 3"):
        read_properties(file)


def test_a_file_that_does_not_exist_is_reported_with_those_like_it(tmp_path: Path) -> None:
    (tmp_path / "client.properties").touch()
    with pytest.raises(
        UnreadableFile, match=r"of --command-config cannot be read: there is no such file.*; it has client\.properties"
    ):
        read_properties(tmp_path / "client.propertis")


def test_secrets_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "whole").write_text("from a file\n")
    (tmp_path / "some.properties").write_text("user=u\npassword=from an entry\n")
    given = {
        "env": "${env:PW}",
        "whole": f"${{file:{tmp_path}/whole}}",
        "entry": f"${{file:{tmp_path}/some.properties:password}}",
        "dir": f"${{dir:{tmp_path}:whole}}",
        "two": "<${env:PW}|${env:PW}>",
        "other": "${vault:x} $env",
    }
    assert resolved(given, "file", {"PW": "hidden"}) == {
        "env": "hidden",
        "whole": "from a file",
        "entry": "from an entry",
        "dir": "from a file",
        "two": "<hidden|hidden>",
        "other": "${vault:x} $env",
    }


def test_a_secret_can_not_end_the_quotes_around_it() -> None:
    given = {"sasl.jaas.config": 'Module required password="${env:PW}";'}
    assert resolved(given, "file", {"PW": 'a"b\\c'}) == {
        "sasl.jaas.config": r'Module required password="a\"b\\c";',
    }


def test_references_that_lead_nowhere_are_reported_at_once() -> None:
    given = {"a": "${env:MISSING}", "b": "${file:/nowhere}", "c": "${file:/nowhere:k}", "d": "${dir:/nowhere:k}"}
    with pytest.raises(ClientPropertiesInvalid) as caught:
        resolved(given, "client.properties", {})
    assert caught.value.mistakes == tuple(
        f"'{key}' refers to a secret that does not exist: {value}" for key, value in given.items()
    )
