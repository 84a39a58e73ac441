"""What a server keeps: rows in a database, and weights, data and curves as files by the hash of their content."""

from wattune.server.store.database import Database, StoreUnavailable
from wattune.server.store.files import FileStore

__all__ = ["Database", "FileStore", "StoreUnavailable"]
