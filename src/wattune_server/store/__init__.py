"""A server's storage: rows in a database; weights, data and curves as files named by the hash of their content."""

from wattune_server.store.database import Database, StoreUnavailable
from wattune_server.store.file_store import FileStore

__all__ = ["Database", "FileStore", "StoreUnavailable"]
