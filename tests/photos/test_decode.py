"""From bytes to pixels: what is read, how it comes out, and what is refused with which words."""

import hashlib
import io
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from raw import dng

from hyphash.config import Config
from hyphash.errors import ConfigError, MissingExtraError, PhotoError
from hyphash.photos import (
    MAX_PIXELS,
    SUFFIXES,
    VIEWS,
    Preprocessing,
    Raw,
    decode,
    decode_for,
    dimensions,
    media_type,
    metadata,
    pixels_of,
    thumbnail,
    thumbnail_hash,
)

FORMATS = {
    "JPEG": {"quality": 95},
    "PNG": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 90},
    "TIFF": {},
    "GIF": {},
    "BMP": {},
    "HEIF": {"quality": 90},
}


decode_module = sys.modules[decode.__module__]


def picture(width=48, height=32):
    """Four quarters of different colours, so that every turn and flip shows."""
    image = Image.new("RGB", (width, height))
    for i, colour in enumerate([(220, 30, 30), (30, 200, 30), (30, 30, 220), (240, 240, 40)]):
        image.paste(colour, ((i % 2) * width // 2, (i // 2) * height // 2, width, height))
    return image


def saved(image, kind, **options):
    if kind == "HEIF":
        import pillow_heif

        file = io.BytesIO()
        pillow_heif.from_pillow(image).save(file, **options)
        return file.getvalue()
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def difference(image, other):
    return np.abs(np.asarray(image, float) - np.asarray(other, float)).mean()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_comes_out_as_the_same_rgb(kind):
    image = decode(saved(picture(), kind, **FORMATS[kind]), "a photo")
    assert image.mode == "RGB"
    assert image.size == (48, 32)
    assert difference(image, picture()) < 6


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_photos_that_are_cut_off_are_refused_by_name(kind, share):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    data = saved(noise, kind, **FORMATS[kind])
    with pytest.raises(PhotoError, match=r"holiday/7.jpg: .*(damaged|cut off|not a photo).*leave it out"):
        decode(data[: int(len(data) * share)], "holiday/7.jpg")


def outcome(data):
    """The mode of the photo, or that it was refused by name; any other error fails the test."""
    try:
        return decode(data, "x").mode
    except PhotoError as error:
        return "refused" if str(error).startswith("x: ") else str(error)


@given(
    data=st.binary(max_size=200), head=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM"])
)
def test_any_bytes_are_decoded_or_refused_in_words(data, head):
    assert outcome(head + data) in ("RGB", "refused")


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP"]),
    place=st.floats(0, 0.999),
    value=st.integers(0, 255),
)
def test_one_wrong_byte_never_breaks_the_reader(kind, place, value):
    data = bytearray(saved(picture(), kind, **FORMATS[kind]))
    data[int(place * len(data))] = value
    assert outcome(bytes(data)) in ("RGB", "refused")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file of 0 bytes"),
        (b"hello world", "not a photo; hyphash reads JPEG"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"%PDF-1.7", "a PDF document"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1", "a video"),
        (b"P6 1 1 255 abc", "not a photo"),
    ],
)
def test_what_is_no_photo_is_called_what_it_is(data, words):
    with pytest.raises(PhotoError, match=f"^x: {words}"):
        decode(data, "x")


def png_header(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_001, 60_000])  # below and above the limit of Pillow itself
def test_decompression_bombs_are_refused_before_a_pixel_is_decoded(side):
    assert side**2 > MAX_PIXELS
    with pytest.raises(
        PhotoError, match=f"bomb.png: too large .{side} × {side} pixels.*100 million.*export it smaller"
    ):
        decode(png_header(side, side), "bomb.png")


def test_the_limit_can_be_moved_both_ways():
    data = saved(picture(48, 32), "PNG")
    assert decode(data, max_pixels=48 * 32).size == (48, 32)
    with pytest.raises(PhotoError, match="too large"):
        decode(data, max_pixels=48 * 32 - 1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_photos_come_out_upright_and_are_not_turned_twice(kind, orientation):
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture(), kind, exif=exif, **FORMATS[kind])
    image = decode(data)
    upright = turns[orientation](np.asarray(picture()))
    assert np.asarray(image).shape == upright.shape
    assert difference(image, upright) < 6
    assert image.getexif().get(0x0112, 1) == 1
    assert dimensions(data) == image.size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # Pillow says so, and the photo is read all the same
