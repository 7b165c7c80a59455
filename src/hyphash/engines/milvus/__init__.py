"""Collections on a Milvus server, stand-alone or a cluster.

    milvus://user:password@host:19530/DATABASE?collection=NAME&consistency=Strong&partitions=N

Photos are rows with a binary vector, searched by Hamming distance on the server. Options, each with a default:
`collection` (hyphash), `consistency` of searches and lists (Strong, Session, Bounded, Eventually), `partitions` (0:
none; else by id), `shards` (1) that writes are spread over, `replicas` (1) that searches are spread over, `tls`
(false) with the files `ca` (who has signed the server's certificate), `cert` and `key` (one's own), `patience` (60):
seconds that the server may be away. What decides about a change is always read with Strong consistency.

**Half-written batches.** Milvus has no transactions. A change is a list of steps that write or delete rows by their
key, so that taking a step twice does nothing; the last one writes the ledger with the number of the commit
(`ledger.py`). All steps are in a journal in the folder of the collection, forced to its disk, before the first is
taken. A journal that is still there when the folder is opened, or before its next change, is carried out from the
start: the batch is completed. Until then readers may see a part of it. Rows are checked before; should the server
refuse a journal all the same, it is given up: what had arrived is kept, and the books are made to fit.

**Writers.** Processes with the same folder take turns by a file lock. Folders, on whichever machine, take turns by a
lease in the ledger, 150 seconds for a change and 6 after it; a folder that finds another's lease waits and gives up
with BusyError. If a folder dies in the middle of a batch and another takes over when the lease has run out, what had
arrived is kept, the books are made to fit, and the journal that is left behind is given up. Clocks may differ by 2
seconds. Nothing is begun when the lease is over (`writer.py`); what a server does late all the same, `verify` sees.

**Another hasher.** A vector field has one length for ever, so the coming codes go to a second collection, NAME_2
beside NAME_1, with all that is known of the photos; every change is made in both. `switch` is a change of the ledger.

**Rankings by tables** and pages deeper than 16,384, or than an approximate index looks, are not for Milvus: the codes
are brought to this process (8 bytes and a code a photo), kept, and brought up to date by the number of the commit.
"""

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.engines import Choice, Engine, Found, Photo, State, check_codes, engines, merged, now, numbered
from hyphash.engines.address import Address
from hyphash.engines.local.snapshot import Ids, View
from hyphash.engines.milvus import ledger as books
from hyphash.engines.milvus.care import findings
from hyphash.engines.milvus.ledger import BOOKS, Ledger, Step
from hyphash.engines.milvus.mirror import Mirror, part_of
from hyphash.engines.milvus.ranking import Hit, Search
from hyphash.engines.milvus.rows import (
    PHOTO,
    content_key,
    fields,
    listed,
    path_key,
    quoted,
    tidy,
    to_photo,
    to_row,
)
from hyphash.engines.milvus.server import (
    BATCH,
    EVENTUALLY,
    LIMIT,
    SESSION,
    STRONG,
    GoneError,
    Layout,
    Server,
    both,
)
from hyphash.engines.milvus.writer import Writer
from hyphash.errors import ConfigError, OtherHasherError

T = TypeVar("T")

LEVELS = (STRONG, SESSION, "Bounded", EVENTUALLY)
OPTIONS: dict[str, Any] = {
    "collection": "hyphash",
    "consistency": STRONG,
    "partitions": 0,
    "shards": 1,
    "replicas": 1,
    "tls": False,
    "ca": "",  # files with certificates, for tls
    "cert": "",
    "key": "",
    "patience": 60.0,
}
WORTH_AN_INDEX = 1024  # rows; Milvus searches smaller segments without


