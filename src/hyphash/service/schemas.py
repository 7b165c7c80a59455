"""What the service takes and gives, as OpenAPI describes it."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_origin
from urllib.parse import parse_qsl

import numpy as np
import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from hyphash.collection import Photo, Ranking, Verdict
from hyphash.collection.records import Status
from hyphash.refining import Refinement
from hyphash.searchers.filters import EVERYTHING, READERS, Filter

MANY = 50  # labels in one request
VERDICTS = 1000  # in one request
MAX_ID = 2**53 - 1  # what JavaScript can count
Responses = dict[int | str, dict[str, Any]]  # what OpenAPI says of them


def _printable(text: str) -> str:
    if not text.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError("a label has no control characters")
    return unicodedata.normalize("NFC", text)


OfLength = StringConstraints(strip_whitespace=True, min_length=1, max_length=200)
Label = Annotated[str, OfLength, AfterValidator(_printable)]
Labels = Annotated[list[Label], Field(max_length=MANY)]
Text = Annotated[str, StringConstraints(max_length=200)]
PhotoId = Annotated[int, Field(ge=1, le=MAX_ID)]
PhotoIds = Annotated[list[PhotoId], Field(min_length=1, max_length=1000)]


class SearchQuery(BaseModel, extra="forbid"):
    """What to search for, and which part of the ranking to give."""

    label: Labels = Field(default_factory=list, description="Labels to be near to; repeat it for several.")
    unwanted: Labels = Field(default_factory=list, description="Labels that shall not be there.")
    any_of: Labels = Field(default_factory=list, description="Labels of which one is enough; repeat it for several.")
    at_least: Labels = Field(default_factory=list, description="The probability that a label must have, as in dog=0.8.")
    missing: Label | None = Field(None, description="Photos that should carry this label and do not.")
    wrong: Label | None = Field(None, description="Photos that carry this label and should not.")
    like: PhotoId | None = Field(None, description="A photo of the collection to be near to.")
    place: Annotated[str, StringConstraints(max_length=8192)] | None = Field(
        None, description="Where an uploaded photo lies, from the answer to its upload: for its further pages."
    )
    carrying: Labels = Field(default_factory=list, description="Find only photos that carry all of these.")
    taken: Text | None = Field(None, description="Then: 2019, 2019-05, 2019-05-03, 2019-05..2020-02, 2019.., 30d.")
    added: Text | None = Field(None, description="Added then (UTC), in the same words: 7d is the last seven days.")
    size: Text | None = Field(None, description="Of the file, 2MB.. or ..500kB, or of the picture, 12MP...")
    camera: Text | None = Field(None, description="Part of the name of the camera.")
    folder: Text | None = Field(None, description="A folder, or several one inside the other: 2019/summer.")
    type: Text | None = Field(None, description="Types of files: jpeg,png.")
    near: Text | None = Field(None, description="Taken within a distance of a place: 48.2082,16.3738,5km.")
    radius: Annotated[int, Field(ge=0, le=256)] | None = Field(None, description="At most so many bits away.")
    rank: Literal["labels", "hamming", "asymmetric"] | None = Field(
        None, description="labels: by their probabilities, as label searches are where there are some; hamming: by the "
        "distance of codes, as all others are; asymmetric: by the real query against the stored bits.",
    )  # fmt: skip
    bits: Annotated[int, Field(ge=1, le=256)] | None = Field(None, description="By so many first bits, then by all.")
    k: int = Field(30, ge=1, le=200, description="How many photos.")
    offset: int = Field(0, ge=0, le=100_000, description="How many to pass over.")

    @property
    def only(self) -> Filter:
        """The filter by facts of files."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name in READERS}
        return Filter.parse(**given) if given else EVERYTHING


SEVERAL = {name for name, field in SearchQuery.model_fields.items() if get_origin(field.annotation) is list}


def search_query(query: str) -> SearchQuery:
    """What the query of an address asks for, or the error that FastAPI would raise."""
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in SEVERAL:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value
    try:
        return SearchQuery.model_validate(given)
    except ValidationError as error:
        faults = [{**fault, "loc": ("query", *fault["loc"])} for fault in error.errors(include_url=False)]
        raise RequestValidationError(faults) from None


