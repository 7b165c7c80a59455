"""What files of photos say beside the pixels: found in every format and in sidecars; nothing that XML can do wrong."""

import io
import struct

import pytest
from PIL import ExifTags, Image, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational

from hyphash.photos import Metadata, metadata


def saved(kind, **options):
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, kind, **options)
    return file.getvalue()


def read_keywords(data, path=None):
    return [*metadata.read(data, path).keywords]


def iptc(*words):
    fields = b"".join(b"\x1c\x02\x19" + struct.pack(">H", len(word)) + word for word in words)
    return b"\x1c\x02\x05" + struct.pack(">H", 5) + b"Title" + fields  # 2:05 is no keyword


def with_iptc(jpeg, *words):
    """A JPEG with an APP13 segment as Photoshop writes it."""
    record = iptc(*words)
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(record)) + record + b"\0" * (len(record) % 2)
    body = b"Photoshop 3.0\0" + block
    return jpeg[:2] + b"\xff\xed" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def xmp(*words, head="", bag=True, paths=()):
    items = "".join(f"<rdf:li>{word}</rdf:li>" for word in words)
    subject = f"<rdf:Bag>{items}</rdf:Bag>" if bag else "".join(words)
    items = "".join(f"<rdf:li>{word}</rdf:li>" for word in paths)
    lightroom = f'<lr:hierarchicalSubject xmlns:lr="http://ns.adobe.com/lightroom/1.0/"><rdf:Bag>{items}</rdf:Bag>'
    return (
        f'<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>{head}<x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title><rdf:Alt><rdf:li>Title</rdf:li></rdf:Alt></dc:title><dc:subject>{subject}</dc:subject>"
        f"{lightroom + '</lr:hierarchicalSubject>' if paths else ''}"
        '</rdf:Description></rdf:RDF></x:xmpmeta>   \n<?xpacket end="w"?>'
    ).encode()


def with_xmp(kind, packet):
    if kind == "PNG":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", packet.decode())
        return saved(kind, pnginfo=info)
    if kind == "TIFF":
        return saved(kind, tiffinfo={700: packet})
    return saved(kind, xmp=packet)


def test_iptc_keywords_of_jpeg_in_utf8_and_latin_1():
    data = with_iptc(saved("JPEG"), b"dog", " Übung ".encode(), "Café".encode("latin-1"), b"dog")
    assert read_keywords(data) == ["dog", "Übung", "Café"]
    assert read_keywords(with_iptc(saved("JPEG"), b"one")) == ["one"]