@engines("milvus")
class Milvus(Engine):
    """Photos on a Milvus server; every search looks at all codes."""

    options: ClassVar[dict[str, Any]] = OPTIONS

    def __init__(self, folder: Path, address: Address, *, wait: float = 30.0) -> None:
        self.folder = folder
        self.address = address
        self.level: str = address.options["consistency"]
        # with one replica whatever a search has seen the next one sees as well
        self.again = EVENTUALLY if address.options["replicas"] == 1 else self.level
        self.server = Server(address, patience=address.options["patience"])
        self.writer = Writer(self.server, folder, address.options["collection"], wait=wait)
        self._mirror = Mirror(self.server)
        self._written = 0  # rows since the last flush
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="milvus")

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:
        address = cls.address_of(url)
        engine = cls(folder, address)
        try:
            engine._create(fingerprint, bits)
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        engine = cls(folder, cls.address_of(url), wait=wait)
        try:
            engine._reload()
            engine.writer.tidy_up()
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def address_of(cls, url: str) -> Address:
        if "://" not in url:
            url = f"{url}://localhost"
        address = Address.parse(url, options=cls.options)
        if address.options["consistency"] not in LEVELS:
            raise ConfigError(f"{address.shown}: consistency is one of {', '.join(LEVELS)}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", address.options["collection"]):
            raise ConfigError(f"{address.shown}: the name of a collection is made of letters, digits and _")
        if ":" in address.host:
            raise ConfigError(f"{address.shown}: pymilvus takes no numbers of IPv6; write the name of that host")
        _check_certificates(address)
        return address

    def close(self) -> None:
        self.writer.release()
        self._pool.shutdown()
        self._mirror.clear()
        self.server.close()

    def hurry(self, seconds: float) -> None:
        self.server.patience = min(self.server.patience, seconds)

    def layout(self, bits: int, partitions: int) -> Layout:
        """What a collection of photos is made of."""
        return Layout(
            fields=fields(bits, partitions=partitions),
            vector="code",
            index="BIN_FLAT",
            build={},
            sorted=("path_key", "content_key"),
            shards=self.address.options["shards"],
            partitions=partitions,
            replicas=self.address.options["replicas"],
        )

    def search_params(self) -> dict[str, Any]:
        return {}

    def state(self) -> State:
        ledger = self._reload()
        return State(ledger.fingerprint, ledger.bits, ledger.commit)

    def _create(self, fingerprint: str, bits: int) -> None:
        name: str = self.address.options["collection"]
        partitions: int = self.address.options["partitions"]
        ledger = Ledger(
            collection=name, fingerprint=fingerprint, bits=bits, partitions=partitions, stamp=secrets.token_hex(8)
        )
        if not self.server.has(BOOKS) or self.server.unloaded(BOOKS):  # by an attempt that came half way
            self.server.create(BOOKS, books.LAYOUT)
        if self._joined(fingerprint):
            return
        # one that is there, made for us with other settings or left by an attempt that failed, is taken if it is empty
        self.server.create(ledger.photos, self.layout(bits, partitions))
        if self._joined(fingerprint):  # that takes seconds, in which others may have done the same
            return
        if self.server.count(ledger.photos, "", STRONG):
            raise ConfigError(f"{self.address.shown}: {ledger.photos!r} holds rows of others; choose ?collection=…")
        self.server.upsert(BOOKS, [ledger.entry()])
        self.writer.seen = ledger

    def _joined(self, fingerprint: str) -> bool:
        """Whether others have made the collection: this is one more folder for it then."""
        there = books.find(self.server, self.address.options["collection"], STRONG)
        if there is None:
            return False
        self._require(there, fingerprint)
        if there.partitions != self.address.options["partitions"] and "partitions" in self.address.given:
            raise ConfigError(f"{self.address.shown}: the collection that is there has {there.partitions} partitions")
        self.writer.seen = there
        return True

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    def upsert(self, photos: Sequence[Photo], *, fingerprint: str) -> list[int]:
        by_path = {photo.path: photo for photo in photos}
        with self.writer.turn() as ledger:
            self._require(ledger, fingerprint)
            check_codes(photos, ledger.bits)
            if not photos:
                return []
            known = self._known(ledger, by_path.values())
            time = now()
            pairs: list[tuple[Photo | None, Photo]] = []
            for photo in numbered(by_path.values(), known.values(), ledger.last):
                before = known.get(photo.id)
                added = before.added if before else photo.added or time
                pairs.append((before, tidy(replace(merged(before, photo), added=added, changed=time))))
            self._write(ledger, pairs)
        ids = {after.path: after.id for _, after in pairs}
        return [ids[photo.path] for photo in photos]

    def relabel(self, id: int, edit: Callable[[Photo], Photo]) -> Photo | None:
        with self.writer.turn() as ledger:
            before = next(iter(self._photos(ledger, [id])), None)
            if before is None:
                return None
            edited = edit(before)
            after = tidy(replace(before, labels=edited.labels, refused=edited.refused, changed=now()))
            self._write(ledger, [(before, after)])
        return after

    def remove(self, ids: Iterable[int]) -> int:
        with self.writer.turn() as ledger:
            gone = self._photos(ledger, sorted(set(ids)))
            if not gone:
                return 0
            keys = tuple(photo.id for photo in gone)
            steps = [Step(ledger.photos, keys=keys)]
            if ledger.coming:
                steps.append(Step(ledger.next_photos, keys=keys))
            self.writer.commit(_following(ledger), steps, more=_more((photo, None) for photo in gone), removed=keys)
        return len(gone)

    def _write(self, ledger: Ledger, pairs: Sequence[tuple[Photo | None, Photo]]) -> None:
        """Commit photos as they are after, in the collection in use and in the coming one."""
        after = _following(ledger, last=max([ledger.last, *(photo.id for _, photo in pairs)]))
        steps = [Step(ledger.photos, self._rows(after, [photo for _, photo in pairs]))]
        if ledger.coming:
            steps.append(self._follow(ledger, after, [(before, photo) for before, photo in pairs if before]))
        self.writer.commit(after, steps, more=_more(pairs))
        self._written += len(pairs)

    def _follow(self, ledger: Ledger, after: Ledger, pairs: Sequence[tuple[Photo, Photo]]) -> Step:
        """The same change among the coming codes; the coming code of a photo that looks different now goes."""
        changed = {photo.id: photo for before, photo in pairs if before.code == photo.code}
        stale = tuple(photo.id for before, photo in pairs if before.code != photo.code)
        coming = self._photos(ledger, list(changed), collection=ledger.next_photos)
        rows = [replace(changed[photo.id], code=photo.code) for photo in coming]
        return Step(ledger.next_photos, self._rows(after, rows), stale)

    def _rows(self, ledger: Ledger, photos: Iterable[Photo]) -> tuple[dict[str, Any], ...]:
        return tuple(
            to_row(photo, commit=ledger.commit, stamp=ledger.stamp, partitions=ledger.partitions) for photo in photos
        )

    def _known(self, ledger: Ledger, photos: Iterable[Photo]) -> dict[int, Photo]:
        """The photos that are there already, under the same path or the same id."""
        paths = {photo.path for photo in photos}
        found = self._found(ledger, "path_key", map(path_key, paths), self.writer.level)
        known = {photo.id: photo for photo in found if photo.path in paths}
        return known | {photo.id: photo for photo in self._photos(ledger, [photo.id for photo in photos if photo.id])}

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[int]) -> list[Photo]:
        photos = self._reading(lambda ledger: self._photos(ledger, list(set(ids)), level=self.level))
        found = {photo.id: photo for photo in photos}
        return [found[id] for id in ids if id in found]

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        named, shown = set(paths), set(contents)

        def work(ledger: Ledger) -> list[Photo]:
            by_path = self._found(ledger, "path_key", map(path_key, named), self.level)
            by_content = self._found(ledger, "content_key", map(content_key, shown), self.level)
            found = [photo for photo in by_path if photo.path in named]
            return found + [photo for photo in by_content if photo.content in shown]

        return [photo for _, photo in sorted({photo.id: photo for photo in self._reading(work)}.items())]

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        where = _condition(carrying=carrying, tagged=False if untagged else None)

        def work(ledger: Ledger) -> list[Photo]:
            after = self._id_at(ledger, where, offset - 1) if offset else 0
            return [] if after is None else self._walked(ledger, where, after, limit)

        return self._reading(work)

    def page_after(self, id: int, limit: int) -> list[Photo]:
        return self._reading(lambda ledger: self._walked(ledger, "", id, limit))

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        where = _condition(carrying=carrying, tagged=False if untagged else None)
        return self._reading(lambda ledger: self.server.count(ledger.photos, where, self.level))

    def labels(self) -> dict[str, int]:
        return dict(sorted(self._reload().labels.items(), key=lambda item: (-item[1], item[0])))

    def search(
        self,
        query: Codes,
        k: int,
        *,
        fingerprint: str,
        offset: int = 0,
        choice: Choice = Choice(),  # noqa: B008 (frozen)
        tables: NDArray[np.float32] | None = None,
    ) -> Found:
        def work(ledger: Ledger) -> Found:
            self._require(ledger, fingerprint)
            query.require_length(ledger.bits)
            if tables is not None or (offset + k > LIMIT and choice.radius is None and self.exact):
                return self._ranked_here(ledger, query, k, offset, choice, tables)
            where = _condition(carrying=choice.carrying, tagged=choice.tagged or None, excluded=choice.excluded)
            search = Search(
                server=self.server, collection=ledger.photos, code=query.packed[0].tobytes(), where=where,
                last=ledger.last, level=self.level, again=self.again, params=self.search_params(),
            )  # fmt: skip
            if choice.radius is not None:
                hits = search.within(choice.radius)
                return _found(hits[offset : offset + k], len(hits))
            total = self._pool.submit(self.server.count, ledger.photos, where, self.level)
            hits = search.nearest(min(offset + k, LIMIT)) if offset + k else []
            page = _found(hits[offset : offset + k], total.result())
            return page if self.exact else self._completed(page, ledger, query, k, offset, choice, hits)

        return self._reading(work, fingerprint)

    def scan(self) -> Iterator[tuple[Ids, Codes]]:
        ledger = self._reload()
        for rows in self.server.walk(ledger.photos, "", ["code"], self.level):
            part = part_of(rows, ledger.bits)
            yield part.ids, part.codes

    def looks(self) -> Iterator[tuple[Ids, NDArray[np.uint64], NDArray[np.uint64]]]:
        for rows in self.server.walk(self._reload().photos, "", ["look", "content_key"], self.level):
            ids, looks, contents = (
                np.fromiter((row[name] for row in rows), np.int64, len(rows)) for name in ("id", "look", "content_key")
            )
            yield ids, looks.view(np.uint64), contents.view(np.uint64)

    def _completed(
        self, page: Found, ledger: Ledger, query: Codes, k: int, offset: int, choice: Choice, hits: Sequence[Hit]
    ) -> Found:
        """A page whose end is beyond what the index looks at: all other photos come after its hits."""
        if len(hits) >= min(offset + k, page.total):
            return page
        others = replace(choice, excluded=(*choice.excluded, *(id for _, id in hits)))
        rest = self._ranked_here(ledger, query, k - len(page.ids), max(0, offset - len(hits)), others, None)
        distances = np.concatenate([page.distances, rest.distances])
        return Found(np.concatenate([page.ids, rest.ids]), distances, None, page.total)

    def _ranked_here(
        self, ledger: Ledger, query: Codes, k: int, offset: int, choice: Choice, tables: NDArray[np.float32] | None
    ) -> Found:
        """A ranking over the codes in this process."""
        view: View = self._mirror.at(self._reload(), self.level)
        only = None
        if choice.carrying or choice.tagged:
            where = _condition(carrying=choice.carrying, tagged=choice.tagged or None)
            parts = self.server.walk(ledger.photos, where, [], self.level)
            only = np.fromiter((row["id"] for rows in parts for row in rows), np.int64)
        return view.search(query, k, offset, choice=choice, only=only, tables=tables)

    def _photos(
        self, ledger: Ledger, ids: Sequence[int], *, collection: str | None = None, level: str = ""
    ) -> list[Photo]:
        return self._found(ledger, "id", ids, level or self.writer.level, collection=collection)

    def _found(
        self, ledger: Ledger, field: str, keys: Iterable[int], level: str, *, collection: str | None = None
    ) -> list[Photo]:
        """Photos whose field is one of these numbers."""
        numbers, photos = list(keys), []
        for start in range(0, len(numbers), BATCH):
            where = f"{field} in {listed(numbers[start : start + BATCH])}"
            rows = self.server.query(collection or ledger.photos, where, PHOTO, level)
            photos += [to_photo(row) for row in rows]
        return photos

    def _walked(self, ledger: Ledger, where: str, after: int, limit: int) -> list[Photo]:
        """The next photos with ids above `after`."""
        photos: list[Photo] = []
        while len(photos) < limit:
            some = min(BATCH, limit - len(photos))
            rows = self.server.query(ledger.photos, both(f"id > {after}", where), PHOTO, self.level, limit=some)
            photos += sorted((to_photo(row) for row in rows), key=lambda photo: photo.id)
            if len(rows) < some:
                break
            after = photos[-1].id
        return photos

    def _id_at(self, ledger: Ledger, where: str, position: int) -> int | None:
        """The id of photo number `position` by id; far ones are found by counting and halving."""
        if position < LIMIT - 1:
            rows = self.server.query(ledger.photos, both("id > 0", where), ["id"], self.level, limit=1, offset=position)
            return rows[0]["id"] if rows else None
        low, high = 0, self._reload().last + 1  # more than `position` photos are not above `high`, if there are
        level = self.level
        while low + 1 < high:
            middle = (low + high) // 2
            enough = self.server.count(ledger.photos, both(f"id <= {middle}", where), level) > position
            low, high = (low, middle) if enough else (middle, high)
            level = self.again
        return high

    # ── the ledger ───────────────────────────────────────────────────────────────────────────────────────

    def _reload(self) -> Ledger:
        """The ledger as it is on the server."""
        ledger = books.read(self.server, self.address.options["collection"], self.level)
        if self.writer.seen is None or self.writer.seen.commit <= ledger.commit:
            self.writer.seen = ledger
        return self.writer.seen

    def _reading(self, work: Callable[[Ledger], T], fingerprint: str = "") -> T:
        """What `work` makes of the ledger that is known; if it is out of date, of the one on the server."""
        ledger = self.writer.seen
        if ledger is not None and fingerprint in ("", ledger.fingerprint):
            try:
                return work(ledger)
            except GoneError:  # another process has moved to another hasher
                pass
        return work(self._reload())

    def _require(self, ledger: Ledger, fingerprint: str) -> None:
        if fingerprint != ledger.fingerprint:
            raise OtherHasherError(
                f"{self.folder}: its codes were made by the hasher {ledger.fingerprint}, not by {fingerprint}; "
                "use that one, or move the collection to the other with `hyphash reindex`"
            )

    # ── another hasher ───────────────────────────────────────────────────────────────────────────────────

    def prepare(self, fingerprint: str, bits: int) -> None:
        with self.writer.turn() as ledger:
            if ledger.coming != fingerprint:
                self.server.drop(ledger.next_photos)
                self.server.create(ledger.next_photos, self.layout(bits, ledger.partitions))
                self.writer.commit(_following(ledger, coming=fingerprint, coming_bits=bits), [])

    def pending(self, limit: int, *, after: int = 0) -> list[Photo]:
        ledger = self._reload()
        return self._photos_sorted(ledger, self._lacking(ledger, limit, after))

    def store(self, photos: Sequence[Photo], *, fingerprint: str) -> None:
        with self.writer.turn() as ledger:
            self._require_coming(ledger, fingerprint)
            check_codes(photos, ledger.coming_bits)
            new = {photo.id: photo for photo in photos}
            there = [photo for photo in self._photos(ledger, list(new)) if photo.content == new[photo.id].content]
            coded = [replace(photo, code=new[photo.id].code) for photo in there]
            after = _following(ledger)
            self.writer.commit(after, [Step(ledger.next_photos, self._rows(after, coded))])

    def switch(self, fingerprint: str) -> bool:
        with self.writer.turn() as ledger:
            self._require_coming(ledger, fingerprint)
            if self._lacking(ledger, 1, 0, level=STRONG):
                return False
            coming = {"fingerprint": ledger.coming, "bits": ledger.coming_bits, "coming": "", "coming_bits": 0}
            self.writer.commit(_following(ledger, generation=ledger.generation + 1, **coming), [])
            self.server.drop(ledger.photos)
        return True

    def _lacking(self, ledger: Ledger, limit: int, after: int, *, level: str = "") -> list[int]:
        """The first ids above `after` without a code of the coming hasher."""
        level = level or self.level
        lacking: list[int] = []
        for rows in self.server.walk(ledger.photos, "", [], level, after=after):
            ids = [row["id"] for row in rows]
            where = f"id >= {ids[0]} and id <= {ids[-1]}"
            coded = {row["id"] for row in self.server.query(ledger.next_photos, where, ["id"], level)}
            lacking += [id for id in ids if id not in coded]
            if len(lacking) >= limit:
                break
        return lacking[:limit]

    def _photos_sorted(self, ledger: Ledger, ids: Sequence[int]) -> list[Photo]:
        return sorted(self._photos(ledger, ids, level=self.level), key=lambda photo: photo.id)

    def _require_coming(self, ledger: Ledger, fingerprint: str) -> None:
        if fingerprint != ledger.coming:
            raise OtherHasherError(
                f"{self.folder}: codes are prepared for {ledger.coming or 'no hasher'}, not for {fingerprint}; "
                "let one move to another hasher end before the next"
            )

    # ── care ─────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Have the index built over what was added, if it is enough for one."""
        if self._written >= WORTH_AN_INDEX:
            self.server.flush(self._reload().photos)
            self._written = 0

    def verify(self) -> list[str]:
        ledger = books.read(self.server, self.address.options["collection"], STRONG)
        return findings(self.server, self.folder, ledger)

    def compact(self) -> None:
        """Make the books fit the photos, forget former commits, and have Milvus join its segments."""
        with self.writer.turn() as ledger:
            self.writer.made_to_fit(ledger)
            books.forget(self.server, ledger.collection, kinds=["removed", "commit"], level=STRONG)
            for generation in range(1, ledger.generation):  # a switch may have been interrupted before it did that
                self.server.drop(f"{ledger.collection}_{generation}")
            self.server.compact(ledger.photos)


