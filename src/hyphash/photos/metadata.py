"""What photo programs write into files beside the pixels: keywords from IPTC and XMP. Nothing is decoded."""

import unicodedata
from xml.etree import ElementTree

from PIL import ImageFile, IptcImagePlugin

from hyphash.errors import MissingExtraError
from hyphash.photos.decode import open_header


def keywords(data: bytes) -> list[str]:
    """The keywords that photo programs write into files: IPTC 2:25, then XMP dc:subject, each once.

    Nothing is decoded. Metadata that is damaged, or XML that defines entities, counts as no keywords.
    """
    try:
        image = open_header(data, "photo")
    except MissingExtraError:
        raise
    except Exception:  # whoever decodes the photo will say what is wrong with it
        return []
    found = (unicodedata.normalize("NFC", word).strip(" \t\r\n\0") for word in _iptc(image) + _xmp(image))
    return list(dict.fromkeys(word for word in found if word))


def _iptc(image: ImageFile.ImageFile) -> list[str]:
    try:
        fields = IptcImagePlugin.getiptcinfo(image) or {}
    except Exception:  # damaged metadata
        return []
    found = fields.get((2, 25), [])
    return [_text(word) for word in (found if isinstance(found, list) else [found])]


def _text(data: bytes) -> str:
    """IPTC text: UTF-8 in all files that say so and most that do not, else Latin-1."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _xmp(image: ImageFile.ImageFile) -> list[str]:
    """The items of dc:subject. Decoded here and never by the parser, so that no encoding hides a DTD."""
    packet = image.info.get("xmp", b"")
    try:
        text = packet.decode("utf-8-sig") if isinstance(packet, bytes) else str(packet)
        if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
            return []
        root = ElementTree.fromstring(text.strip(" \t\r\n\0"))
    except (UnicodeDecodeError, ElementTree.ParseError, ValueError):
        return []
    subjects = root.iter("{http://purl.org/dc/elements/1.1/}subject")
    item = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"
    return [word.text or "" for subject in subjects for word in (list(subject.iter(item)) or [subject])]
