"""The client of a wattune server: models, curves, profiles and records over HTTP."""
