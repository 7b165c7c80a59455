"""Who may change a collection on Milvus, and how a change is made whole."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from hyphash.engines.milvus.ledger import (
    BOOKS,
    Journal,
    Ledger,
    Step,
    commit_entry,
    entry,
    forget_commits,
    label_entries,
    read,
    removal_entries,
    whoami,
    with_labels,
)
from hyphash.engines.milvus.rows import stamp_of
from hyphash.engines.milvus.server import SESSION, STRONG, RefusedError, Row, Server
from hyphash.errors import BusyError, EngineError
from hyphash.files import disk_errors

LOCK = "milvus.lock"
JOURNAL = "milvus.journal"
LEASE = 150.0  # seconds that a change may take
IDLE = 6.0  # seconds after a change for which it is still this folder's turn
CLOCKS = 2.0  # seconds by which the clocks of machines may differ
SLACK = 3.0  # a lease that lasts less is claimed anew: there is no time left to make it longer

log = logging.getLogger(__name__)


class Writer:
    """The right of one folder to change a collection.

    Processes with the same folder take turns by a lock on a file in it, which also holds the stamp of the last commit
    made from there. Folders take turns by a lease among the books of the server.

    A lease is worth something only while it lasts, so whatever is written under it is written before it ends: no
    attempt begins later, and none may take longer. A server cannot be kept from carrying out late what it was told in
    time, so photos and commits carry stamps, by which `verify` sees what two have written at once.
    """

    def __init__(self, server: Server, folder: Path, collection: str, *, wait: float) -> None:
        self.server = server
        self.folder = folder
        self.collection = collection
        self.wait = wait
        self.seen: Ledger | None = None  # the newest ledger that this process knows
        self.level = STRONG  # with which a turn sees all that was written before it
        self._deleted = False  # by the last commit, which SESSION does not take for a write
        self._until = 0.0  # when the lease ends
        self._note: TextIO | None = None  # the locked file, during a turn

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def turn(self, *, wait: float | None = None) -> Iterator[Ledger]:
        """The ledger, which nobody else changes meanwhile; what others left half done is finished before."""
        wait = self.wait if wait is None else wait
        with self._locked(wait=wait) as note:
            self._note = note
            try:
                yield self._current(note, wait)
            except Exception as error:
                if not isinstance(error, EngineError):  # the server is well: others need not wait for us
                    with suppress(EngineError):
                        self._shorten()
                raise
            finally:
                self._note = None
            self._shorten()

    def tidy_up(self) -> None:
        """Finish a commit that was interrupted, unless its writer is alive or others write: it is theirs then."""
        if (self.folder / JOURNAL).exists():
            with suppress(BusyError), self.turn(wait=0.0):
                pass

    def _shorten(self) -> None:
        """Let go of a lease under which nothing was committed."""
        if self._until - time.time() > IDLE and not (self.folder / JOURNAL).exists():
            self._extend(IDLE)

    def release(self) -> None:
        """Let other folders write at once."""
        if not self._until:
            return
        self.server.patience = min(self.server.patience, 1.0)  # it runs out by itself as well
        with suppress(EngineError, BusyError), self._locked(wait=1.0) as note:
            note.truncate(0)  # other processes with this folder ask the server before they write again
            self._withdraw()
        self._until = 0.0

    @contextmanager
    def _locked(self, *, wait: float) -> Iterator[TextIO]:
        import fcntl  # where there is none, there are other engines

        path = self.folder / LOCK
        deadline = time.monotonic() + wait
        with disk_errors(path):
            file = path.open("a+")
        with file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        waited = f"this one waited {wait:g} s; try again when the other is done"
                        raise BusyError(f"{self.folder}: another program is writing; {waited}") from None
                    time.sleep(0.02)
            yield file

    def _current(self, note: TextIO, wait: float) -> Ledger:
        journal = Journal.load(self.folder / JOURNAL)
        if journal is not None:
            self._finish(journal, wait)
        note.seek(0)
        ledger, self.level = self.seen, STRONG if self._deleted else SESSION
        if ledger is None or note.read() != ledger.stamp or not self._renewed():
            ledger, self.level = self._claimed(wait, adopt=True), STRONG  # the last to write may have been another
        self.seen = ledger
        return ledger

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        after: Ledger,
        steps: Sequence[Step],
        *,
        more: Mapping[str, int] | None = None,
        removed: Sequence[int] = (),
    ) -> None:
        """Take the steps and write the ledger; `more` photos carry some labels, `removed` ones are gone.

        The journal is on the disk before the first step and goes after the last. If the server or this process dies in
        between, the next turn takes all steps again.
        """
        assert self._note is not None
        end, more = self._until - CLOCKS, more or {}
        if time.time() > end:
            raise self.server.late()
        books = (*label_entries(after, more), *removal_entries(after, list(removed)), after.entry())
        books = (*books, commit_entry(after.collection, after.commit, after.stamp, whoami(self.folder)))
        journal = Journal(after.commit, after.stamp, (*steps, Step(BOOKS, books)))
        path = self.folder / JOURNAL
        journal.save(path)
        for step in steps:
            step.do(self.server, until=end)
        until = time.time() + IDLE
        Step(BOOKS, (*books, self._lease_entry(until))).do(self.server, until=end)
        if time.time() > end:
            self._require_still_ours(after)
        path.unlink()
        self._note.truncate(0)
        self._note.write(after.stamp)
        self._note.flush()
        self.seen, self._until = with_labels(after, more), until
        self._deleted = any(step.keys for step in steps)
        forget_commits(self.server, after, STRONG)

    def _require_still_ours(self, after: Ledger) -> None:
        """The last step ended when others could write already: say so if one did."""
        now = read(self.server, self.collection, STRONG)
        others = self._others(now)
        if now.stamp != after.stamp or others:
            self._until = 0.0
            raise EngineError(
                f"{self.server.address.shown}: a change ended so late that another folder was writing as well; run "
                "`hyphash collection verify`, and index the photos of both again if it finds something"
            )

    def _finish(self, journal: Journal, wait: float) -> None:
        """Complete the commit that a process before, or this one, has begun."""
        ledger = self._claimed(wait, adopt=False)
        if ledger.commit < journal.commit:
            log.warning("%s: completing the commit %d that was interrupted", self.folder, journal.commit)
            try:
                journal.do(self.server, until=self._until - CLOCKS)
            except RefusedError as error:  # or nobody could write from here ever again
                log.warning("%s: that commit cannot be completed (%s); what had arrived is kept", self.folder, error)
                self.made_to_fit(ledger)
                return
        elif ledger.stamp != journal.stamp:
            log.warning(
                "%s: others have written to %s since a commit here was interrupted, so what did not arrive then "
                "is given up; give that command again",
                self.folder,
                self.server.address.shown,
            )
        (self.folder / JOURNAL).unlink()
        self.seen, self._until = None, 0.0

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────

    def _claimed(self, wait: float, *, adopt: bool) -> Ledger:
        """The ledger, under a lease of this folder.

        Who wants it enters a claim and looks again: of two that come at once at least one sees the other and steps
        back, for both look at all that was written before.
        """
        deadline = time.monotonic() + wait
        while True:
            ledger = read(self.server, self.collection, STRONG)
            others = self._others(ledger)
            if not others:
                until = time.time() + LEASE
                self.server.upsert(BOOKS, [self._lease_entry(until)])
                ledger = read(self.server, self.collection, STRONG)
                others = self._others(ledger)
                if not others and time.time() < until - CLOCKS:
                    self._until = until
                    return self._after_others(ledger, wait) if adopt else ledger
                self._withdraw()
            if others and time.monotonic() > deadline:
                who, left = next(iter(others.items()))
                raise BusyError(
                    f"{self.server.address.shown}: {who} is writing, or has died (its lease ends in {left:.0f} s); "
                    f"this one waited {wait:g} s; try again later"
                )
            time.sleep(0.2 + secrets.randbelow(300) / 1000)

    def _others(self, ledger: Ledger) -> dict[str, float]:
        """Other folders that hold a lease, and for how long."""
        me, now = whoami(self.folder), time.time()
        return {who: until - now for who, until in ledger.leases.items() if who != me and until > now}

    def _after_others(self, ledger: Ledger, wait: float) -> Ledger:
        """Another folder's lease has run out. What it left half done stays as it is, and the books are made to fit."""
        old = [who for who in ledger.leases if who != whoami(self.folder)]
        self.server.delete(BOOKS, [entry(self.collection, "writer", who, {})["key"] for who in old])
        if not self.server.count(ledger.photos, f"commit > {ledger.commit}", STRONG):
            return ledger
        who = ", ".join(old) or "another folder"  # one that could still say that its turn is over
        log.warning("%s: %s stopped in the middle of a commit; what had arrived is kept", self.folder, who)
        self.made_to_fit(ledger)
        if not self._renewed():
            return self._claimed(wait, adopt=True)
        assert self.seen is not None
        return self.seen

    def made_to_fit(self, ledger: Ledger) -> None:
        """Commit whatever photos there are."""
        arrived = self.server.walk(ledger.photos, f"commit > {ledger.commit}", ["commit", "facts"], STRONG)
        kept = {(int(row["commit"]), stamp_of(row)) for rows in arrived for row in rows}
        labels, last = recounted(self.server, ledger, each=self._hold)
        more = {label: labels[label] - ledger.labels.get(label, 0) for label in {*labels, *ledger.labels}}
        after = replace(ledger, commit=ledger.commit + 1, stamp=secrets.token_hex(8), last=max(last, ledger.last))
        who = f"{whoami(self.folder)} for another"
        logged = [commit_entry(self.collection, commit, stamp, who, kept=True) for commit, stamp in sorted(kept)]
        # those who keep codes in memory build them anew: which photos went is not known
        self.commit(replace(after, pruned=after.commit), [Step(BOOKS, tuple(logged))], more=more)

    def _renewed(self) -> bool:
        """Make the lease longer; False if others may have found that it had run out, before or meanwhile."""
        before = self._until
        if before - time.time() < SLACK:
            return False
        self._extend(LEASE)  # is tried again while the server is away, and may take longer than the lease lasts
        if time.time() < before - CLOCKS:
            return True
        self._withdraw()
        return False

    def _hold(self) -> None:
        """Keep the lease through a long piece of work."""
        if self._until - time.time() < LEASE / 2 and not self._renewed():
            raise self.server.late()

    def _withdraw(self) -> None:
        self.server.delete(BOOKS, [self._lease_entry(0.0)["key"]])
        self._until = 0.0

    def _extend(self, seconds: float) -> None:
        until = time.time() + seconds
        self.server.upsert(BOOKS, [self._lease_entry(until)])
        self._until = until

    def _lease_entry(self, until: float) -> Row:
        return entry(self.collection, "writer", whoami(self.folder), {"until": until})


def recounted(server: Server, ledger: Ledger, *, each: Callable[[], None] = lambda: None) -> tuple[Counter[str], int]:
    """How many photos really carry each label, and the highest id; `each` is called on the way, now and then."""
    labels: Counter[str] = Counter()
    last = 0
    for rows in server.walk(ledger.photos, "", ["labels"], STRONG):
        for row in rows:
            labels.update(row["labels"])
        last = rows[-1]["id"]
        each()
    return labels, last