class Error(BaseModel):
    """What is wrong and what to do."""

    error: str


def refusals(reasons: dict[int, str]) -> Responses:
    """What OpenAPI says of answers that are errors."""
    return {status: {"model": Error, "description": reason} for status, reason in reasons.items()}


class LabelChange(BaseModel, extra="forbid"):
    label: Label


class NewLabels(BaseModel, extra="forbid"):
    labels: Labels


class VerdictChange(BaseModel, extra="forbid"):
    """What a person says of a photo and a label; `forget`: nothing any more."""

    id: PhotoId
    label: Label
    said: Literal["accept", "refuse", "forget"]


class Verdicts(BaseModel, extra="forbid"):
    verdicts: Annotated[list[VerdictChange], Field(min_length=1, max_length=VERDICTS)]


BODY = refusals({400: "The body cannot be read.", 408: "The body came too slowly.", 413: "The body is too large."})
NOT_FOUND = refusals({404: "There is no such photo."})
FILE = NOT_FOUND | {200: {"content": {"image/*": {}}, "description": "The photo file."}}
JPEG = NOT_FOUND | {200: {"content": {"image/jpeg": {}}, "description": "A JPEG."}, 304: {"description": "Unchanged."}}
UPLOAD = BODY | refusals({415: "This is no photo, or one that must not be read."})


class MatchAnswer(BaseModel):
    """A photo that was found."""

    id: int
    name: str
    distance: int
    score: float
    labels: list[str]
    shared: list[str]
    probability: float | None = Field(None, description="That it is as labels ask for; null where none rank.")
    known: bool = Field(False, description="People say that it is.")
    width: int = 0
    height: int = 0


class SearchAnswer(BaseModel):
    """Photos `offset` … of `total`, nearest first."""

    matches: list[MatchAnswer]
    offset: int
    total: int
    rank: Literal["labels", "hamming", "asymmetric", "taken"] = "hamming"
    known: int = Field(0, description="How many photos carry what the labels ask for.")
    probable: int = Field(0, description="How many others probably do.")
    bordered: bool = Field(False, description="Whether the known come first, then the probable, then all others.")
    unlike: str = Field("", description="What to say where the query is unlike anything in the collection.")
    asked: list[str] = Field(description="The labels of the query: those wanted, and those of the photo in `like`.")
    place: str | None = Field(None, description="Where the uploaded photo lies; see the parameter of that name.")

    @staticmethod
    def json_of(ranking: Ranking, place: str | None) -> bytes:
        """What this model would write, without making and checking it: most of a search's time would go there."""
        matches = [
            {
                "id": match.id, "name": file_name(match.path), "distance": match.distance,
                "score": round(match.score, 4), "labels": match.labels, "shared": match.shared,
                "probability": None if match.probability is None else round(match.probability, 4), "known": match.known,
                "width": match.width, "height": match.height,
            }
            for match in ranking.matches
        ]  # fmt: skip
        answer = {
            "matches": matches, "offset": ranking.offset, "total": ranking.total, "rank": ranking.rank,
            "known": ranking.known, "probable": ranking.probable, "bordered": ranking.bordered,
            "unlike": ranking.unlike, "asked": ranking.asked, "place": place,
        }  # fmt: skip
        return orjson.dumps(answer)


class PhotoAnswer(BaseModel):
    """A photo of the collection."""

    id: int
    name: str
    labels: list[str]
    refused: list[str] = Field(description="Suggested labels that were turned down.")
    width: int
    height: int
    size: int
    added: str
    changed: str
    taken: str | None = Field(description="By the clock on the wall, such as 2019-05-03T14:30:00.")
    camera: str
    latitude: float | None
    longitude: float | None
    folder: str = Field(description="The name of the folder that its file is in; empty where it is no file.")
    path: str | None = Field(None, description="Told only on the machine itself.")

    @classmethod
    def of(cls, photo: Photo, *, path: bool = False) -> "PhotoAnswer":
        facts, file = photo.facts, PurePath(photo.path)
        told = {"name": file_name(photo.path), "path": photo.path if path else None, "camera": facts.camera or ""}
        told |= {"taken": None if facts.taken is None else str(np.datetime64(facts.taken, "s"))}
        told |= {"folder": file.parent.name if file.is_absolute() else ""}
        return cls.model_validate(vars(facts) | vars(photo) | told)


