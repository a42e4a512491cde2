"""Functions that threads run: the partitions of a call, or branches of the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A function that runs one partition of a call: the lines of each, with pointers in a table."""

    name: str
    comment: str
    partitions: tuple[tuple[str, ...], ...]


class Table:
    """The pointers that are passed to a task."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def place(self, pointer: str) -> str:
        """Return the C of a pointer within the task."""
        return f"at[{self._index.setdefault(pointer, len(self._index))}]"

    def run(self, task: str, partitions: int) -> Iterator[str]:
        """Yield the table and the call that runs all partitions of a task."""
        yield "{"
        yield f"  void *const operands[] = {{{', '.join(f'(void *)({p})' for p in self._index)}}};"
        yield f"  run_partitions(ctx, {task}, operands, {partitions});"
        yield "}"
