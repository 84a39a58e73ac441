"""Proxy sweeps as jobs: a durable queue in the database, and the processes that work on it.

queue        jobs: submit, status, cancel, retry; no torch
leases       units of work: claim, renew, finish, fail, requeue; no torch
supervisor   starts and restarts the worker processes; no torch
worker       the main loop of a worker process, which trains
sweep_unit   one unit of a sweep: a proxy run, or the choice of the next runs
cluster_runs proxy runs on a Ray cluster
"""
