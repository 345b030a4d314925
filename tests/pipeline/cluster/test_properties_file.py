"""Properties files as Java reads them, and secrets that are elsewhere."""

from pathlib import Path

import pytest

from pipeline.cluster.properties_file import parse_properties, read_properties, resolved
from pipeline.errors import ClientPropertiesInvalid
from pipeline.text_file import UnreadableFile


def test_comments_escapes_and_continued_lines_mean_what_they_mean_to_java(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# a=b\n! a=c\n\n"
        "  first = b=c \nsecond : b\nthird b c\nempty=\n"
        "twice=1\ntwice=2\n"
        "long=b\\\r\n\tc\nfolder=b\\\\\n"
        'quoted=\\"x\\"\\\\\\:\\ttab\nname=J\\u00e9r\\u00f4me é\nk\\=e\\ y=d\n'
    )
    assert read_properties(file) == {
        **{"first": "b=c", "second": "b", "third": "b c", "empty": "", "twice": "2"},
        **{"long": "bc", "folder": "b\\", "quoted": '"x"\\:\ttab', "name": "Jérôme é", "k=e y": "d"},
    }


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("a=b\nnonsense\nmore\n", "the line 'nonsense' is not key=value; the line 'more' is not key=value"),
        ("a=\\u12", r"the escape \u12 is not \u and four digits"),
    ],
)
def test_a_bad_file_is_refused_with_all_its_mistakes(text: str, mistakes: str) -> None:
    with pytest.raises(ClientPropertiesInvalid) as refused:
        parse_properties(text, "client.properties")
    assert str(refused.value) == f"client.properties: {mistakes}. Fix: correct these entries in client.properties"


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
