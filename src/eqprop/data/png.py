"""A decoder for PNG pictures of 8-bit RGB without interlacing, for data sets in packages."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from eqprop.splits import DataError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
EIGHT_BIT_RGB = (8, 2, 0, 0, 0)  # bits, colour type, compression, filter method, interlacing
CHANNELS = 3

Rows = np.ndarray[Any, np.dtype[np.uint8]]


def decode(file: str, content: bytes, height: int, width: int) -> Rows:
    """Return the pixels of a picture of this size, [height, width, 3]."""
    header, packed = _chunks(file, content)
    if header != struct.pack(">2I5B", width, height, *EIGHT_BIT_RGB):
        raise DataError(f"{file}: not a picture of {height} rows of {width} pixels of 8-bit RGB")
    size = height * (1 + width * CHANNELS)  # each row starts with the number of its filter
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise DataError(f"{file}: its pixels do not unpack ({error})") from None
    if len(raw) != size:
        raise DataError(f"{file}: its pixels do not unpack to {size} bytes")
    filtered = np.frombuffer(raw, np.uint8).reshape(height, -1)
    return _unfilter(file, filtered[:, 0], filtered[:, 1:].reshape(height, width, CHANNELS))


def _chunks(file: str, content: bytes) -> tuple[bytes, bytes]:
    """Return the header and the compressed pixels."""
    if not content.startswith(SIGNATURE):
        raise DataError(f"{file}: not a PNG file")
    found: dict[bytes, list[bytes]] = {b"IHDR": [], b"IDAT": []}
    at, kind = len(SIGNATURE), b""
    while kind != b"IEND":
        if at + 12 > len(content):
            raise DataError(f"{file}: the PNG file is cut short")
        length, kind = struct.unpack_from(">I4s", content, at)
        if at + 12 + length > len(content):
            raise DataError(f"{file}: the PNG file is cut short")
        found.setdefault(kind, []).append(content[at + 8 : at + 8 + length])
        at += 12 + length  # length, kind, content, checksum
    return b"".join(found[b"IHDR"]), b"".join(found[b"IDAT"])


def _unfilter(file: str, filters: Rows, filtered: Rows) -> Rows:
    """Undo the filter of each row, modulo 256: [height, width, 3] to the same shape."""
    pixels = np.zeros_like(filtered)
    above = np.zeros_like(filtered[0])
    for y, kind in enumerate(filters.tolist()):
        row = filtered[y]
        match kind:
            case 0:
                pixels[y] = row
            case 1:  # plus the pixel to the left
                np.cumsum(row, axis=0, dtype=np.uint8, out=pixels[y])
            case 2:  # plus the pixel above
                pixels[y] = row + above
            case 3 | 4:
                predict = _average if kind == 3 else _paeth
                pixels[y] = _predicted(row.tolist(), above.tolist(), predict)
            case _:
                raise DataError(f"{file}: row {y} has the filter {kind}, but PNG has 0 to 4")
        above = pixels[y]
    return pixels


def _predicted(
    row: list[list[int]], above: list[list[int]], predict: Callable[[int, int, int], int]
) -> list[list[int]]:
    """Return the row plus its prediction from the pixels to the left, above and above left."""
    left, corner = [0] * CHANNELS, [0] * CHANNELS
    pixels = []
    for values, up in zip(row, above, strict=True):
        left = [
            (value + predict(a, b, c)) % 256
            for value, a, b, c in zip(values, left, up, corner, strict=True)
        ]
        corner = up
        pixels.append(left)
    return pixels


def _average(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    """Return the one closest to left + up − corner; on a tie, the first."""
    guess = left + up - corner
    return min(left, up, corner, key=lambda pixel: abs(guess - pixel))
