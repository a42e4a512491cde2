"""Views of matrices in memory: which axis is contiguous, and in which chunks."""

from __future__ import annotations

from atc.ir.view import View


def transposed(view: View) -> View:
    """Return a view with its last two axes exchanged."""
    return View((*view.strides[:-2], *view.strides[:-3:-1]), view.offset)


def is_along_rows(view: View) -> bool:
    """Return whether the view is contiguous along the last axis but one, not along the last."""
    return view.strides[-2] == 1 and view.strides[-1] != 1


def aligned_chunks(view: View, depth: int) -> int:
    """Return the size of the aligned, contiguous chunks of the last axis, a power of 2 up to 16."""
    if view.strides[-1] != 1:
        return 1
    steps = (depth, view.offset, *view.strides[:-1])
    return next(n for n in (16, 8, 4, 2, 1) if all(step % n == 0 for step in steps))
