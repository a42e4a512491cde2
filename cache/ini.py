"""`op_cache.ini`: the versions that made a cache, and the size limits all its users share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atc.errors import one_line

INI_NAME = "op_cache.ini"
SECTION = "op_compiler_cache"
SIZE_KEY = "max_op_cache_size"
RATIO_KEY = "remain_cache_size_ratio"

_TEMPLATE = f"""[{SECTION}]
# Limits of each target's folder for all users of this directory: megabytes (-1: never delete)
# and the percentage kept when the limit is reached. Both lines are needed.
# {SIZE_KEY}=500
# {RATIO_KEY}=50
"""


def parse_ini(text: str) -> dict[str, str] | None:
    """Return the keys and values of the section, None if the text has no such section.

    `#` starts a comment, unknown lines are skipped, of a repeated key the last one counts.
    """
    sections = [(section, line) for section, line in _in_sections(text) if section == SECTION]
    pairs = (_content(line).partition("=") for _, line in sections)
    values = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    return values if sections else None


def misplaced(text: str) -> list[str]:
    """Return the limits that a text sets before any section, where they count for nothing."""
    lines = (_content(line) for section, line in _in_sections(text) if section is None)
    keys = (line.partition("=")[0].strip() for line in lines if "=" in line)
    return [key for key in keys if key in (SIZE_KEY, RATIO_KEY)]


def with_versions(text: str | None, versions: Mapping[str, str]) -> str:
    """Return the ini's text with these version lines, every other line of `text` as it was.

    The version lines stand right below the section's header; no text gives the whole template.
    """
    wanted = clean_versions(versions)
    lines = [
        line if line.endswith(("\n", "\r")) else line + "\n"
        for section, line in _in_sections(_TEMPLATE if text is None else text)
        if section != SECTION or _content(line).partition("=")[0].strip() not in wanted
    ]
    headers = [i for i, line in enumerate(lines) if _header(line) == SECTION]
    if not headers:
        headers = [len(lines)]
        lines.append(f"[{SECTION}]\n")
    below = headers[0] + 1
    new = [f"{key}={value}\n" for key, value in wanted.items()]
    return "".join(lines[:below] + new + lines[below:])


def clean_versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions as the ini can hold them: one line, no comment sign, trimmed."""
    return {key: one_line(value, 200).replace("#", "_").strip() for key, value in versions.items()}


def _in_sections(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield every line, its end kept, with the section it is in; a header is in its own."""
    section = None
    for line in text.splitlines(keepends=True):
        header = _header(line)
        section = section if header is None else header
        yield section, line


def _header(line: str) -> str | None:
    content = _content(line)
    is_header = content.startswith("[") and content.endswith("]")
    return content[1:-1].strip() if is_header else None


def _content(line: str) -> str:
    return line.lstrip("\ufeff").partition("#")[0].strip()
