"""Proxy sweeps as jobs: a durable queue in the database, and the processes that work on it.

queue        jobs: made, looked at, cancelled, started anew; no torch
leases       their units of work: taken, kept, done, failed; no torch
supervisor   starts the worker processes, and starts them again; no torch
worker       what runs in one of them: it alone trains
"""
