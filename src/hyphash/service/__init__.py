"""The HTTP service and its page: other callers of the methods that the command line calls."""

from importlib import import_module

from hyphash.errors import needs_extra

with needs_extra("serve", "the service"):
    for package in ("fastapi", "httptools", "orjson", "prometheus_client", "python_multipart", "uvicorn"):
        import_module(package)

from hyphash.service.app import create_app
from hyphash.service.monitoring import log_to
from hyphash.service.served import ServedCollection
from hyphash.service.server import serve
from hyphash.service.settings import Settings

__all__ = ["ServedCollection", "Settings", "create_app", "log_to", "serve"]
