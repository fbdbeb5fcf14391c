"""The power table of a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from attncheck._lib.errors import InputError
from attncheck.records.schema import decoded


class Cell(msgspec.Struct, frozen=True):
    """Chance of detection, and the check that detects first."""

    fault: str
    exposure: str
    power: float
    check: str = ""


class _PowerFile(msgspec.Struct, frozen=True):
    profile: str
    cells: list[Cell]


@dataclasses.dataclass(frozen=True)
class PowerTable:
    """Chances of detection by (fault, exposure), in the order of the file."""

    profile: str
    exposures: tuple[str, ...]
    faults: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]

    def cell(self, fault: str, exposure: str) -> Cell | None:
        """Return an entry, or None if there is none."""
        return self.cells.get((fault, exposure))

    @property
    def weakest(self) -> Cell:
        """The entry with the lowest power."""
        return min(self.cells.values(), key=lambda cell: (cell.power, cell.fault, cell.exposure))


def read_power(path: Path) -> PowerTable:
    """Read a power table."""
    try:
        table = decoded(path.read_bytes(), msgspec.json.Decoder(_PowerFile))
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"power={path}: cannot be read ({error}); pass a file that `attncheck power` wrote") from None
    if not table.cells:
        raise InputError(f"power={path}: is empty; pass a file that `attncheck power` wrote")
    return PowerTable(
        table.profile,
        tuple(dict.fromkeys(cell.exposure for cell in table.cells)),
        tuple(dict.fromkeys(cell.fault for cell in table.cells)),
        {(cell.fault, cell.exposure): cell for cell in table.cells},
    )
