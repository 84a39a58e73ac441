"""The job: profile -> estimate -> plan -> train -> compare, each step alone or all of them in a resumable run.

``steps`` has the steps in order and is the file to read first; ``full_run`` and ``with_server`` run them one after the
other. The functions are public as ``wattune.profile``, ``wattune.run`` and so on.
"""
