"""Ahead-of-time compiler from neural network graphs to standalone C."""

__version__ = "0.1.0"
