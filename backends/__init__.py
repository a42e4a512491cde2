"""Targets, kernels and toolchains."""
