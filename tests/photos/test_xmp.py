"""Keywords in XMP packets: read, and replaced where they stand with every other byte kept."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.photos.xmp import HIERARCHICAL, LISTS, PATHS, SUBJECT, WRITTEN, Packet

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
