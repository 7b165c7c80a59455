"""The HTTP service and its page: other callers of the methods that the command line calls."""

from hyphash.errors import needs_extra

with needs_extra("serve", "the service"):
    import fastapi as _fastapi  # noqa: F401
    import httptools as _httptools  # noqa: F401
    import orjson as _orjson  # noqa: F401
    import prometheus_client as _prometheus  # noqa: F401
    import python_multipart as _multipart  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401

from hyphash.service.app import create_app
from hyphash.service.monitoring import log_to
from hyphash.service.served import ServedCollection
from hyphash.service.server import serve
from hyphash.service.settings import Settings

__all__ = ["ServedCollection", "Settings", "create_app", "log_to", "serve"]