def test_iptc_keywords_of_tiff():
    assert read_keywords(saved("TIFF", tiffinfo={33723: iptc(b"dog", b"sea")})) == ["dog", "sea"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_xmp_keywords_in_every_format(kind):
    assert read_keywords(with_xmp(kind, xmp("dog", "Meer &amp; Strand", "犬"))) == ["dog", "Meer & Strand", "犬"]
    assert read_keywords(with_xmp(kind, xmp("alone", bag=False))) == ["alone"]
    assert read_keywords(saved(kind)) == []


def test_iptc_and_xmp_are_joined_each_word_once_in_one_spelling():
    data = with_iptc(with_xmp("JPEG", xmp("sea", "Cafe\u0301", "")), b"dog", b"sea", "Café".encode())
    assert read_keywords(data) == ["dog", "sea", "Café"]


@pytest.mark.parametrize(
    "packet",
    [
        xmp("&a;", head='<!DOCTYPE x [<!ENTITY a "boom">]>'),
        xmp("x", head='<!DOCTYPE x SYSTEM "file:///etc/hostname">'),
        xmp("x")[:-60],
        xmp("x").decode().encode("utf-16"),
        b"\xff\xfe\xfd",
        b"",
    ],
)
def test_xml_that_is_damaged_or_defines_entities_is_no_keyword(packet):
    assert read_keywords(with_iptc(with_xmp("JPEG", packet), b"dog")) == ["dog"]


def test_keywords_of_what_is_no_photo_are_none():
    assert read_keywords(b"") == read_keywords(b"no photo") == read_keywords(saved("PNG")[:20]) == []


def test_levels_of_a_hierarchy_are_one_keyword_and_no_words_besides():
    """Lightroom writes the levels of animal|dog as words, too; other words stay, and so does a level that is meant."""
    packet = xmp("animal", "dog", "sea", paths=["animal|dog", "wood|tree"])
    assert read_keywords(with_xmp("JPEG", packet)) == ["sea", "animal/dog", "wood/tree"]
    assert read_keywords(with_xmp("JPEG", xmp("animal", "dog", paths=["animal|dog", "animal"]))) == [
        "animal/dog",
        "animal",
    ]
    assert read_keywords(with_iptc(saved("JPEG"), b"animal|dog")) == ["animal/dog"]


@pytest.mark.parametrize("name", ["photo.jpg.xmp", "photo.xmp"])
def test_sidecars_are_read_beside_what_is_inside(tmp_path, name):
    data = with_iptc(saved("JPEG"), b"dog")
    (tmp_path / name).write_bytes(xmp("sea", "dog"))
    assert read_keywords(data, tmp_path / "photo.jpg") == ["dog", "sea"]
    assert read_keywords(data, tmp_path / "other.jpg") == ["dog"]
    (tmp_path / name).write_bytes(xmp("sea")[:-80])
    assert read_keywords(data, tmp_path / "photo.jpg") == ["dog"]


def exif(**values):
    """EXIF with the tags of these names, those of cameras in their places."""
    made, more, gps = Image.Exif(), {}, {}
    for name, value in values.items():
        if name.startswith("GPS"):
            gps[ExifTags.GPS[name]] = value
        elif name in ("Make", "Model", "DateTime"):
            made[ExifTags.Base[name]] = value
        else:
            more[ExifTags.Base[name]] = value
    made[ExifTags.IFD.Exif], made[ExifTags.IFD.GPSInfo] = more, gps
    return made.tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_when_with_what_and_where(kind):
    facts = exif(
        Make="Canon", Model="Canon EOS 5D", DateTime="2022:01:01 00:00:00", DateTimeOriginal="2021:06:05 14:03:02",
        GPSLatitudeRef="S", GPSLatitude=(33.0, 51.0, 36.0), GPSLongitudeRef="E", GPSLongitude=(151.0, 12.0, 0.0),
    )  # fmt: skip
    found = metadata.read(saved(kind, exif=facts))
    assert found.taken == 1622901782  # as if the clock on the wall were in Greenwich
    assert found.camera == "Canon EOS 5D"
    assert (found.latitude, found.longitude) == pytest.approx((-33.86, 151.2))
    assert metadata.read(saved(kind)) == Metadata()


@pytest.mark.parametrize(
    "facts",
    [
        {"DateTimeOriginal": "0000:00:00 00:00:00"},
        {"DateTimeOriginal": "    :  :     :  :  "},
        {"GPSLatitude": (1.0, 2.0, 3.0)},  # and no longitude
        {"GPSLatitude": (91.0, 0.0, 0.0), "GPSLongitude": (1.0, 0.0, 0.0)},
        {"GPSLatitude": (IFDRational(1, 0),), "GPSLongitude": (1.0, 0.0, 0.0)},
    ],
)
def test_what_makes_no_sense_is_not_known(facts):
    assert metadata.read(saved("JPEG", exif=exif(**facts))) == Metadata()


def test_a_maker_is_named_once_and_a_date_is_taken_from_what_there_is():
    found = metadata.read(saved("JPEG", exif=exif(Make="SONY", Model="ILCE-7", DateTime="2022:01:01 00:00:00")))
    assert (found.camera, found.taken) == ("SONY ILCE-7", 1640995200)
