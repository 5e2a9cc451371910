"""Atomic writes through links and pipes, temporary files, and file locks."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from clearhead.cli.translate import open_output
from clearhead.errors import ClearheadError
from clearhead.io import (
    LockedError,
    atomic_folder,
    file_lock,
    open_atomic,
    read_json_lines,
    write_atomic,
)
from clearhead.lens.view import check_parent_folder


def test_write_follows_symbolic_links(tmp_path):
    target = tmp_path / "target"
    link = tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_write_keeps_the_mode(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomic(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_write_to_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    received = []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with open_output(str(pipe)) as out:
        out.write("Ein Hund.\n")
    reader.join(10)
    assert received == ["Ein Hund.\n"]
    assert pipe.is_fifo()


def test_interrupted_write_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with open_atomic(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_threads_write_one_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([i]) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as executor:
        for _ in range(5):
            list(executor.map(lambda content: write_atomic(path, content), contents))
            assert path.read_bytes() in contents
    assert [*tmp_path.iterdir()] == [path]


WRITE = """if True:
    import sys, time
    from pathlib import Path
    from clearhead.io import atomic_folder, atomic_path
    write = {"file": atomic_path, "folder": atomic_folder}[sys.argv[1]]
    with write(Path(sys.argv[2])) as path:
        (path / "part" if path.is_dir() else path).write_text("half")
        print("ready", flush=True)
        time.sleep(60)"""


def write_whole(kind, target):
    if kind == "file":
        write_atomic(target, b"whole")
        return
    with atomic_folder(target) as folder:
        (folder / "part").write_text("whole")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_only_temporary_files_of_killed_processes_are_removed(kind, tmp_path):
    target = tmp_path / "target"
    kept = {".target.swp", ".target.tmp_notes", ".other.tmp_01234567"}
    for name in kept:
        (tmp_path / name).touch()
    command = [sys.executable, "-c", WRITE, kind, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "ready\n"
        [temporary] = {path.name for path in tmp_path.iterdir()} - kept
        write_whole(kind, target)
        assert {path.name for path in tmp_path.iterdir()} == {*kept, temporary, "target"}
        writer.kill()
    write_whole(kind, target)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "target"}


def test_pipe_in_place_of_a_temporary_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / ".target.tmp_00000000")
    writer = threading.Thread(target=write_atomic, args=(tmp_path / "target", b"new"), daemon=True)
    writer.start()
    writer.join(5)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_errors_name_the_path_of_the_user(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(OSError, match="No such file") as raised:
        write_atomic(path, b"new")
    assert raised.value.filename == str(path)
    with pytest.raises(OSError, match="directory") as raised:
        write_atomic(tmp_path, b"new")
    assert raised.value.filename == str(tmp_path)
    with pytest.raises(ClearheadError, match="folder"):
        check_parent_folder(tmp_path)


def test_json_lines_skip_an_incomplete_line(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read_json_lines(path) == []
    path.write_text('{"step": 1}\n{"ste')
    assert read_json_lines(path) == [{"step": 1}]


def test_lock_is_exclusive_and_leaves_no_file(tmp_path):
    path = tmp_path / "new folder" / "lock"
    with file_lock(path), ThreadPoolExecutor(1) as executor:
        attempt = executor.submit(lambda: file_lock(path, "busy").__enter__())
        with pytest.raises(LockedError, match="busy"):
            attempt.result()
    assert not path.exists()
    with file_lock(path, "busy"):
        assert path.exists()


def test_lock_waits_for_its_turn(tmp_path):
    path = tmp_path / "lock"
    inside = []
    overlaps = []

    def work(_):
        with file_lock(path):
            inside.append(1)
            overlaps.append(len(inside))
            inside.pop()

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(12)))
    assert overlaps == [1] * 12


def test_lock_in_a_read_only_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ClearheadError, match="cannot write to"), file_lock(tmp_path / "file/lock"):
        pass