def test_damaged_exif_does_not_cost_the_photo():
    data = saved(picture(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12\0\x03")
    assert decode(data).size == (48, 32)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind):
    values = np.array([[0, 256, 32768, 65535]], np.uint16).repeat(4, 0)
    image = decode(saved(Image.fromarray(values), kind))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "grey"),
    [([0.0, 0.5, 1.0], [0, 128, 255]), ([0.0, 100.0, 255.0], [0, 100, 255]), ([-10.0, 0.0, 10.0], [0, 128, 255])],
)
def test_float_photos_are_scaled_by_what_they_look_like(values, grey):
    image = decode(saved(Image.fromarray(np.array([values], np.float32)), "TIFF"))
    assert np.asarray(image)[0, :, 0].tolist() == grey


def test_cmyk_is_not_inverted():
    assert difference(decode(saved(picture().convert("CMYK"), "JPEG", quality=95)), picture()) < 12
    assert difference(decode(saved(picture().convert("CMYK"), "TIFF")), picture()) < 2


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_on_white(mode):
    image = Image.new(mode, (4, 4), (0,) * (len(mode) - 1) + (0,))
    image.putpixel((0, 0), (0,) * (len(mode) - 1) + (255,))
    pixels = np.asarray(decode(saved(image, "PNG")))
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[3, 3].tolist() == [255, 255, 255]


def test_palettes_with_transparency_lie_on_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 0)
    for options in ({"transparency": 1}, {"transparency": bytes([255, 0])}):
        pixels = np.asarray(decode(saved(image, "PNG", **options)))
        assert pixels[0, 0].tolist() == [255, 0, 0]
        assert pixels[3, 3].tolist() == [255, 255, 255]
    assert np.asarray(decode(saved(image, "PNG")))[3, 3].tolist() == [0, 0, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_counts(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **FORMATS[kind])
    assert np.asarray(decode(data))[4, 4].tolist() == [255, 0, 0]


def test_big_jpegs_are_decoded_no_larger_than_needed():
    data = saved(picture(800, 600), "JPEG")
    small = decode(data, at_least=100)
    assert small.size == (200, 150)
    assert decode(data, at_least=601).size == (800, 600)
    assert difference(small, picture(200, 150)) < 6


def test_dimensions_come_from_the_header_or_an_error_with_the_name():
    assert dimensions(saved(picture(800, 600), "JPEG")[:700]) == (800, 600)  # the pixels are not needed
    assert dimensions(png_header(60_000, 60_000)) == (60_000, 60_000)
    with pytest.raises(PhotoError, match="x: its size cannot be read"):
        dimensions(saved(picture(), "PNG")[:20], "x")
    with pytest.raises(PhotoError, match="x: not a photo"):
        dimensions(b"hello", "x")


def test_heic_without_its_package_names_the_extra(monkeypatch):
    data = saved(picture(), "HEIF", quality=50)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for reader in (decode, dimensions, metadata.read):
        with pytest.raises(MissingExtraError, match=r"HEIC.*pip install 'hyphash\[heic\]'"):
            reader(data)


def test_heic_comes_out_upright_once():
    import pillow_heif

    pillow_heif.register_heif_opener()  # for save(): it writes the turn where HEIC keeps it
    image = picture()
    image.getexif()[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "HEIF", quality=90)
    turned = decode(file.getvalue())
    assert turned.size == dimensions(file.getvalue()) == (32, 48)
    assert difference(turned, np.rot90(np.asarray(picture()), -1)) < 8


def test_too_little_memory_is_an_error_of_the_photo(monkeypatch):
    def fail(self):
        raise MemoryError

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(PhotoError, match=r"x: too large .not enough memory"):
        decode(saved(picture(), "PNG"), "x")


def test_suffixes_are_lower_case_and_cover_the_formats():
    assert {".jpg", ".jpeg", ".png", ".webp", ".avif", ".tif", ".tiff", ".gif", ".heic"} <= SUFFIXES
    assert all(suffix == suffix.lower() and suffix[0] == "." for suffix in SUFFIXES)


# ── preprocessing ────────────────────────────────────────────────────────────────────────────────────────

PLAIN = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


def test_squash_keeps_all_of_the_photo_and_crop_its_middle():
    image = Image.new("RGB", (300, 100), "red")
    image.paste((0, 0, 255), (100, 0, 200, 100))
    squashed = Preprocessing(size=30, **PLAIN).pixels(image)
    cropped = Preprocessing(size=30, resize="crop", **PLAIN).pixels(image)
    assert squashed.shape == cropped.shape == (30, 30, 3)
    assert squashed.dtype == np.uint8
    assert squashed[15, 2].tolist() == squashed[15, 27].tolist() == [255, 0, 0]
    scaled_then_cut = image.resize((90, 30), Image.Resampling.BILINEAR).crop((30, 0, 60, 30))
    assert np.array_equal(cropped, np.asarray(scaled_then_cut))
    assert (cropped[:, 2:-2] == [0, 0, 255]).all()


def test_interpolation_is_the_one_asked_for():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 40, 3), np.uint8))
    for name, method in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        pixels = Preprocessing(size=16, interpolation=name, **PLAIN).pixels(image)
        assert np.array_equal(pixels, np.asarray(image.resize((16, 16), method)))


