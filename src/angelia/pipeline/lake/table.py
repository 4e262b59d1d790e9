"""Tables of the archive: documented columns, partitioned by the day of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

DAY = "day"
TIME = pa.timestamp("us", tz="UTC")
SIMULATED = "simulated"  # the column that every row of a simulated archive has
SIMULATED_PROPERTY = "angelia.simulated"  # and the property of its tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveColumn:
    """A column and its meaning."""

    name: str
    type: pa.DataType
    about: str
    nullable: bool = True
    unique: bool = False  # values hardly repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the archive, in partitions by the day of its data."""

    name: str
    about: str
    id: str
    columns: tuple[ArchiveColumn, ...]
    ordered: str | None = None  # a column whose smallest and largest value in each file the log keeps
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The schema with the day, which is in the paths of the files and not in the files."""
        fields = [pa.field(one.name, one.type, one.nullable) for one in self.columns]
        return pa.schema([*fields, pa.field(DAY, pa.date32(), False)])

    @property
    def file_schema(self) -> pa.Schema:
        return self.schema.remove(self.schema.get_field_index(DAY))

    @property
    def simulated(self) -> bool:
        return SIMULATED_PROPERTY in self.configuration

    def marked(self) -> Table:
        """The table as a simulated archive has it: marked in its properties, its description and every row."""
        return replace(
            self,
            about=f"Simulated, none of this happened. {self.about}",
            columns=(*self.columns, always(SIMULATED, pa.bool_(), "true: this never happened")),
            configuration={**self.configuration, SIMULATED_PROPERTY: "true"},
        )

    @property
    def repeating(self) -> list[str]:
        """Text columns that are worth a dictionary."""
        return [one.name for one in self.columns if one.type == pa.string() and not one.unique]

    @property
    def counting(self) -> list[str]:
        """Columns of numbers and times, which are stored as differences: half the bytes and the work of a
        dictionary."""
        return [one.name for one in self.columns if pa.types.is_integer(one.type) or pa.types.is_timestamp(one.type)]


def column(name: str, type: pa.DataType, about: str, *, unique: bool = False) -> ArchiveColumn:
    """A column that may be empty."""
    return ArchiveColumn(name=name, type=type, about=about, unique=unique)


def always(name: str, type: pa.DataType, about: str, *, unique: bool = False) -> ArchiveColumn:
    """A column that every row has."""
    return ArchiveColumn(name=name, type=type, about=about, nullable=False, unique=unique)
