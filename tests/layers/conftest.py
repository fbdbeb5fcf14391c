"""What tests of layers share."""

from __future__ import annotations

from typing import Any

from attncheck import AttentionLayer
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.profiles import PROFILES
from attncheck.looks.result import violated
from attncheck.subject import Subject


def rejected(subject: Any, layer: AttentionLayer, name: str = "exactness") -> bool:
    """Return whether a smoke run violates a property; layers are not shrunk."""
    return bool(violated(run_item(Item(name, layer), Subject.of(subject), 0, PROFILES["smoke"].cost(layer))))