def test_normalise_matches_its_formula():
    preprocessing = Preprocessing(size=5, **PLAIN)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 5, 5, 3), np.uint8)
    values = preprocessing.normalise(pixels)
    assert values.shape == (2, 3, 5, 5)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    for n, y, x, c in np.ndindex(pixels.shape):
        naive = (pixels[n, y, x, c] / 255 - PLAIN["mean"][c]) / PLAIN["std"][c]
        assert values[n, c, y, x] == pytest.approx(naive, abs=1e-5)
    with pytest.raises(ConfigError, match="uint8"):
        preprocessing.normalise(pixels.astype(float))


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"std": (1.0, 0.0, 1.0)}, {"mean": (1.0,)}, {"resize": "stretch"}, {"interpolation": "nearest"}],
)
def test_wrong_preprocessing_is_refused(wrong):
    with pytest.raises(ConfigError, match="preprocessing"):
        Preprocessing(**({"size": 8, **PLAIN} | wrong))


@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views_are_crops_and_mirror_images_of_the_photo(number, resize):
    """Cut out and turned around by hand first, then seen as any photo."""
    image = picture(160, 96)
    sees = Preprocessing(size=28, resize=resize, **PLAIN)
    whole = image.crop((32, 0, 128, 96)) if resize == "crop" else image
    corner, mirrored = VIEWS[number]
    left, top = (corner[0] * whole.width / 8, corner[1] * whole.height / 8) if corner else (0, 0)
    width, height = (whole.width * 7 / 8, whole.height * 7 / 8) if corner else whole.size
    naive = whole.resize((28, 28), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    if mirrored:
        naive = naive.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    difference = sees.view(number).pixels(image).astype(int) - np.asarray(naive).astype(int)
    assert np.abs(difference[2:-2, 2:-2]).max() <= 1  # at the edge, the middle of a photo knows what lies beyond it


def test_the_first_view_is_the_photo_and_all_others_differ():
    image, sees = picture(90, 60), Preprocessing(size=28, **PLAIN)
    assert sees.view(0) is sees
    seen = [sees.view(number).pixels(image).tobytes() for number in range(len(VIEWS))]
    assert len(set(seen)) == len(VIEWS) == len(set(VIEWS))
    Config(views=len(VIEWS))
    with pytest.raises(ConfigError, match="views must lie between 1 and 12"):
        Config(views=len(VIEWS) + 1)
    together = Preprocessing.side_by_side([sees.view(3), sees, sees.view(2)])
    assert [part.tobytes() for part in together.cut(together.pixels(image)[None])] == [seen[3], seen[0], seen[2]]


SEVERAL = Preprocessing(
    size=30, **PLAIN, beside=(Preprocessing(size=64, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), resize="crop"),)
)


def test_pixels_of_several_are_those_of_each_and_can_be_cut_again():
    images = [picture(90, 60), picture(70, 80)]
    pixels = np.stack([SEVERAL.pixels(image) for image in images])
    assert pixels.shape[1:] == SEVERAL.shape == (30**2 + 64**2, 3)
    for part, found in zip(SEVERAL.parts, SEVERAL.cut(pixels), strict=True):
        assert np.array_equal(found, np.stack([part.pixels(image) for image in images]))
    values, ends = SEVERAL.normalise(pixels), (0, 30**2, 30**2 + 64**2)
    for i, part in enumerate(SEVERAL.parts):
        own = part.normalise(SEVERAL.cut(pixels)[i])
        assert np.array_equal(values[:, :, ends[i] : ends[i + 1]].reshape(own.shape), own)


def test_one_alone_is_described_as_it_always_was():
    """Fingerprints of hashers, and names of files of features, are made from these words."""
    alone = Preprocessing(size=30, **PLAIN)
    assert Preprocessing.side_by_side([alone]) is alone
    assert alone.parts == (alone,)
    assert repr(alone) == (
        "Preprocessing(size=30, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), resize='squash', interpolation='bilinear')"
    )
    assert Preprocessing.side_by_side(SEVERAL.parts) == SEVERAL


