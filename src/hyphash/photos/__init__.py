"""Photos: where they come from (`source`), the one safe way from bytes to pixels (`decode`), and that way taken by many
of them at once (`pipe`); what their files say beside the pixels (`metadata`, and `xmp` that some of it stands in).
"""

from hyphash.photos.decode import (
    FORMATS,
    MAX_BYTES,
    MAX_PIXELS,
    SUFFIXES,
    THUMBNAIL,
    VIEWS,
    Preprocessing,
    decode,
    dimensions,
    media_type,
    memory_to_decode,
    thumbnail,
    thumbnail_hash,
)
from hyphash.photos.metadata import Metadata
from hyphash.photos.pipe import (
    Decoded,
    Pixels,
    Problem,
    Raw,
    decode_for,
    decoded,
    decoders,
    looked_at,
    picture_of,
    pixels_of,
    prepare_to_decode,
)
from hyphash.photos.source import Chosen, PhotoBytes, PhotoFiles, PhotoSource, read_bytes, size_and_time

__all__ = [
    "FORMATS", "MAX_BYTES", "MAX_PIXELS", "SUFFIXES", "THUMBNAIL", "VIEWS", "Chosen", "Decoded", "Metadata",
    "PhotoBytes", "PhotoFiles", "PhotoSource", "Pixels", "Preprocessing", "Problem", "Raw", "decode", "decode_for",
    "decoded", "decoders", "dimensions", "looked_at", "media_type", "memory_to_decode", "picture_of", "pixels_of",
    "prepare_to_decode", "read_bytes", "size_and_time", "thumbnail", "thumbnail_hash",
]  # fmt: skip
