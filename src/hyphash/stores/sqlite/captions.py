"""What is shown of photos that were found: from memory, where they were found before."""

from collections.abc import Sequence
from threading import Lock

from hyphash.stores import Caption, Position, Session

KEPT = 200_000  # captions in memory: some 50 MB


class CaptionCache:
    """Captions as they were at one commit; the first question after another one starts anew."""

    def __init__(self) -> None:
        self._position: Position | None = None
        self._kept: dict[int, Caption] = {}
        self._lock = Lock()

    def get(self, session: Session, ids: Sequence[int]) -> dict[int, Caption]:
        """Captions of the photos with these ids, for those that are there."""
        position = session.state().position
        with self._lock:
            if position != self._position:
                self._position, self._kept = position, {}
            kept = self._kept  # of this very commit, whoever comes next
        found = {id: caption for id in ids if (caption := kept.get(id))}
        if len(found) < len(ids):
            read = session.captions([id for id in ids if id not in found])
            found |= read
            with self._lock:
                if len(kept) > KEPT:
                    kept.clear()
                kept.update(read)
        return found
