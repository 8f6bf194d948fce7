import json
import math
from pathlib import Path

import numpy as np
import pytest

from chameleon_lab.util.units import (
    exact_bytes,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_capacity,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512B", 512),
        ("64k", 64 * 1024),
        ("64KiB", 64 * 1024),
        ("64kb", 64_000),
        ("256MiB", 256 * 1024**2),
        ("256 mib", 256 * 1024**2),
        (" 2GB ", 2 * 10**9),
        ("1.5 GiB", 3 * 1024**3 // 2),
        (".5M", 1024**2 // 2),
        ("1.TiB", 1024**4),
        ("1e9", 10**9),
        (1e9, 10**9),
        (1536.5, 1536),
        (np.int64(4096), 4096),
    ],
)
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "1 Mi B", "12 parsecs", "-1MiB", "1e", "60%", "1.5", "0x10", "1,5GiB", "8GiB/s", "١MiB"],
)
def test_parse_bytes_refuses_what_is_no_size(text):
    with pytest.raises(ValueError, match="capacity") as caught:
        parse_bytes(text, "capacity")
    assert repr(text) in str(caught.value) and '"512MiB"' in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, "0", "0.2B", "9" * 400])
def test_parse_bytes_refuses_sizes_that_are_not_positive_and_finite(size):
    with pytest.raises(ValueError, match="must be positive"):
        parse_bytes(size)


@pytest.mark.parametrize("value", [None, 1.5, True, b"1MiB", [1]])
def test_parse_bytes_refuses_other_types(value):
    with pytest.raises(TypeError, match="size must be a number of bytes"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("8GiB/s", 8 * 1024**3),
        ("1e9", 1e9),
        ("8589934592", 8 * 1024**3),
        (" 25 GB/s ", 25e9),
        ("1.5MiB/s", 1.5 * 1024**2),
        (1e9, 1e9),
        (7, 7.0),
    ],
)
def test_parse_bandwidth(text, rate):
    assert parse_bandwidth(text) == rate
    assert type(parse_bandwidth(text)) is float


@pytest.mark.parametrize(
    "text", ["8GiB", "fast", "/s", "0GiB/s", "8GiB/ms", "8", "1.5", 0, -1.0, math.inf, math.nan]
)
def test_parse_bandwidth_refuses_what_is_none(text):
    with pytest.raises(ValueError, match="link out") as caught:
        parse_bandwidth(text, "link out")
    assert repr(text) in str(caught.value) and '"8GiB/s"' in str(caught.value)


@pytest.mark.parametrize("value", [None, True, b"8GiB/s"])
def test_parse_bandwidth_refuses_other_types(value):
    with pytest.raises(TypeError, match="bytes per second"):
        parse_bandwidth(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1.22 * 1024**3, "1.22 GiB"),
        (93.4 * 1024**2, "93.4 MiB"),
        (2048 * 1024**3, "2048 GiB"),
        (-3 * 1024**2, "-3.00 MiB"),
    ],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 µs"),
        (4.12e-4, "412 µs"),
        (1e-9, "0.00100 µs"),
        (0.0936, "93.6 ms"),
        (1.22, "1.22 s"),
        (125, "125 s"),
        (-0.5, "-500 ms"),
    ],
)
def test_format_seconds(duration, text):
    assert format_seconds(duration) == text


@pytest.mark.parametrize("size", [1, 1024, 1536, 256 * 1024**2, 3 * 1024**3])
def test_what_is_formatted_parses_back(size):
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize("value", ["60%", " 60 %", "0.6", "0.60", 0.6, "6e-1", np.float64(0.6)])
def test_a_fraction_of_the_whole_is_written_many_ways(value):
    assert parse_capacity(value, 1000) == 600
    assert parse_fraction(value) == 0.6


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1", 1),
        (1, 1),
        ("1.0", 1000),
        (1.0, 1000),
        ("100%", 1000),
        ("2MiB", 1 << 21),
        (1e9, 10**9),
        ("0.01%", 1),
    ],
)
def test_where_fractions_end_and_bytes_begin(value, size):
    assert parse_capacity(value, 1000) == size


@pytest.mark.parametrize(
    "value", ["1.5", 1.5, "150%", "0%", "-5%", "1.001", 1023.5, "0.0", -0.5, math.nan, "60%%"]
)
def test_what_is_neither_a_fraction_nor_bytes_is_refused(value):
    with pytest.raises(ValueError, match="host_capacity") as caught:
        parse_capacity(value, 1000, "host_capacity")
    assert str(value).strip("-") in str(caught.value) and '"512MiB"' in str(caught.value)


@pytest.mark.parametrize("value", ["lots", "5MiB", "101%", 1.01, -0.1, math.nan])
def test_what_is_no_fraction_is_refused(value):
    with pytest.raises(ValueError, match="margin .* no fraction"):
        parse_fraction(value, "margin")


@pytest.mark.parametrize("size", [1, 1023, 1024, 1536, 4 << 20, (4 << 20) + 1, 3 << 29, 5 << 30])
def test_exact_bytes_lose_none(size):
    assert parse_bytes(exact_bytes(size)) == size
    assert len(exact_bytes(size)) <= len(str(size)) + 3


SPELLINGS = json.loads((Path(__file__).parent / "spellings.json").read_text())
"""What the panel's fields read too: see labextension/src/editor/words.test.ts."""


@pytest.mark.parametrize(("text", "size"), SPELLINGS["sizes"])
def test_a_size_that_the_panel_reads_too(text: str, size: int) -> None:
    assert parse_bytes(text) == parse_capacity(text, SPELLINGS["whole"]) == size


@pytest.mark.parametrize("text", SPELLINGS["no_sizes"])
def test_what_is_no_size_for_the_panel_either(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "size"), SPELLINGS["fractions"])
def test_a_fraction_that_the_panel_reads_too(text: str, size: int) -> None:
    assert parse_capacity(text, SPELLINGS["whole"]) == size


@pytest.mark.parametrize("text", SPELLINGS["no_capacities"])
def test_what_is_no_capacity_for_the_panel_either(text: str) -> None:
    with pytest.raises(ValueError, match="capacity"):
        parse_capacity(text, SPELLINGS["whole"])


@pytest.mark.parametrize("value", [0, "0", "0MiB", " 0 k", np.int64(0)])
def test_nothing_is_a_size_where_it_may_be(value: object) -> None:
    assert parse_bytes(value, none=True) == 0
    with pytest.raises(ValueError, match="positive"):
        parse_bytes(value)


@pytest.mark.parametrize("value", [0.0, "0%", "0.0", -1, False, None])
def test_what_is_neither_nothing_nor_a_size(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_bytes(value, none=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (600, 600.0),
        ("600", 600.0),
        ("10min", 600.0),
        ("90 s", 90.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("2d", 172800.0),
    ],
)
def test_parse_seconds(text, seconds):
    assert parse_seconds(text) == seconds
    assert type(parse_seconds(text)) is float


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5s", "1:30", "0", 0, -1, math.inf])
def test_parse_seconds_refuses_what_is_no_duration(text):
    with pytest.raises(ValueError, match="mttr") as caught:
        parse_seconds(text, "mttr")
    assert repr(text) in str(caught.value) and '"10min"' in str(caught.value)


def test_parse_seconds_takes_none_where_it_may():
    assert parse_seconds("0", "detect", none=True) == 0.0
    with pytest.raises(TypeError, match="mttr"):
        parse_seconds(None, "mttr")