@engines("milvus-approximate")
class MilvusApproximate(Milvus):
    """Photos on a Milvus server; a search looks at the codes in the `probes` nearest of `lists` clusters."""

    exact = False
    options: ClassVar[dict[str, Any]] = OPTIONS | {"lists": 1024, "probes": 64}

    def layout(self, bits: int, partitions: int) -> Layout:
        build = {"nlist": self.address.options["lists"]}
        return replace(super().layout(bits, partitions), index="BIN_IVF_FLAT", build=build)

    def search_params(self) -> dict[str, Any]:
        return {"nprobe": self.address.options["probes"]}


def _check_certificates(address: Address) -> None:
    """Refuse options that do not go together, and files that are not there, before a server is asked."""
    files = {name: Path(address.options[name]) for name in ("ca", "cert", "key") if address.options[name]}
    if files and not address.options["tls"]:
        raise ConfigError(f"{address.shown}: {', '.join(files)} without tls=true would do nothing; add it")
    if len({"cert", "key"} & {*files}) == 1 or ("cert" in files and "ca" not in files):
        raise ConfigError(f"{address.shown}: a certificate of one's own is given by cert, key and ca together")
    for name, file in files.items():
        if not file.is_absolute() or not file.is_file() or not os.access(file, os.R_OK):
            raise ConfigError(f"{address.shown}: {name} names no file that can be read; write its whole path")


def _following(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger of the next commit."""
    return replace(ledger, commit=ledger.commit + 1, stamp=secrets.token_hex(8), **changes)


def _more(pairs: Iterable[tuple[Photo | None, Photo | None]]) -> Counter[str]:
    """How many photos more carry each label after than before."""
    more: Counter[str] = Counter()
    for before, after in pairs:
        more.update(after.labels if after else ())
        more.subtract(before.labels if before else ())
    return more


def _condition(*, carrying: Sequence[str] = (), tagged: bool | None = None, excluded: Sequence[int] = ()) -> str:
    """Which rows a choice allows, in the language of Milvus."""
    return both(
        f"array_contains_all(labels, {quoted(sorted(set(carrying)))})" if carrying else "",
        "" if tagged is None else f"tagged == {str(tagged).lower()}",
        f"id not in {listed(sorted(set(excluded)))}" if excluded else "",
    )


def _found(hits: Sequence[tuple[int, int]], total: int) -> Found:
    ids = np.array([id for _, id in hits], np.int64)
    return Found(ids, np.array([distance for distance, _ in hits], np.int32), None, total)
