"""One network for many requests: photos that come at the same time are encoded together."""

import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread

import numpy as np

from hyphash.encoder import Outputs
from hyphash.errors import BusyError, OtherHasherError
from hyphash.photos import Pixels


class Batcher:
    """A thread that takes waiting photos, up to `most` at once, through the network."""

    def __init__(
        self,
        encode: Callable[[Pixels], Outputs],
        *,
        most: int = 32,
        gather: float = 0.004,
        seconds: float = 30.0,
        waiting: int = 256,
        seen: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.most = most
        self.gather = gather
        self.seconds = seconds
        self._encode = encode
        self._seen = seen  # is told the size of each batch
        self._waiting: queue.Queue[tuple[Pixels, Future[Outputs]] | None] = queue.Queue(waiting)
        self._lock = Lock()
        self._closed = False
        self._thread = Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    def outputs(self, pixels: Pixels) -> Outputs:
        """The outputs of one photo, (width,)."""
        future: Future[Outputs] = Future()
        try:
            with self._lock:
                if self._closed:
                    raise OtherHasherError("this network is in use no longer; encode the photo with the new one")
                self._waiting.put_nowait((pixels, future))
            return future.result(self.seconds)
        except queue.Full:
            raise BusyError("too many photos at once; try again in a moment") from None
        except TimeoutError:
            future.cancel()
            raise BusyError("the network has more photos than it can encode in time; try again later") from None

    def close(self) -> None:
        """Encode what is waiting, then end."""
        with self._lock:
            self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            batch, going = self._gathered()
            batch = [(pixels, future) for pixels, future in batch if future.set_running_or_notify_cancel()]
            if not batch:
                continue
            self._seen(len(batch))
            try:
                outputs = self._encode(np.stack([pixels for pixels, _ in batch]))
            except BaseException as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for row, (_, future) in zip(outputs, batch, strict=True):
                    future.set_result(row)

    def _gathered(self) -> tuple[list[tuple[Pixels, "Future[Outputs]"]], bool]:
        """The next photos, and whether more will come. Under load the network itself is the time to gather."""
        batch: list[tuple[Pixels, Future[Outputs]]] = []
        until = 0.0
        while len(batch) < self.most:
            try:
                left = until - time.monotonic()
                item = self._waiting.get() if not batch else self._waiting.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if item is None:
                return batch, False
            batch.append(item)
            until = until or time.monotonic() + self.gather
        return batch, True
