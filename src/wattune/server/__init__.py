"""The server: pre-trained models, proxy sweeps as jobs, profiles, plans and training records over HTTP.

app, routes     the HTTP API; no torch
store           database and files
jobs            the durable queue, and the worker processes that alone train
dashboard       the pages
"""
