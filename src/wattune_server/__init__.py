"""The server: pre-trained models, proxy sweeps as jobs, profiles, plans and training records over HTTP.

cli                  wattune-server serve, store, token
lifecycle            start and stop of the server; demo: simulated devices
application, api     HTTP API; no torch
store                database and files
jobs                 durable queue, and the processes of the sweeps, which alone import torch
dashboard            web pages
"""