@pytest.mark.parametrize("sides", [(1600, 1200), (200, 150), (120, 90), (40, 40)])
def test_several_see_of_a_photo_what_each_would_see_alone(sides, monkeypatch):
    file = io.BytesIO()
    picture(*sides).save(file, "JPEG")
    raw, times, rgb = Raw("photo", file.getvalue()), [], decode_module._rgb
    alone = [pixels_of(raw, preprocessing=part) for part in SEVERAL.parts]
    scales = {decode(raw.data, at_least=part.size).size for part in SEVERAL.parts}
    monkeypatch.setattr(decode_module, "_rgb", lambda image: times.append(1) or rgb(image))
    together = pixels_of(raw, preprocessing=SEVERAL)
    assert all(map(np.array_equal, SEVERAL.cut(together[None]), [own[None] for own in alone]))
    assert len(times) == len(scales)  # decoded once a scale
    assert np.array_equal(decode_for(raw, preprocessing=SEVERAL).pixels, together)
    assert len(times) == 2 * len(scales)


@pytest.mark.parametrize("sides", [(1600, 1200), (500, 375), (375, 500), (120, 90), (2000, 60), (64, 64)])
def test_all_that_is_taken_from_a_photo_is_what_each_function_takes(sides):
    file = io.BytesIO()
    picture(*sides).save(file, "JPEG")
    data, sees = file.getvalue(), Preprocessing(size=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    found = decode_for(Raw("photo", data), preprocessing=sees, small=128)
    image = decode(data, at_least=64)
    assert np.array_equal(found.pixels, sees.pixels(image))
    assert (found.width, found.height) == dimensions(data) == sides
    assert (found.content, found.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert found.thumbnail_hash == thumbnail_hash(image)
    assert found.thumbnail is not None
    small = decode(found.thumbnail)
    assert min(96, max(sides)) <= max(small.size) <= 128  # decoded once where that gives nearly as much
    assert abs(small.size[0] / small.size[1] - sides[0] / sides[1]) < 0.05 * sides[0] / sides[1]
    assert decode_for(Raw("photo", data), preprocessing=sees).thumbnail is None


def test_thumbnails_are_small_jpegs_with_the_photo_left_alone():
    image = picture(600, 400)
    data = thumbnail(image, 90)
    small = decode(data)
    assert data[:2] == b"\xff\xd8"
    assert small.size == (90, 60)
    assert image.size == (600, 400)
    assert decode(thumbnail(picture(40, 20))).size == (40, 20)  # never enlarged


# ── RAW ──────────────────────────────────────────────────────────────────────────────────────────────────


def half_red(width=320, height=240):
    image = Image.new("RGB", (width, height))
    image.paste((255, 0, 0), (0, 0, width // 2, height))
    return image


def test_a_raw_is_seen_by_its_preview_upright():
    data = dng(half_red(), orientation=6)
    assert media_type(data) == "image/x-dcraw"
    assert dimensions(data) == decode(data).size == (240, 320)
    assert decode(data).getpixel((120, 40))[0] > 200  # the left half is at the top now
    assert decode(data).getpixel((120, 280))[0] < 50
    found = decode_for(
        Raw("a.dng", data), preprocessing=Preprocessing(size=32, mean=(0, 0, 0), std=(1, 1, 1)), small=64
    )
    assert (found.width, found.height) == (240, 320)
    facts = metadata.read(data)
    assert (facts.camera, facts.taken) == ("Maker Model X", 1622901782)


def test_a_raw_without_a_preview_says_so():
    with pytest.raises(PhotoError, match=r"a\.dng: a RAW without a JPEG in it .*; export it as JPEG or leave it out"):
        decode(dng(None), "a.dng")


def test_raws_of_many_makers_are_known_by_their_first_bytes_and_a_tiff_stays_one():
    for start in (b"FUJIFILMCCD-RAW 0201", b"IIRO\x08\0\0\0", b"IIU\0", b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", b"FOVb"):
        assert media_type(start.ljust(64, b"\0")) == "image/x-dcraw"
    assert media_type(dng(half_red(), dng=False)) == "image/x-dcraw"  # a TIFF that begins with a preview
    file = io.BytesIO()
    half_red().save(file, "TIFF")
    assert media_type(file.getvalue()) == "image/tiff"
    assert media_type(file.getvalue()[:40]) == "image/tiff"


def test_without_rawpy_a_raw_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "rawpy", None)
    with pytest.raises(MissingExtraError, match=r"reading RAW photos needs .* pip install 'hyphash\[raw\]'"):
        decode(dng(half_red()), "a.dng")
