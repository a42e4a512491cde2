"""Tests of an installation: `pytest --pyargs atc.smoke`, without the sources.

They need pytest and a C compiler, and take some seconds. May import all of atc.
"""
