"""What a user's files become: written whole or not at all, through links, into pipes, with the mode they had."""

import os
import threading

import pytest

from clearhead.cli.translate import open_output
from clearhead.errors import ClearheadError
from clearhead.io import open_atomic, write_atomic
from clearhead.lens.view import check_parent_folder


def test_of_a_link_what_it_leads_to_is_replaced(tmp_path):
    target = tmp_path / "target"
    link = tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_file_keeps_its_mode(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomic(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    got = []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    with open_output(str(pipe)) as out:
        out.write("Ein Hund.\n")
    reader.join(10)
    assert got == ["Ein Hund.\n"]
    assert pipe.is_fifo()


def test_what_breaks_off_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half():
        with open_atomic(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_mistake_names_the_file_that_the_user_named(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(OSError, match="No such file") as told:
        write_atomic(path, b"new")
    assert told.value.filename == str(path)
    with pytest.raises(OSError, match="directory") as told:
        write_atomic(tmp_path, b"new")
    assert told.value.filename == str(tmp_path)
    with pytest.raises(ClearheadError, match="is a folder; name a file in it"):
        check_parent_folder(tmp_path)
