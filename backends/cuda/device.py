"""The GPUs of this machine, as the CUDA driver lists them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

from atc.backends.cuda.targets import ARCHITECTURES, EMULATED, PORTABLE

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def compute_capabilities() -> tuple[tuple[int, int], ...]:
    """Return the compute capability of each device; none without a driver."""
    try:
        return tuple(_capabilities(_driver()))
    except (OSError, AttributeError):  # no driver, or something else of its name
        return ()


def _driver() -> ctypes.CDLL:
    """Return the initialised driver; OSError where none can be."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    if driver.cuInit(0) != 0:
        raise OSError("the CUDA driver doesn't start")
    return driver


def _capabilities(driver: ctypes.CDLL) -> Iterator[tuple[int, int]]:
    count, device = ctypes.c_int(), ctypes.c_int()
    major, minor = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    for ordinal in range(count.value):
        failed = driver.cuDeviceGet(ctypes.byref(device), ordinal)
        failed |= driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        failed |= driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        if failed:
            return
        yield major.value, minor.value


def device_name(number: int) -> str:
    """Return a device's name as the driver reports it; '' if there is no such device."""
    name, device = ctypes.create_string_buffer(256), ctypes.c_int()
    try:
        driver = _driver()
        failed = driver.cuDeviceGet(ctypes.byref(device), number)
        failed = failed or driver.cuDeviceGetName(name, len(name), device)
    except (OSError, AttributeError):
        return ""
    return "" if failed else name.value.decode("utf-8", "replace")


def runs_code(device: str, number: int) -> bool:
    """Return whether device `number` of this machine runs code for a target's device."""
    found = compute_capabilities()
    if device == EMULATED or not 0 <= number < len(found):
        return device == EMULATED
    major, minor = found[number]
    if device == PORTABLE:
        return major >= 8
    return (major, minor) >= (int(device[3:-1]), int(device[-1])) and device[3:-1] == str(major)


def architecture_for(capability: tuple[int, int]) -> str | None:
    """Return the best of our architectures whose code runs on such a device; None if none does.

    Code runs on later minor versions of its major one.
    """
    known = {(int(a[3:-1]), int(a[-1])): a for a in ARCHITECTURES}
    able = [k for k in known if k[0] == capability[0] and k[1] <= capability[1]]
    return known[max(able)] if able else None
