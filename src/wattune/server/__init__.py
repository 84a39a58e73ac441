"""The server: pre-trained models, proxy sweeps as jobs, profiles, plans and training records over HTTP.

lifecycle            start and stop of the server process; demo: simulated devices
application, routes  HTTP API; no torch
store                database and files
jobs                 durable queue, and the worker processes, which alone import torch
dashboard            web pages
"""
