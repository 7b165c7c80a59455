"""What files of photos say beside the pixels: found in every format and in sidecars; nothing that XML can do wrong.

Keywords in XMP packets are read, and replaced where they stand with every other byte kept.
"""

import io
import struct
import time
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational

from hyphash.photos import Metadata, metadata
from hyphash.photos.metadata import HIERARCHICAL, LISTS, PATHS, SUBJECT, WRITTEN, Packet

DARKTABLE = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:darktable="http://darktable.sf.net/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmp:Rating="3" darktable:auto_presets_applied="1">
   <!-- what people wrote -->
   <darktable:history><rdf:Seq><rdf:li darktable:num="0" darktable:operation="exposure" darktable:params="0000&gt;"/>
   </rdf:Seq></darktable:history>%s
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""
DIGIKAM = """
   <digiKam:TagsList xmlns:digiKam="http://www.digikam.org/ns/1.0/">
    <rdf:Seq>
     <rdf:li>animal/cat</rdf:li>
    </rdf:Seq>
   </digiKam:TagsList>"""
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="|/\ufffe\uffff"), min_size=1).map(
    str.strip
)
LABELS = st.sets(st.lists(WORDS.filter(bool), min_size=1, max_size=3).map("/".join), max_size=5)


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


def without_lists(data):
    """What is in a packet besides keywords, in one spelling."""
    root = ElementTree.fromstring(data)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag[1:].replace("}", " ") in LISTS]:
            parent.remove(child)
    descriptions = root[0]
    for child in [child for child in descriptions if not len(child) and len(child.attrib) == 1]:
        descriptions.remove(child)
    return ElementTree.canonicalize(ElementTree.tostring(root), strip_text=True)


@given(LABELS)
def test_what_is_written_is_read_and_all_else_stays(labels):
    before = (DARKTABLE % DIGIKAM).encode()
    after = Packet(before).having(labels)
    packet = Packet(after)
    assert sorted(packet.words(HIERARCHICAL)) == sorted(packet.words(*PATHS)) == sorted(labels)
    assert sorted(packet.words(WRITTEN)) == sorted(labels)
    assert sorted(packet.words(SUBJECT)) == sorted({level for label in labels for level in label.split("/")})
    assert packet.having(labels) == after  # written again, nothing changes
    assert without_lists(after) == without_lists(before)


def test_every_byte_beside_the_lists_stays():
    for text in (DARKTABLE % "", DARKTABLE % DIGIKAM):
        first = Packet(text.encode()).having(["sea"])
        again = Packet(Packet(first).having(["animal/dog", "wood"])).having(["sea"])
        assert again == first
        head, tail = text.split(" </rdf:RDF>")
        assert first.decode().startswith(head.partition("\n   <digiKam")[0])
        assert first.decode().endswith(" </rdf:RDF>" + tail)


def test_programs_lists_of_their_own_change_only_where_they_are():
    assert not Packet(Packet().having(["dog"])).words(*PATHS)
    assert Packet(Packet((DARKTABLE % DIGIKAM).encode()).having(["a/b"])).words(*PATHS) == ["a/b"]


def test_a_second_list_of_one_name_goes():
    twice = DARKTABLE % "<dc:subject><rdf:Bag><rdf:li>one</rdf:li></rdf:Bag></dc:subject><dc:subject>two</dc:subject>"
    packet = Packet(twice.encode())
    assert packet.words(SUBJECT) == ["one", "two"]
    assert Packet(packet.having(["three"])).words(SUBJECT) == ["three"]


@pytest.mark.parametrize("after", ["", "<xmp:Label/>", "<xmp:Label>a/></xmp:Label>"])
def test_an_empty_list_takes_nothing_with_it(after):
    packet = Packet((DARKTABLE % f"<dc:subject/>{after}").encode()).having(["cat"])
    assert Packet(packet).words(SUBJECT) == ["cat"]
    assert f"</dc:subject>{after}".encode() in packet


FLAT, NESTED = (
    f"<a:{local} xmlns:a='{uri}'><rdf:Bag>"
    + "".join(f"<rdf:li>{local}{i}</rdf:li>" for i in range(60_000))
    + f"</rdf:Bag></a:{local}>"
    for uri, local in map(str.split, (SUBJECT, HIERARCHICAL))
)
LONG = {
    "text": "<dc:subject><rdf:Bag><rdf:li>" + "&amp;<b/>" * 250_000 + "</rdf:li></rdf:Bag></dc:subject>",
    "lists": "<dc:subject>a</dc:subject>" * 150_000,
    "words": FLAT + NESTED,
}


@pytest.mark.parametrize("kind", LONG)
def test_metadata_that_somebody_made_to_keep_us_busy_is_read_in_seconds(kind):
    """Each took minutes while the work grew with the square of what a file holds; one of 16 MB took hours."""
    packet, began = (DARKTABLE % LONG[kind]).encode(), time.process_time()
    assert read_keywords(saved("WEBP", xmp=packet))
    assert Packet(packet).having(["cat"])
    assert time.process_time() - began < 20


def test_a_title_or_a_list_of_another_kind_is_no_keyword():
    nested = "<x:y xmlns:x='z'><dc:subject>inside</dc:subject></x:y>"
    assert Packet((DARKTABLE % nested).encode()).words(SUBJECT) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no XML",
        b"<a/>",
        b'<!DOCTYPE x [<!ENTITY a "boom">]>' + Packet().having(["&a;"]),
        (DARKTABLE % "").encode()[:-20],
        (DARKTABLE % "").encode("utf-16"),
        b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>',
    ],
)
def test_damaged_packets_are_refused(data):
    with pytest.raises(ValueError, match="no XMP"):
        Packet(data)
