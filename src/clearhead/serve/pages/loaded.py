"""Which weights stand behind a name: what tells a model from one that had its name before."""

import hashlib
import secrets
from pathlib import Path
from weakref import WeakKeyDictionary

from clearhead.api import Model
from clearhead.serve.shelf import Held

_known: WeakKeyDictionary[Model, str] = WeakKeyDictionary()


def loaded(held: Held) -> str:
    """The same after a restart, until its files are written anew; of a model that was never a file, only its own."""
    return _known.get(held.model) or _known.setdefault(held.model, _identity(held))


def _identity(held: Held) -> str:
    place = Path(held.path).resolve()
    if not held.path or not place.exists():
        return secrets.token_hex(8)
    files = sorted(file for file in (place.iterdir() if place.is_dir() else [place]) if file.is_file())
    written = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    parameter = next(held.model.net.parameters())
    return hashlib.sha256(repr((place, written, parameter.device.type, parameter.dtype)).encode()).hexdigest()[:16]
