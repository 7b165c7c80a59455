"""Looking after a collection on Milvus: is everything as it should be?"""

from collections import defaultdict
from pathlib import Path

from hyphash.engines.milvus.ledger import Ledger, commits
from hyphash.engines.milvus.rows import stamp_of
from hyphash.engines.milvus.server import STRONG, Server
from hyphash.engines.milvus.writer import JOURNAL, recounted

COMPACT = "`hyphash collection compact`"
SHOWN = 20


def findings(server: Server, folder: Path, ledger: Ledger) -> list[str]:
    """All that is wrong, in words."""
    place, found = server.address.shown, []
    if (folder / JOURNAL).exists():
        found.append(f"{folder}: a change was interrupted; the next one completes it")
    unknown = server.count(ledger.photos, f"commit > {ledger.commit}", STRONG)
    if unknown:
        found.append(f"{place}: {unknown} photos belong to no commit; the next change sees to them")
    labels, last = recounted(server, ledger)
    found += [
        f"{place}: {ledger.labels.get(label, 0)} is the wrong number of photos with {label!r}; {COMPACT} counts anew"
        for label in sorted({*labels, *ledger.labels})
        if labels[label] != ledger.labels.get(label, 0)
    ]
    if last > ledger.last:
        found.append(f"{place}: the photo {last} has an id that was never given")
    counted = server.count(ledger.photos, "", STRONG)
    walked = sum(len(rows) for rows in server.walk(ledger.photos, "", [], STRONG))
    if counted != walked:
        found.append(f"{place}: {walked} photos, but the server counts {counted}")
    return found + [f"{place}: {what}" for what in _clashes(server, ledger)]


def _clashes(server: Server, ledger: Ledger) -> list[str]:
    """What two folders wrote at once: commits with one number, and photos of a commit that was never made.

    Either may have been written in the place of another photo, which is lost from the collection then.
    """
    known = commits(server, ledger.collection, STRONG)
    makers, stamps = defaultdict[int, list[str]](list), defaultdict[int, set[str]](set)
    for commit in known:
        stamps[commit["commit"]].add(commit["stamp"])
        if not commit["kept"]:
            makers[commit["commit"]].append(commit["who"])
    found = [
        f"the commit {number} was made twice, by {' and '.join(who)}; index the photos of both again, then {COMPACT}"
        for number, who in makers.items()
        if len(who) > 1
    ]
    if not known:
        return found
    strange: list[int] = []
    recent = f"commit >= {known[0]['commit']} and commit <= {ledger.commit}"
    for rows in server.walk(ledger.photos, recent, ["commit", "facts"], STRONG):
        by = ((int(row["id"]), int(row["commit"]), stamp_of(row)) for row in rows)
        strange += [id for id, number, stamp in by if stamp and number in stamps and stamp not in stamps[number]]
    return found + [
        f"photo {id} was written by a folder whose turn was over, maybe in the place of another; index the photos of "
        f"all folders again, then {COMPACT}"
        for id in strange[:SHOWN]
    ]
