"""`hyphash watch`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyphash.cli.options import CollectionFolder, Device, LabelsFrom
from hyphash.cli.output import say, stop_on_signal

if TYPE_CHECKING:
    from hyphash.collection.records import Happening


def watch(
    collection: CollectionFolder,
    photos: Annotated[list[Path] | None, typer.Argument(help="Further folders. [default: what was indexed]")] = None,
    labels_from: LabelsFrom = "",
    poll: Annotated[bool, typer.Option("--poll", help="Look again and again, where nothing tells of changes.")] = False,
    device: Device = "auto",
) -> None:
    """Take in photos that come, change, move or go in the folders of a collection, until Ctrl-C."""
    from hyphash.collection import Collection
    from hyphash.collection.watching import Watch, remember

    def heard(one: "Happening") -> None:
        print(f"{one.time} {one.what} {one.photos:,}: {one.reason or ', '.join(one.names)}", flush=True)

    with Collection.open(collection, device=device) as opened:
        for folder in photos or ():
            remember(collection, folder, labels_from or "auto")
        opened.log.heard = heard
        watching = Watch(opened)
        say(f"{collection}: watching {', '.join(map(str, watching.folders))}; stop with Ctrl-C")
        with stop_on_signal() as stop:
            watching.run(stop, poll=poll)
