"""Hashers that others published: `hf://user/name` on the Hugging Face hub, kept in its cache for when it is away."""

import re
from pathlib import Path

from hyphash.errors import RunError, needs_extra

ADDRESS = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")  # a Path has one slash
FILES = ("hasher.toml", "weights.safetensors", "network.onnx", "config.toml")  # nothing else is fetched


def local_folder(address: str | Path) -> Path:
    """A folder as it is; of `hf://user/name` or `hf://user/name@revision` a copy of its files on this machine.

    Where the hub cannot be reached, or HF_HUB_OFFLINE is set, what was fetched before serves.
    """
    if not str(address).startswith("hf:/"):
        return Path(address)
    if not (parts := ADDRESS.fullmatch(str(address))):
        raise RunError(f"{address}: not the address of a published hasher; write hf://user/name[@revision]")
    name, revision = parts.groups()
    with needs_extra("hub", "hf:// addresses"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except RepositoryNotFoundError as error:
        raise RunError(f"{address}: there is no such model, or it is private; `hf auth login` opens yours") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{address}: cannot be fetched, and was not before ({reason}); try again when the hub answers"
        ) from error
