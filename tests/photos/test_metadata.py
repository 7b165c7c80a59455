"""The keywords inside photo files: found in every format, and nothing that XML can do wrong."""

import io
import struct

import pytest
from PIL import Image, PngImagePlugin

from hyphash.photos import keywords


def saved(kind, **options):
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, kind, **options)
    return file.getvalue()


def iptc(*words):
    fields = b"".join(b"\x1c\x02\x19" + struct.pack(">H", len(word)) + word for word in words)
    return b"\x1c\x02\x05" + struct.pack(">H", 5) + b"Title" + fields  # 2:05 is no keyword


def with_iptc(jpeg, *words):
    """A JPEG with an APP13 segment as Photoshop writes it."""
    record = iptc(*words)
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(record)) + record + b"\0" * (len(record) % 2)
    body = b"Photoshop 3.0\0" + block
    return jpeg[:2] + b"\xff\xed" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def xmp(*words, head="", bag=True):
    items = "".join(f"<rdf:li>{word}</rdf:li>" for word in words)
    subject = f"<rdf:Bag>{items}</rdf:Bag>" if bag else "".join(words)
    return (
        f'<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>{head}<x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title><rdf:Alt><rdf:li>Title</rdf:li></rdf:Alt></dc:title><dc:subject>{subject}</dc:subject>"
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
    assert keywords(data) == ["dog", "Übung", "Café"]
    assert keywords(with_iptc(saved("JPEG"), b"one")) == ["one"]


def test_iptc_keywords_of_tiff():
    assert keywords(saved("TIFF", tiffinfo={33723: iptc(b"dog", b"sea")})) == ["dog", "sea"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_xmp_keywords_in_every_format(kind):
    assert keywords(with_xmp(kind, xmp("dog", "Meer &amp; Strand", "犬"))) == ["dog", "Meer & Strand", "犬"]
    assert keywords(with_xmp(kind, xmp("alone", bag=False))) == ["alone"]
    assert keywords(saved(kind)) == []


def test_iptc_and_xmp_are_joined_each_word_once_in_one_spelling():
    data = with_iptc(with_xmp("JPEG", xmp("sea", "Cafe\u0301", "")), b"dog", b"sea", "Café".encode())
    assert keywords(data) == ["dog", "sea", "Café"]


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
    assert keywords(with_iptc(with_xmp("JPEG", packet), b"dog")) == ["dog"]


def test_keywords_of_what_is_no_photo_are_none():
    assert keywords(b"") == keywords(b"no photo") == keywords(saved("PNG")[:20]) == []
