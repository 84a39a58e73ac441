"""Folder on the ``PYTHONPATH`` of programs under ``wattune guard``; see ``sitecustomize``."""