class PhotosAnswer(BaseModel):
    """Photos `offset` … of `total`, by id."""

    photos: list[PhotoAnswer]
    offset: int
    total: int


class VerdictsAnswer(BaseModel):
    """Photos as they are now, and the verdicts that take it back."""

    photos: list[PhotoAnswer]
    undo: list[VerdictChange]

    @classmethod
    def of(cls, photos: Iterable[Photo], undo: Iterable[Verdict]) -> "VerdictsAnswer":
        back = [VerdictChange(**verdict._asdict()) for verdict in undo]
        return cls(photos=[PhotoAnswer.of(photo) for photo in photos], undo=back)


class AddedAnswer(BaseModel):
    """A photo that is in the collection now."""

    id: int
    status: Status


class TagAnswer(BaseModel):
    """A label that a photo seems to lack, with its probability."""

    label: str
    score: float
    likely: bool = Field(description="Whether the photo probably carries it: the label's threshold is reached.")
    guessed: bool = Field(description="Whether nobody taught the label: a guess of what ImageNet knows.")


class LabelAnswer(BaseModel):
    """A label and how many photos carry it."""

    label: str
    photos: int
    learnt: bool = Field(description="Whether the hasher was trained with it.")
    guessed: bool = Field(description="Whether it only guesses it, by what ImageNet knows.")


class LackingAnswer(BaseModel):
    """A label and how many photos probably should carry it."""

    label: str
    photos: int


class CollectionAnswer(BaseModel):
    """What this service serves."""

    name: str
    photos: int
    untagged: int
    bits: int
    fingerprint: str
    commit: int
    read_only: bool
    by_radius: bool = Field(description="Whether a radius can be asked for: not with a product quantiser.")
    max_upload: int
    version: str


class RefineAnswer(BaseModel):
    """What is known of learning from the collection; `what`, `done` and `total` are of the work that is under way."""

    said: int = Field(description="Labels that photos carry.")
    since: int = Field(description="Of these, those that were said since the last refinement.")
    enough: bool = Field(description="Whether these are enough for another one to be worth its time.")
    running: bool = Field(description="Whether photos are taken in or the collection is refined at this moment.")
    what: str = Field(description="What is counted: photos, epochs, codes.")
    done: int
    total: int
    error: str = Field(description="Why the last piece of work failed; empty if it did not.")
    last: Refinement | None = Field(description="What the last refinement came to.")


class CooccurrenceAnswer(BaseModel):
    """counts[i][j]: how many photos carry both labels i and j; the diagonal counts those with one."""

    labels: list[str]
    counts: list[list[int]]


class MapAnswer(BaseModel):
    """Photos on a flat map of the codes, x and y within ±1; `group` is a place in `groups`, −1: none of them."""

    ids: list[int]
    x: list[float]
    y: list[float]
    group: list[int]
    groups: list[str]


class DuplicatesAnswer(BaseModel):
    """Photos that are copies or look all but the same."""

    groups: list[list[int]]


class DuplicateAnswer(PhotoAnswer):
    """One photo of a group of duplicates, with what may differ."""

    sharpness: float = Field(description="At the size of thumbnails.")
    exact: bool = Field(description="The same bytes as the best, which comes first.")


class Resolution(BaseModel, extra="forbid"):
    """Of duplicates the photo that stays, and those that go into the trash."""

    keep: PhotoId
    others: PhotoIds


class TrashedPhotos(BaseModel, extra="forbid"):
    ids: PhotoIds


class TrashedAnswer(BaseModel):
    """A photo in the trash, and when it was put there."""

    id: int
    name: str
    labels: list[str]
    time: str


class StatusAnswer(BaseModel):
    status: Literal["ok"]


@lru_cache(100_000)  # captions are kept as well
def file_name(path: str) -> str:
    """The last part of a path: where a photo lies on the server is nobody's business.

    >>> file_name("/photos/2019/cat.jpg")
    'cat.jpg'
    """
    last = path.rpartition("/")[2]
    if last in ("", ".") or "\\" in last:  # PurePath knows these, but is slow for the others of a long page
        return PurePath(path).name or path
    return last
